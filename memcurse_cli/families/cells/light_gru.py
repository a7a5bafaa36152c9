"""The light GRU of Ravanelli et al. 2018, arXiv 1803.10225, as SpeechBrain stores it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from memcurse_cli.checkpoints.store import TensorSpec, TensorStore
from memcurse_cli.errors import TensorError, UsageError
from memcurse_cli.families.assumptions import Assumed
from memcurse_cli.families.cells.gated_layer import GateBias, coupled_recurrence
from memcurse_cli.families.family import Assumption, Match, ReadOptions
from memcurse_cli.families.gate_inputs import (
    GateInput,
    HiddenState,
    NoDrive,
    RowNorms,
    squared_rows,
)
from memcurse_cli.families.module_names import group_by_module
from memcurse_cli.families.reading import one_to_one, read_real, sigmoid
from memcurse_cli.families.recurrence import Floats, HiddenSpectra, Recurrence
from memcurse_cli.theory.gates.fixed_point import RELU
from memcurse_cli.theory.linalg.eigendecomposition import eigenvalues

EPSILON = Assumption(
    key="batch_norm_epsilon",
    default="1e-05",
    choices=(),
    meaning="ε beside the running variance of a light GRU's batch normalisation",
)
GATES = ("new", "update")
_ROLES = ("w.weight", "u.weight", "norm.weight", "norm.bias")
_RUNNING = ("norm.running_mean", "norm.running_var")
_STATE_BIAS = "layer_norm.bias"

_ACTIVATION = "the activation of its candidate is not stored"
_RELU = (
    "the state that gates see is that of a ReLU candidate, as by default, without the normalisation"
    " of U h that SLiGRU has and does not store"
)
_NORMALISED = NoDrive("a layer normalisation stands between the hidden state and its gates")


class LightGRU:
    """``h' = z h + (1-z) a(n)``, ``z = σ(N(W x)_z + U_z h)``: λ = σ(b_z), γ = 1 - λ.

    At zero input a batch normalisation N puts out ``b = β - s μ/√(v + ε)`` with its scale s, its
    bias β and its running mean μ and variance v; a layer normalisation puts out β. SLiGRU
    normalises U h as well, and its ``layer_norm.bias`` adds to b where there is one.
    """

    name = "light_gru"
    title = "Light GRU (SpeechBrain)"
    recognised_by = "w.weight (2H, inputs) and u.weight (2H, H) beside norm.weight and norm.bias"
    equation = "λ = σ(b_z), γ = 1 - λ, b = β - s μ/√(v + ε) + layer_norm.bias, rows n, z"
    source = "speechbrain.nnet.RNN.LiGRU and SLiGRU; Ravanelli et al. 2018, arXiv 1803.10225"
    assumptions: tuple[Assumption, ...] = (EPSILON,)

    def find(self, tensors: Mapping[str, TensorSpec]) -> list[Match]:
        """Modules with both stacked linears and their normalisation."""
        return [
            Match(module or self.name, names)
            for module, names in group_by_module(tensors, (*_ROLES, *_RUNNING, _STATE_BIAS)).items()
            if _fits({role: tensors[name].shape for role, name in names.items()})
        ]

    def read(self, store: TensorStore, match: Match, options: ReadOptions) -> Recurrence:
        """Read the normalisation, and the weights where what they do is asked for.

        Raises:
            TensorError: NaN or inf in what is read, or a running variance below 0.
            UsageError: ε is not positive.
        """
        names, assumed = match.tensors, Assumed(options)
        tensor = names["norm.bias"]
        batch = _RUNNING[0] in names
        rows = read_real(store, tensor, store.tensors[tensor].shape)
        parts = [("norm.bias", tensor, _update(rows), store.tensors[tensor].dtype)]
        shift = np.zeros(rows.size)
        normalised = _STATE_BIAS in names
        if normalised:
            added = names[_STATE_BIAS]
            shift = read_real(store, added, rows.shape)
            parts.append((_STATE_BIAS, added, _update(shift), store.tensors[added].dtype))
        scale = read_real(store, names["norm.weight"], rows.shape)
        share, width = np.zeros(rows.size), np.ones(rows.size)
        if batch:
            share, width = _running(store, names, float(assumed.choose(EPSILON)))
        totals = rows + scale * share + shift
        total = _update(totals)
        inputs: GateInput | NoDrive | None = _NORMALISED if normalised and options.gates else None
        state = None
        if options.gates and not normalised:
            seen = _inputs(store, names, totals, scale / width, normal=not batch)
            inputs, state = seen["update"], HiddenState(seen["new"], RELU)
        found = coupled_recurrence(
            match,
            family=self.name,
            gate="update",
            bias=GateBias(total, tuple(parts)),
            keeps=True,
            hidden_feedback=True,
            hidden=_spectra(store, names["u.weight"], options.device) if options.spectra else None,
            assumptions=(*assumed.sentences, *((_RELU,) if state else ())),
            inputs=inputs,
            state=state,
        )
        if not batch:
            return found
        kept, lost = sigmoid(total), sigmoid(-total)
        scaled = one_to_one(
            "norm.weight[update]",
            names["norm.weight"],
            _update(scale),
            store.tensors[names["norm.weight"]].dtype,
            kept * lost * _update(share),
            -kept * _update(share),
        )
        return replace(found, parameters=(*found.parameters, scaled))


def _fits(shapes: Mapping[str, tuple[int, ...]]) -> bool:
    """Whether there are (2H, inputs), (2H, H) and vectors of 2H."""
    if not shapes.keys() >= set(_ROLES) or (_RUNNING[0] in shapes) != (_RUNNING[1] in shapes):
        return False
    hidden = shapes["u.weight"]
    if len(hidden) != 2 or hidden[0] != 2 * hidden[1] or hidden[1] < 1:
        return False
    inputs = shapes["w.weight"]
    vectors = {shapes[role] for role in shapes.keys() - {"w.weight", "u.weight"}}
    return len(inputs) == 2 and inputs[0] == hidden[0] and vectors == {hidden[:1]}


def _update(rows: Floats) -> Floats:
    """The elements of the update gate, which come second."""
    return rows[rows.size // 2 :]


def _running(store: TensorStore, names: Mapping[str, str], epsilon: float) -> tuple[Floats, Floats]:
    """-μ/√(v + ε), and √(v + ε)."""
    if not 0 < epsilon < np.inf:
        raise UsageError(
            f"{epsilon:g} is not a value of {EPSILON.key}",
            where="--assume",
            remedy="give a positive number",
        )
    mean, variance = (
        read_real(store, names[role], store.tensors[names[role]].shape) for role in _RUNNING
    )
    if np.any(variance < 0):
        raise TensorError(
            "a running variance is below 0",
            where=names[_RUNNING[1]],
            remedy="export the layer again",
        )
    width: Floats = np.sqrt(variance + epsilon)
    return -mean / width, width


def _inputs(
    store: TensorStore, names: Mapping[str, str], totals: Floats, scale: Floats, *, normal: bool
) -> dict[str, GateInput]:
    """What W behind its normalisation and U show to the candidate and to the gate.

    A layer normalisation puts out ``s_i w_i / √(mean_j w_j²)``, whatever the scale of the input is.
    """
    inputs, hidden = (
        squared_rows(read_real(store, names[role], (totals.size, None)))
        for role in ("w.weight", "u.weight")
    )
    shown = scale**2 * inputs
    fixed = None
    if normal:
        fixed = shown / max(float(np.mean(inputs)), np.finfo(np.float64).tiny)
        shown = np.zeros(totals.size)
    halves = np.split(np.arange(totals.size), len(GATES))
    return {
        gate: GateInput(
            totals[of], RowNorms(shown[of], hidden[of]), None if fixed is None else fixed[of]
        )
        for gate, of in zip(GATES, halves, strict=True)
    }


def _spectra(store: TensorStore, tensor: str, device: str) -> HiddenSpectra:
    blocks = np.split(read_real(store, tensor, store.tensors[tensor].shape), len(GATES))
    found = {gate: eigenvalues(one, device) for gate, one in zip(GATES, blocks, strict=True)}
    return HiddenSpectra(found, None, _ACTIVATION)
