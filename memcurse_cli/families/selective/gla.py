"""Linear attention whose state a gate decays: GLA, arXiv 2312.06635, and its relatives; HGRN."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from memcurse_cli.checkpoints.store import TensorSpec
from memcurse_cli.errors import TensorError, UsageError
from memcurse_cli.families.family import Assumption
from memcurse_cli.families.reading import read_real, shown_shape
from memcurse_cli.families.recurrence import Recurrence
from memcurse_cli.families.selective.law import NUMBERED, LawFamily, Layer, Layout, Seen, Slot
from memcurse_cli.theory.gates.laws import Bounded, Root, Write

GATE_LOGIT_NORMALIZER = Assumption(
    key="gate_logit_normalizer",
    default="16",
    choices=(),
    meaning="τ of gated linear attention's λ = σ(b)^(1/τ); gated slot attention has 8",
)

_KEY, _VALUE, _OUTPUT_GATE = "k_proj.weight", "v_proj.weight", "g_proj.weight"
# HGRN, gated delta nets, Raven and forgetting attention have an f_proj too.
_OTHERS = (
    "i_proj.weight",
    "A_log",
    "r_proj.weight",
    "r_proj.0.weight",
    "q_norm.weight",
    "f_proj.bias",
)


class _Gate(NamedTuple):
    """How a layer stores its gate: the bias, where it has one, and the projections.

    ``normalizer`` is the library's default of τ, or None where λ = σ(b); ``write`` the bias of a
    factor of γ, beside its weight.
    """

    layout: Layout
    bias: str | None
    projections: tuple[str, ...]
    normalizer: str | None = "16"
    write: str | None = None


_GATES = (
    _Gate(
        Layout(("gk_proj.0.weight", "gk_proj.1.bias")),
        "gk_proj.1.bias",
        ("gk_proj.1.weight", "gk_proj.0.weight"),
    ),
    # Simple GLA, one λ per head.
    _Gate(
        Layout(("gk_proj.weight", "gk_proj.bias", "q_proj.weight", _OUTPUT_GATE)),
        "gk_proj.bias",
        ("gk_proj.weight",),
    ),
    # MesaNet, whose two states the gates move alike.
    _Gate(
        Layout(
            ("lambda_params", "a_proj.bias", "b_proj.bias", "a_proj.weight", "b_proj.weight", _KEY),
            optional=(_VALUE,),
        ),
        "a_proj.bias",
        ("a_proj.weight",),
        None,
        "b_proj.bias",
    ),
    # Gated slot attention, whose gate has no bias.
    _Gate(
        Layout(
            ("f_proj.weight", "q_proj.weight", _KEY, _VALUE, "o_proj.weight", "g_norm.weight"),
            without=_OTHERS,
        ),
        None,
        ("f_proj.weight",),
        "8",
    ),
)

_SLOTS = (
    "the gate has no bias: at zero input λ = 2^(-1/τ); every λ drives a slot of keys and one of"
    " values, whose widths are not counted"
)


class GLA(LawFamily):
    """``S[t] = diag(λ) S[t-1] + k vᵀ``, ``log λ = log σ(b)/τ``, ``dλ/db = λ σ(-b)/τ``, γ = 1.

    One λ per key channel, or per head in simple GLA and MesaNet (arXiv 2506.05233), where τ = 1
    and γ = σ(b_proj.bias). In gated slot attention (arXiv 2409.07146) a λ of every slot keeps its
    key and its value, and what is written is γ = 1 - λ. The gate stands at zero input.
    """

    name = "gla"
    title = "GLA (gated linear attention)"
    recognised_by = (
        "gk_proj.0.weight and gk_proj.1.bias; gk_proj.bias beside g_proj; lambda_params beside"
        " a_proj and b_proj; or f_proj beside q_proj, k_proj, v_proj and g_norm, without i_proj"
    )
    equation = "λ = σ(gk_proj.1.bias)^(1/16), γ = 1"
    source = "flash-linear-attention; Yang et al. 2023, arXiv 2312.06635"
    assumptions = (GATE_LOGIT_NORMALIZER,)
    layouts = tuple(gate.layout for gate in _GATES)

    def _recurrence(self, layer: Layer) -> Recurrence:
        gate = next(gate for gate in _GATES if layer.names.keys() >= set(gate.layout.required))
        normalizer = 1.0
        if gate.normalizer is not None:
            choice = layer.assumed.choose(GATE_LOGIT_NORMALIZER, default=gate.normalizer)
            normalizer = float(choice)
        if not 0 < normalizer < np.inf:
            raise UsageError(
                f"{normalizer:g} is not a value of {GATE_LOGIT_NORMALIZER.key}",
                where="--assume",
                remedy="give a positive number",
            )
        slots, write_at = [], None
        if gate.bias is None:
            bias = np.zeros(layer.stacked_rows(gate.projections[0]))
        else:
            bias = layer.vector(gate.bias)
            slots.append(Slot(gate.bias, bias, "gate"))
        if gate.write is not None:
            write_at = layer.vector(gate.write, bias.size)
            slots.append(Slot(gate.write, write_at, "strength"))

        def gates() -> Seen:
            role = gate.bias or gate.projections[0]
            seen = layer.gate_through(bias, role, [gate.projections])
            if write_at is None:
                return seen
            return seen, layer.projected(write_at, "b_proj.weight")

        return layer.recurrence(
            Root(1 / normalizer, coupled=gate.bias is None),
            bias,
            slots,
            gates=gates,
            write=None if gate.write is None else Write(parameter="strength"),
            write_at=write_at,
            multiplicity=_states(layer, bias.size),
            assumptions=() if slots else (_SLOTS,),
        )


def _states(layer: Layer, heads: int) -> int:
    """What a λ of a whole head drives: keys × values, and keys × keys in MesaNet."""
    if _OUTPUT_GATE in layer.names:
        return layer.rows_per(heads, "q_proj.weight") * layer.rows_per(heads, _OUTPUT_GATE)
    if "lambda_params" in layer.names:
        keys = layer.rows_per(heads, _KEY)
        return keys * (keys + layer.rows_per(heads, _VALUE))
    return 1


_BOUNDS = "lower_bounds"

_WITHOUT_BIAS = (
    "the forget gate has no bias: at zero input it stands halfway between its lower bound and 1"
)
_UNBOUNDED = "its lower bound is 0, as in the first layer or without a tensor lower_bounds"
_EXPANDED = (
    "every λ drives one row of the matrix state; how many values a row has (expand_ratio) is not"
    " stored"
)


class HGRN(LawFamily):
    """``h[t] = λ h[t-1] + (1-λ) x[t]``, ``λ = β + (1-β) σ(0) = (1+β)/2``.

    The lower bound β of layer l is ``Σ_{0<m≤l} p_m`` with p the softmax over layers of the
    model's ``lower_bounds`` (layers, n): zero in the first layer. Every layer's row moves β:
    ``dβ_l/dω_k = p_k ([0<k≤l] - β_l)``, so that one scalar moves the λ of all layers; each layer
    reports its own share. HGRN2 has the same λ on the rows of a matrix state.
    """

    name = "hgrn"
    title = "HGRN and HGRN2"
    recognised_by = "f_proj.weight and i_proj.weight beside g_norm, with the model's lower_bounds"
    equation = "λ = (1 + β)/2, γ = 1 - λ, β = Σ_(0<m≤l) softmax(lower_bounds)_m"
    source = "flash-linear-attention; Qin et al., arXiv 2311.04823 and 2404.07904"
    layouts = (
        Layout(
            ("f_proj.weight", "i_proj.weight", "o_proj.weight", "g_norm.weight"),
            optional=("q_proj.weight",),
            without=(_KEY, _VALUE, "A_log"),
            fits=lambda shapes: len(shapes["f_proj.weight"]) == 2,
            numbered=True,
        ),
    )

    def _recurrence(self, layer: Layer) -> Recurrence:
        size, place = layer.stacked_rows("f_proj.weight"), layer.match.place
        sentences = [_WITHOUT_BIAS]
        slots: list[Slot] = []
        complement = np.ones(size)
        tensor = _bounds_of(layer.store.tensors, layer.match.layer) if place else None
        if tensor is None or place is None:
            sentences.append(_UNBOUNDED)
        else:
            bounds = read_real(layer.store, tensor, (None, size))
            if place >= len(bounds):
                raise TensorError(
                    f"its shape {shown_shape(bounds.shape)} has no row for layer {place}",
                    where=tensor,
                    remedy="use a checkpoint of the whole model",
                )
            share = np.exp(bounds - bounds.max(axis=0))
            # A share that underflows would have no logarithm.
            share = np.maximum(share / share.sum(axis=0), 1e-300)
            counted = np.zeros(bounds.shape)
            counted[1 : place + 1] = 1.0
            # 1 - β, summed without cancellation where β is close to 1.
            complement = np.sum(share * (1 - counted), axis=0)
            slope = share * np.where(counted > 0, complement, complement - 1)
            each = np.tile(np.arange(size), len(bounds))
            bound = Slot(_BOUNDS, bounds.ravel(), "bound", slope.ravel(), eigenvalue=each)
            slots.append(bound._replace(tensor=tensor))
        if "q_proj.weight" in layer.names:
            sentences.append(_EXPANDED)
        return layer.recurrence(
            Bounded(complement),
            np.zeros(size),
            slots,
            gates=lambda: layer.projected(np.zeros(size), "f_proj.weight"),
            tensors=(*layer.names.values(), *(slot.tensor for slot in slots)),
            assumptions=sentences,
        )


def _bounds_of(tensors: Mapping[str, TensorSpec], layer: str) -> str | None:
    """The lower bounds of the model that a layer is in, or None."""
    parts = NUMBERED.match(layer)
    model = "" if parts is None else parts["model"]
    names = [f"{model}{joint}{_BOUNDS}" for joint in ("./," if model else ("",))]
    return next((name for name in names if name in tensors), None)
