"""The closed-form continuous-time cell of the ncps package, by the Jacobian of its step."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np

from memcurse_cli.checkpoints.store import TensorSpec, TensorStore
from memcurse_cli.recurrences.assumptions import Assumed
from memcurse_cli.recurrences.dense_layer import dense_recurrence
from memcurse_cli.recurrences.family import Assumption, Match, ReadOptions
from memcurse_cli.recurrences.liquid import ELAPSED
from memcurse_cli.recurrences.reading import group_by_module, read_real, require_finite, sigmoid
from memcurse_cli.recurrences.recurrence import Floats, Recurrence

MODE = Assumption(
    key="cfc_mode",
    default="default",
    choices=("default", "no_gate"),
    meaning="whether a CfC mixes its two heads by its gate, or adds the gated one",
)
BACKBONE_ACTIVATION = Assumption(
    key="backbone_activation",
    default="lecun_tanh",
    choices=("lecun_tanh", "tanh", "relu", "silu", "gelu"),
    meaning="the activation of the backbone of a CfC",
)
MOST_LAYERS = 32
HEADS = ("ff1", "ff2", "time_a", "time_b")
PURE = ("w_tau", "A")
MASK = "sparsity_mask"
_BACKBONE = tuple(f"backbone.{index}" for index in range(MOST_LAYERS))
JACOBIAN = (
    "A is the Jacobian of one step at zero input and zero state; sensitivities are those of its "
    "entries, not of the stored weights"
)

Slope = Callable[[Floats], tuple[Floats, Floats]]


class CfC:
    """``h' = (1 - t) tanh(f) + t tanh(g)``, ``t = σ(a Δ + b)``, all four of z(x, h): A = ∂h'/∂h.

    z is a backbone of [x, h], or [x, h] itself. In the pure mode
    ``h' = A - A e^{-(|w_tau| + |f|) Δ} f``.
    """

    name = "liquid_cfc"
    title = "CfC (closed-form continuous-time network)"
    recognised_by = (
        "ff1, ff2, time_a, time_b (H, units) beside a backbone of x and h; or w_tau and A"
    )
    equation = "λ = eig(∂h'/∂h) at x = 0, h = 0"
    source = "ncps.torch.CfCCell; Hasani et al. 2022, arXiv 2106.13898"
    assumptions: tuple[Assumption, ...] = (MODE, BACKBONE_ACTIVATION, ELAPSED)

    def find(self, tensors: Mapping[str, TensorSpec]) -> list[Match]:
        """Modules with the heads of a cell, and a backbone that leads to them."""
        roles = [f"{one}.{part}" for one in (*HEADS, *_BACKBONE) for part in ("weight", "bias")]
        found = []
        for module, names in group_by_module(tensors, (*roles, *PURE, MASK)).items():
            heads = HEADS[:1] if PURE[0] in names else HEADS
            needed = {f"{head}.{part}" for head in heads for part in ("weight", "bias")}
            needed |= {*PURE} if PURE[0] in names else set()
            if needed <= names.keys() and _fits(
                {role: tensors[name].shape for role, name in names.items()}, heads
            ):
                found.append(Match(module or self.name, names))
        return found

    def read(self, store: TensorStore, match: Match, options: ReadOptions) -> Recurrence:
        """Read every weight, and decompose the Jacobian that they have at zero.

        Raises:
            TensorError: NaN or inf, or shapes that do not fit together.
        """
        assumed = Assumed(options)
        elapsed = float(assumed.choose(ELAPSED))
        tensor = match.tensors["ff1.weight"]
        size = store.tensors[tensor].shape[0]
        shown, slope = _backbone(store, match, assumed)
        heads = {
            head: _head(store, match, head, shown, slope)
            for head in HEADS
            if f"{head}.weight" in match.tensors
        }
        if PURE[0] in match.tensors:
            jacobian = _pure(store, match, heads["ff1"], elapsed)
        else:
            jacobian = _gated(heads, elapsed, assumed.choose(MODE) == "no_gate")
        require_finite(jacobian, tensor, "the Jacobian of its step")
        return dense_recurrence(
            store,
            match,
            family=self.name,
            matrix=jacobian[:, -size:],
            tensor=tensor,
            activation="linear",
            device=options.device,
            readin=jacobian[:, :-size].astype(np.complex128),
            assumptions=(*assumed.sentences, JACOBIAN),
        )


def _fits(shapes: Mapping[str, tuple[int, ...]], heads: tuple[str, ...]) -> bool:
    weights = {shapes[f"{head}.weight"] for head in heads}
    if len(weights) != 1 or any(len(shape) != 2 or not shape[0] for shape in weights):
        return False
    ((size, width),) = weights
    layers = [shapes[f"{layer}.weight"] for layer in _BACKBONE if f"{layer}.weight" in shapes]
    for layer in reversed(layers):
        if len(layer) != 2 or layer[0] != width:
            return False
        width = layer[1]
    return width > size


def _backbone(store: TensorStore, match: Match, assumed: Assumed) -> tuple[Floats, Floats]:
    """z at x = 0 and h = 0, and its Jacobian by [x, h]."""
    layers = [layer for layer in _BACKBONE if f"{layer}.weight" in match.tensors]
    first = match.tensors[f"{layers[0] if layers else 'ff1'}.weight"]
    width = store.tensors[first].shape[1]
    shown, slope = np.zeros(width), np.eye(width)
    activation = _ACTIVATIONS[assumed.choose(BACKBONE_ACTIVATION)] if layers else None
    for layer in layers:
        inner, moved = _head(store, match, layer, shown, slope)
        assert activation is not None
        shown, rate = activation(inner)
        slope = rate[:, None] * moved
    return shown, slope


def _head(
    store: TensorStore, match: Match, role: str, shown: Floats, slope: Floats
) -> tuple[Floats, Floats]:
    """A linear's value and its Jacobian by [x, h]."""
    weight = read_real(store, match.tensors[f"{role}.weight"], (None, shown.size))
    if MASK in match.tensors and role in ("ff1", "ff2"):
        weight = weight * read_real(store, match.tensors[MASK], weight.shape)
    bias = np.zeros(len(weight))
    if f"{role}.bias" in match.tensors:
        bias = read_real(store, match.tensors[f"{role}.bias"], (len(weight),))
    return weight @ shown + bias, weight @ slope


def _gated(heads: Mapping[str, tuple[Floats, Floats]], elapsed: float, added: bool) -> Floats:
    """∂h'/∂[x, h] of ``f (1 - t) + g t``, or of ``f + g t``."""
    (first, second), slopes = zip(*(_tanh(heads[head][0]) for head in ("ff1", "ff2")), strict=True)
    by_first, by_second = (
        slope[:, None] * heads[head][1] for head, slope in zip(("ff1", "ff2"), slopes, strict=True)
    )
    opening = heads["time_a"][0] * elapsed + heads["time_b"][0]
    moved = heads["time_a"][1] * elapsed + heads["time_b"][1]
    gate, rate = sigmoid(opening), sigmoid(opening) * sigmoid(-opening)
    kept = np.ones_like(gate) if added else 1 - gate
    mixed = second if added else second - first
    by_gate = (mixed * rate)[:, None] * moved
    jacobian: Floats = kept[:, None] * by_first + gate[:, None] * by_second + by_gate
    return jacobian


def _pure(store: TensorStore, match: Match, head: tuple[Floats, Floats], elapsed: float) -> Floats:
    """∂h'/∂[x, h] of ``A - A e^{-(|w_tau| + |f|) Δ} f``."""
    value, slope = head
    rate, level = (read_real(store, match.tensors[role], (1, value.size))[0] for role in PURE)
    decayed = np.exp(-elapsed * (np.abs(rate) + np.abs(value)))
    moved: Floats = (-level * decayed * (1 - elapsed * np.abs(value)))[:, None] * slope
    return moved


def _tanh(x: Floats) -> tuple[Floats, Floats]:
    bent = np.tanh(x)
    return bent, 1 - bent**2


def _lecun(x: Floats) -> tuple[Floats, Floats]:
    bent, slope = _tanh(0.666 * x)
    return 1.7159 * bent, 1.7159 * 0.666 * slope


def _relu(x: Floats) -> tuple[Floats, Floats]:
    return np.maximum(x, 0.0), (x > 0).astype(np.float64)


def _silu(x: Floats) -> tuple[Floats, Floats]:
    opened = sigmoid(x)
    return x * opened, opened + x * opened * sigmoid(-x)


def _gelu(x: Floats) -> tuple[Floats, Floats]:
    below = np.array([0.5 * math.erfc(-value / math.sqrt(2)) for value in x])
    return x * below, below + x * np.exp(-(x**2) / 2) / math.sqrt(2 * math.pi)


_ACTIVATIONS: dict[str, Slope] = {
    "lecun_tanh": _lecun,
    "tanh": _tanh,
    "relu": _relu,
    "silu": _silu,
    "gelu": _gelu,
}
