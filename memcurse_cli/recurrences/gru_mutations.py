"""The mutations of the GRU that Jozefowicz et al. 2015 found, stored in a GRU's shapes."""

from __future__ import annotations

from memcurse_cli.checkpoints.store import TensorStore
from memcurse_cli.recurrences.coupled_gate import coupled_recurrence
from memcurse_cli.recurrences.family import Match, ReadOptions
from memcurse_cli.recurrences.gate_drive import GateInput, HiddenState, NoDrive
from memcurse_cli.recurrences.gated_cells import gru_spectra
from memcurse_cli.recurrences.recurrence import HiddenSpectra, Recurrence
from memcurse_cli.recurrences.torch_names import (
    read_gate_biases,
    read_gate_norms,
    read_gate_weights,
    weight_rows,
)

GATES = ("update", "reset", "new")
BENT = "mut3"

_BENT_STATE = NoDrive(
    "its update gate sees tanh(h), and how large that is does not follow from how large h is"
)


def mutated_recurrence(
    store: TensorStore,
    match: Match,
    options: ReadOptions,
    *,
    family: str,
    cell: str,
    assumptions: tuple[str, ...],
) -> Recurrence:
    """``h[t+1] = σ(z) tanh(n) + (1 - σ(z)) h[t]``: λ = 1 - σ(b_z), γ = σ(b_z), rows z, r, n.

    ``n = W_n x + U_n (σ(r) ∘ h) + b_n``. MUT3's z sees tanh(h) where MUT2's sees h, which have the
    same slope at h = 0.

    Args:
        store: the open checkpoint.
        match: the layer, as a GRU's.
        options: what to read beside the biases.
        family: the name of the family that reads it.
        cell: ``mut2`` or ``mut3``.
        assumptions: what was assumed, one sentence each.

    Raises:
        TensorError: NaN or inf in what is read, or a bias of another size than 3H.
    """
    biases = read_gate_biases(store, match, GATES, weight_rows(store, match) // len(GATES))
    totals = {gate: bias.total for gate, bias in biases.items()}
    hidden = inputs = state = None
    if options.spectra:
        weights = read_gate_weights(store, match, GATES)
        # A GRU whose update gate is 1 - z.
        found = gru_spectra(
            weights | {"update": -weights["update"]},
            totals | {"update": -totals["update"]},
            None,
            options.device,
        )
        gates = {**found.gates, "update": -found.gates["update"]}
        hidden = HiddenSpectra(gates, found.jacobian, found.reason)
    if options.gates:
        norms = read_gate_norms(store, match, GATES)
        if norms is not None:
            seen = {gate: GateInput(totals[gate], norm) for gate, norm in norms.items()}
            inputs, state = seen["update"], HiddenState(seen["new"], reset=seen["reset"])
    return coupled_recurrence(
        match,
        family=family,
        gate="update",
        bias=biases["update"],
        keeps=False,
        hidden_feedback=True,
        hidden=hidden,
        assumptions=assumptions,
        inputs=_BENT_STATE if cell == BENT and inputs is not None else inputs,
        state=state,
    )
