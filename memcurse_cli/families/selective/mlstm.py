"""The mLSTM of xLSTM, Beck et al. 2024, arXiv 2405.04517, in its block stack and at large."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from memcurse_cli.checkpoints.store import TensorSpec, TensorStore
from memcurse_cli.families.assumptions import Assumed
from memcurse_cli.families.family import Assumption, Match, ReadOptions
from memcurse_cli.families.gate_inputs import GateDrive
from memcurse_cli.families.gate_weights import projected_gate
from memcurse_cli.families.module_names import group_by_module
from memcurse_cli.families.projections import beside
from memcurse_cli.families.reading import (
    element_count,
    log_sigmoid,
    one_to_one,
    read_vector,
    rows_per,
    sigmoid,
)
from memcurse_cli.families.recurrence import Floats, Recurrence
from memcurse_cli.theory.gates.laws import LOGISTIC, CappedLogistic, Exponential, Keep, Write

GATE_SOFT_CAP = Assumption(
    key="gate_soft_cap",
    default="15",
    choices=(),
    meaning="c of the soft cap c tanh(b/c) on the gates of a large xLSTM; 0 for none",
    config_keys=("gate_soft_cap",),
)

_LARGE = ("igate_preact.bias", "fgate_preact.bias")
_FUSED = "ifgate_preact.bias"
_BLOCK = ("igate.bias", "fgate.bias", "fgate.weight", "outnorm.weight")
_SHAPES = ("k.weight", "v.weight", "qkv_opreact.weight", "out_proj.weight")

_Gate = tuple[str, str, Floats]


class MLSTM:
    """``C[t] = σ(f) C[t-1] + e^i v kᵀ``: λ = σ(b_f) and γ = e^{b_i}, one of each per head.

    The large model (transformers' xlstm and NX-AI's xlstm_large) passes both pre-activations
    through ``c tanh(b/c)``, whose slope is ``1 - tanh²(b/c)``; the block stack does not. The
    state is carried divided by e^m for its range, which cancels against the normaliser. Gates
    stand at zero input.
    """

    name = "mlstm"
    title = "mLSTM (xLSTM)"
    recognised_by = (
        "igate_preact.bias and fgate_preact.bias, or ifgate_preact.bias; or igate.bias, fgate.bias"
        " (heads) beside fgate.weight (heads, 3 D) and outnorm.weight (D)"
    )
    equation = "λ = σ(cap b_f), γ = e^(cap b_i); cap b = 15 tanh(b/15), or b in block stacks"
    source = "transformers and xlstm; Beck et al. 2024, arXiv 2405.04517"
    assumptions = (GATE_SOFT_CAP,)

    def find(self, tensors: Mapping[str, TensorSpec]) -> list[Match]:
        """Modules with both gates' biases under the names of the large model or the block stack."""
        matches = []
        roles = (*_LARGE, _FUSED, *_BLOCK, *_SHAPES)
        for module, names in group_by_module(tensors, roles).items():
            if names.keys() >= set(_BLOCK):
                weight, norm = (tensors[names[role]].shape for role in _BLOCK[2:])
                if len(weight) != 2 or len(norm) != 1 or weight[1] != 3 * norm[0]:
                    continue
            elif not (names.keys() >= set(_LARGE) or _FUSED in names):
                continue
            matches.append(Match(module or self.name, names))
        return matches

    def read(self, store: TensorStore, match: Match, options: ReadOptions) -> Recurrence:
        """Read the biases of the input and the forget gate.

        Raises:
            TensorError: NaN or inf, or biases of different sizes.
        """
        assumed = Assumed(options, store.config)
        (input_role, input_tensor, opened), (role, tensor, forget) = _read_gates(store, match)
        cap = None if "fgate.bias" in match.tensors else float(assumed.choose(GATE_SOFT_CAP))
        capped_forget, forget_slope = _soft_cap(forget, cap)
        capped_input, input_slope = _soft_cap(opened, cap)
        eigenvalue = sigmoid(capped_forget)
        return Recurrence(
            name=match.layer,
            family=self.name,
            tensors=tuple(dict.fromkeys((tensor, input_tensor))),
            log_eigenvalues=log_sigmoid(capped_forget).astype(np.complex128),
            log_gain=capped_input.astype(np.complex128),
            parameters=(
                one_to_one(
                    role,
                    tensor,
                    forget,
                    store.tensors[tensor].dtype,
                    eigenvalue * sigmoid(-capped_forget) * forget_slope,
                ),
                one_to_one(
                    input_role,
                    input_tensor,
                    opened,
                    store.tensors[input_tensor].dtype,
                    np.zeros(forget.size),
                    input_slope,
                ),
            ),
            multiplicity=_multiplicity(store, match.tensors, forget.size),
            input_dependent=True,
            stable_by_construction=True,
            assumptions=tuple(assumed.sentences),
            gate=(
                _drive(store, (role, tensor, forget), (input_role, input_tensor, opened), cap)
                if options.gates
                else None
            ),
        )


def _drive(store: TensorStore, forget: _Gate, opened: _Gate, cap: float | None) -> GateDrive | None:
    """The projections of both gates: of the input, or of queries, keys and values (block stack)."""
    block = forget[0] in _BLOCK
    gates = []
    for role, tensor, bias in (forget, opened):
        stored = role.split("[")[0]
        weight = beside(store, tensor, stored.replace("bias", "weight"), above=1)
        first = bias.size if role == f"{_FUSED}[forget]" else 0
        rows = slice(first, first + bias.size) if stored == _FUSED else None
        gates.append(projected_gate(store, bias, weight, rows=rows))
    if gates[0] is None or gates[1] is None:
        return None
    limit = cap if cap is not None and 0 < cap < np.inf else None
    return GateDrive(
        law=Keep(LOGISTIC if limit is None else CappedLogistic(limit)),
        gate=gates[0],
        write=Write(Exponential(limit)),
        write_gate=gates[1],
        motions={forget[0]: ("forget", 1.0), opened[0]: ("input", 1.0)},
        sees="the queries, keys and values" if block else "the layer's input",
    )


def _read_gates(store: TensorStore, match: Match) -> tuple[_Gate, _Gate]:
    """(role, tensor, values) of the input gate's bias and of the forget gate's.

    Raises:
        TensorError: NaN or inf, or sizes that do not fit together.
    """
    names = match.tensors
    if _FUSED in names:
        tensor = names[_FUSED]
        heads = element_count(store.tensors[tensor]) // 2
        both = read_vector(store, tensor, 2 * heads)
        return (
            (f"{_FUSED}[input]", tensor, both[:heads]),
            (f"{_FUSED}[forget]", tensor, both[heads:]),
        )
    input_role, role = _LARGE if _LARGE[0] in names else _BLOCK[:2]
    forget = read_vector(store, names[role])
    opened = read_vector(store, names[input_role], forget.size)
    return (input_role, names[input_role], opened), (role, names[role], forget)


def _soft_cap(preactivation: Floats, cap: float | None) -> tuple[Floats, Floats]:
    """``c tanh(b/c)`` and its slope; b and 1 without a cap."""
    if cap is None or not 0 < cap < np.inf:
        return preactivation, np.ones_like(preactivation)
    bent = np.tanh(preactivation / cap)
    return cap * bent, 1 - bent**2


def _multiplicity(store: TensorStore, names: Mapping[str, str], heads: int) -> int:
    """Key dimension × value dimension of a head, from the shapes of the projections."""
    if "outnorm.weight" in names:
        return rows_per(store, names["outnorm.weight"], heads) ** 2
    if "qkv_opreact.weight" in names and "out_proj.weight" in names:
        # Queries, keys, values and output gate in one projection, whose values out_proj reads.
        rows = rows_per(store, names["qkv_opreact.weight"], 1)
        values = store.tensors[names["out_proj.weight"]].shape[-1:]
        return max((rows // 2 - sum(values)) // heads * (sum(values) // heads), 1)
    return rows_per(store, names.get("k.weight"), heads) * rows_per(
        store, names.get("v.weight"), heads
    )
