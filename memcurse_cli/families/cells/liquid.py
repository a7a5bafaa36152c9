"""The liquid networks of the ncps package: the time-constant cell and the closed-form one.

The LSTM that the mixed memory of both adds is a plain one under other names.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from memcurse_cli.families.cells.gated_layer import step_jacobian
from memcurse_cli.families.cells.layout import CellFamily, Variant, stacked
from memcurse_cli.families.dense.dense_layer import dense_layer
from memcurse_cli.families.family import Assumption, Family, Layer, Shapes
from memcurse_cli.families.family import Layout as TensorLayout
from memcurse_cli.families.gate_inputs import NoDrive
from memcurse_cli.families.reading import LARGEST_DECAY, misfit, require_finite
from memcurse_cli.families.recurrence import Floats, ParameterGroup, Recurrence
from memcurse_cli.theory.duals import Dual, exp, relu, sigmoid, tanh, through
from memcurse_cli.theory.gates.laws import softplus

CONSTRAINTS = Assumption(
    key="implicit_constraints",
    default="yes",
    choices=("yes", "no"),
    meaning="whether an LTC keeps its conductances positive by a softplus, or stores them so",
)
UNFOLDS = Assumption(
    "ode_unfolds", "6", (), "the steps of an LTC's solver in one step of the network"
)
ELAPSED = Assumption("elapsed_time", "1", (), "the time that a step of a liquid network takes")
EPSILON = 1e-8  # the default of ncps, added to every denominator
LEAKS = ("cm", "gleak")
SYNAPSES = ("w", "mu", "sigma")
MASK = "sparsity_mask"
SENSORY = "sensory_"
_CONDUCTANCES = NoDrive(
    "its λ follows a sum of conductances that each have a gate of their own, not one pre-activation"
)


def _is_ltc(shapes: Shapes) -> bool:
    size, square, sensory = (shapes[role] for role in ("cm", "w", f"{SENSORY}w"))
    return len(size) == 1 and square == size * 2 and sensory[1:] == size


class LTC(Family):
    """``v' = (c v + N) / (c + G)``, six times in a step: λ = (c / (c + G))⁶, G frozen at v = 0.

    ``c = cm unfolds / elapsed_time``, ``G = gleak + Σ_j w_j σ(sigma_j (v_j - mu_j))`` over neurons
    and inputs, and N is what the leak and the synapses drive the neuron to. The conductances stand
    at zero input and zero state, like the gates of an LSTM; what flows through them is not in λ.
    """

    name = "liquid_ltc"
    title = "LTC (liquid time-constant network)"
    recognised_by = "gleak, vleak, cm (H) beside w, mu, sigma (H, H) and sensory_w (inputs, H)"
    equation = "λ = (c / (c + G))⁶, c = 6 cm, G = gleak + Σ w σ(-sigma mu), γ = (1 - λ) / G"
    source = "ncps.torch.LTCCell; Hasani et al. 2021, arXiv 2006.04439"
    assumptions = (CONSTRAINTS, UNFOLDS, ELAPSED)
    layouts = (
        TensorLayout(
            (*LEAKS, "vleak", *SYNAPSES, *(f"{SENSORY}{name}" for name in SYNAPSES)),
            optional=(MASK, f"{SENSORY}{MASK}", "input_b"),
            fits=_is_ltc,
        ),
    )

    def _recurrence(self, layer: Layer) -> Recurrence:
        implicit = layer.choose(CONSTRAINTS) == "yes"
        unfolds, elapsed = (layer.positive(one) for one in (UNFOLDS, ELAPSED))
        (size,) = layer.shape("cm")
        stored: dict[str, Floats] = {}

        def read(role: str, shape: tuple[int, ...]) -> Dual:
            values = stored[role] = layer.real(role, shape)
            return Dual(values, {role: np.ones(shape)})

        def conductance(role: str, shape: tuple[int, ...]) -> Dual:
            value = read(role, shape)
            return through(value, lambda x: (softplus(x), sigmoid(x))) if implicit else value

        capacity, leak = (conductance(role, (size,)) for role in LEAKS)
        # What an input of zero becomes before the synapses.
        shown = np.zeros(layer.shape(f"{SENSORY}w")[0])
        if "input_b" in layer.names:
            shown = layer.real("input_b", shown.shape)
        capacity, leak = capacity * (unfolds / elapsed), leak + EPSILON
        for side, seen in (("", np.zeros(size)), (SENSORY, shown)):
            shape = layer.shape(f"{side}w")
            strength = conductance(f"{side}w", shape)
            middle, steepness = (read(f"{side}{name}", shape) for name in SYNAPSES[1:])
            if f"{side}{MASK}" in layer.names:
                strength = strength * layer.real(f"{side}{MASK}", shape)
            flowing = strength * sigmoid(steepness * (seen[:, None] - middle))
            # G is their sum, and each moves it by itself.
            leak = leak + Dual(flowing.value.sum(axis=0), flowing.tangents)
        for what, role, found in (("capacity", "cm", capacity), ("leak", "gleak", leak)):
            if not (np.isfinite(found.value).all() and (found.value > np.finfo(float).tiny).all()):
                remedy = "say how they are kept positive with --assume implicit_constraints="
                where = layer.names[role]
                raise misfit(f"a neuron whose {what} is not positive", where, remedy)
        ratio, whole = leak.value / capacity.value, leak.value + capacity.value
        log_eigenvalues = -np.minimum(unfolds * np.log1p(ratio), LARGEST_DECAY)
        value, kept = np.exp(log_eigenvalues), -np.expm1(log_eigenvalues)

        def group(role: str) -> ParameterGroup:
            """Scalars (H,) or (sources, H); γ = (1 - λ) / G, the state per unit of the current."""
            by_leak = leak.tangents.get(role, 0.0)
            relative = (by_leak - ratio * capacity.tangents.get(role, 0.0)) / whole
            moved = -value * unfolds * relative
            by_gain = -moved / kept - by_leak / leak.value
            return layer.group(role, stored[role], moved, by_gain, eigenvalue=np.arange(size))

        return layer.recurrence(
            log_eigenvalues,
            [group(role) for role in stored],
            log_gain=np.log(kept) - np.log(leak.value),
            input_dependent=True,
            stable_by_construction=implicit,
            hidden_feedback=True,
            gate=_CONDUCTANCES if layer.options.gates else None,
        )


# c' = σ(f + 1) c + σ(i) tanh(z)
LIQUID_LSTM = CellFamily(
    name="liquid_lstm",
    title="LSTM of ncps (mixed memory)",
    recognised_by="recurrent_map.weight (4H, H) beside input_map.weight and input_map.bias (4H)",
    equation="λ = σ(b_f + 1), γ = σ(b_i), rows z, i, f, o",
    source="ncps.torch.LSTMCell; Gers et al. 2000",
    layouts=(
        stacked(
            ("cell", "input", "forget", "output"),
            *("input_map.weight", "recurrent_map.weight", "input_map.bias"),
            columns=False,
            whole=True,
        ),
    ),
    variant=lambda _: Variant(added={"forget": 1.0}),
)


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
HEADS = ("ff1", "ff2", "time_a", "time_b")
PURE = ("w_tau", "A")
_PARTS = ("weight", "bias")
_BACKBONE = tuple(f"backbone.{index}" for index in range(32))
JACOBIAN = (
    "A is the Jacobian of one step at zero input and zero state; sensitivities are those of its "
    "entries, not of the stored weights"
)


def _fits(shapes: Shapes, heads: tuple[str, ...]) -> bool:
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


class CfC(Family):
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
    assumptions = (MODE, BACKBONE_ACTIVATION, ELAPSED)
    layouts = tuple(
        TensorLayout(
            (*own, *(f"{head}.{part}" for head in heads for part in _PARTS)),
            optional=(*(f"{layer}.{part}" for layer in _BACKBONE for part in _PARTS), MASK),
            without=others,
            fits=partial(_fits, heads=heads),
        )
        for own, others, heads in ((PURE, (), HEADS[:1]), ((), PURE[:1], HEADS))
    )

    def _recurrence(self, layer: Layer) -> Recurrence:
        elapsed = float(layer.choose(ELAPSED))
        backbone = [each for each in _BACKBONE if f"{each}.weight" in layer.names]

        def linear(role: str, x: Any) -> Any:
            weight = layer.real(f"{role}.weight", (None, x.value.size))
            if MASK in layer.names and role in ("ff1", "ff2"):
                weight = weight * layer.real(MASK, weight.shape)
            seen = x @ weight.T
            if f"{role}.bias" in layer.names:
                seen = seen + layer.real(f"{role}.bias", (len(weight),))
            return seen

        def step(z: Any) -> Any:
            if backbone:
                activation = _ACTIVATIONS[layer.choose(BACKBONE_ACTIVATION)]
            for each in backbone:
                z = activation(linear(each, z))
            f = linear("ff1", z)
            if PURE[0] in layer.names:
                # h' = A - A e^{-(|w_tau| + |f|) Δ} f
                rate, level = (layer.real(role, (1, f.value.size))[0] for role in PURE)
                return -level * exp(-elapsed * (np.abs(rate) + f * np.sign(f.value))) * f
            # h' = f (1 - t) + g t, or f + g t
            f, g = tanh(f), tanh(linear("ff2", z))
            t = sigmoid(linear("time_a", z) * elapsed + linear("time_b", z))
            return f + t * (g if layer.choose(MODE) == "no_gate" else g - f)

        size, width = layer.shape("ff1.weight")
        if backbone:
            width = layer.shape(f"{backbone[0]}.weight")[1]
        jacobian = step_jacobian(step, width)
        require_finite(jacobian, layer.names["ff1.weight"], "the Jacobian of its step")
        matrix, readin = jacobian[:, -size:], jacobian[:, :-size]
        return dense_layer(layer, "ff1.weight", matrix, readin=readin, also=(JACOBIAN,))


def _gelu(z: Floats) -> tuple[Floats, Floats]:
    """z Φ(z) and its slope."""
    below = np.array([0.5 * math.erfc(-value / math.sqrt(2)) for value in z])
    return z * below, below + z * np.exp(-(z**2) / 2) / math.sqrt(2 * math.pi)


_ACTIVATIONS: dict[str, Callable[[Any], Any]] = {
    "lecun_tanh": lambda x: 1.7159 * tanh(0.666 * x),
    "tanh": tanh,
    "relu": relu,
    "silu": lambda x: x * sigmoid(x),
    "gelu": lambda x: through(x, _gelu),
}
