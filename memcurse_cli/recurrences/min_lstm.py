"""The minLSTM of Feng et al. 2024, arXiv 2410.01201."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from memcurse_cli.checkpoints.store import TensorSpec, TensorStore
from memcurse_cli.errors import TensorError
from memcurse_cli.recurrences.family import Assumption, Match, ReadOptions
from memcurse_cli.recurrences.gate_drive import TwoGateDrive
from memcurse_cli.recurrences.gated_layer import WITHOUT_BIAS
from memcurse_cli.recurrences.projected_gates import two_gates
from memcurse_cli.recurrences.reading import (
    group_by_module,
    log_sigmoid,
    one_to_one,
    sigmoid,
)
from memcurse_cli.recurrences.recurrence import Floats, Recurrence
from memcurse_cli.recurrences.vectors import read_vector, stacked_rows
from memcurse_cli.theory.two_gate_laws import Share

# minGRU-pytorch, whose rows are the candidate, the forget and the input gate; the paper's listing.
_FUSED = "to_hidden_and_f_i_gate"
_SEPARATE = ("linear_f", "linear_i")
_CANDIDATE = "linear_h"
# A layer with any of these is another LSTM.
_STRANGERS = tuple(f"linear_{gate}.weight" for gate in "ozrc")

_Gate = tuple[str, str, Floats]


class MinLSTM:
    """``h[t] = f/(f+i) h[t-1] + i/(f+i) x̃[t]`` with f = σ(b_f) and i = σ(b_i).

    With u = log i - log f: ``λ = σ(-u)`` and ``γ = 1 - λ = σ(u)``, so dλ/du = -λγ, d log γ/du = λ,
    du/db_f = -σ(-b_f) and du/db_i = σ(-b_i). Gates stand at zero input; without biases λ = 1/2.
    """

    name = "min_lstm"
    title = "minLSTM"
    recognised_by = (
        "to_hidden_and_f_i_gate.weight (3n, d); or linear_f.weight, linear_i.weight and"
        " linear_h.weight"
    )
    equation = "λ = f/(f+i), γ = i/(f+i), f = σ(b_f), i = σ(b_i)"
    source = "minGRU-pytorch; Feng et al. 2024, arXiv 2410.01201"
    assumptions: tuple[Assumption, ...] = ()

    def find(self, tensors: Mapping[str, TensorSpec]) -> list[Match]:
        """Modules with the fused projection, or with those of two gates and the candidate alone."""
        separate = tuple(f"{layer}.weight" for layer in (*_SEPARATE, _CANDIDATE))
        fused = f"{_FUSED}.weight"
        biases = tuple(f"{layer}.bias" for layer in (_FUSED, *_SEPARATE))
        matches = []
        roles = (fused, *separate, *biases, *_STRANGERS)
        for module, names in group_by_module(tensors, roles).items():
            apart = names.keys() >= set(separate) and not names.keys() & set(_STRANGERS)
            if apart and len({tensors[names[role]].shape for role in separate}) > 1:
                continue
            if fused in names or apart:
                matches.append(Match(module or self.name, names))
        return matches

    def read(self, store: TensorStore, match: Match, options: ReadOptions) -> Recurrence:
        """Read the gates' biases, if there are any; the weights only give the size.

        Raises:
            TensorError: NaN or inf, a bias that does not fit its weight, or one gate without.
        """
        size, gates = _read_gates(store, match)
        zero = np.zeros(size)
        forget, opened = (gate[2] for gate in gates) if gates else (zero, zero)
        balance = log_sigmoid(opened) - log_sigmoid(forget)
        eigenvalue, gain = sigmoid(-balance), sigmoid(balance)
        return Recurrence(
            name=match.layer,
            family=self.name,
            tensors=tuple(match.tensors.values()),
            log_eigenvalues=log_sigmoid(-balance).astype(np.complex128),
            log_gain=log_sigmoid(balance).astype(np.complex128),
            parameters=tuple(
                one_to_one(
                    role,
                    tensor,
                    values,
                    store.tensors[tensor].dtype,
                    -eigenvalue * gain * slope,
                    eigenvalue * slope,
                )
                for (role, tensor, values), slope in zip(
                    gates, (-sigmoid(-forget), sigmoid(-opened)), strict=False
                )
            ),
            input_dependent=True,
            stable_by_construction=True,
            assumptions=() if gates else (WITHOUT_BIAS,),
            gate=_drive(store, match, (forget, opened), gates) if options.gates else None,
        )


def _drive(
    store: TensorStore, match: Match, biases: tuple[Floats, Floats], gates: tuple[_Gate, ...]
) -> TwoGateDrive | None:
    """The rows of the forget and the input gate, which see the same input."""
    names, size, law = match.tensors, biases[0].size, Share()
    fused = names.get(f"{_FUSED}.weight")
    if fused is not None:
        found = two_gates(
            store, biases, (fused, fused), (slice(size, 2 * size), slice(2 * size, None))
        )
    else:
        forget, opened = (names[f"{layer}.weight"] for layer in _SEPARATE)
        found = two_gates(store, biases, (forget, opened))
    if found is None:
        return None
    return TwoGateDrive(
        law,
        *found,
        values=law,
        motions={
            role: (parameter, 1.0)
            for (role, _, _), parameter in zip(gates, (law.forget, law.opened), strict=False)
        },
    )


def _read_gates(store: TensorStore, match: Match) -> tuple[int, tuple[_Gate, ...]]:
    """The number of units, and (role, tensor, values) of the forget and the input gate's biases.

    Raises:
        TensorError: NaN or inf, a bias that does not fit its weight, or one gate without.
    """
    names = match.tensors
    fused = f"{_FUSED}.weight" in names
    weight = names[f"{_FUSED if fused else _SEPARATE[0]}.weight"]
    size = stacked_rows(store, weight, 3 if fused else 1)
    if fused:
        role = f"{_FUSED}.bias"
        if role not in names:
            return size, ()
        bias = read_vector(store, names[role], 3 * size)
        return size, (
            (f"{role}[forget]", names[role], bias[size : 2 * size]),
            (f"{role}[input]", names[role], bias[2 * size : 3 * size]),
        )
    present = [f"{layer}.bias" for layer in _SEPARATE if f"{layer}.bias" in names]
    if len(present) == 1:
        raise TensorError(
            "only one of the two gates has a bias",
            where=names[present[0]],
            remedy="name the right family with --family",
        )
    return size, tuple(
        (role, names[role], read_vector(store, names[role], size)) for role in present
    )
