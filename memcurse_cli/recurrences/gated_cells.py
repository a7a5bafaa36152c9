"""What an LSTM and a GRU remember through their hidden weights, whatever library stored them.

Everything stands at zero input and zero state. The Jacobian is that of one step of the whole
state, so it holds the memory that λ = σ(b) leaves out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np

from memcurse_cli.recurrences.reading import sigmoid
from memcurse_cli.recurrences.recurrence import Floats, HiddenSpectra
from memcurse_cli.spectra.eigendecomposition import eigenvalues
from memcurse_cli.theory.gated_network import GatedNetwork

LARGEST_JACOBIAN = 1024
"""The order above which the Jacobian is left out: that of an LSTM of 512 units."""


def jacobian_beyond(order: int) -> str | None:
    """Why a Jacobian of this order is not taken, or None where it is."""
    if order <= LARGEST_JACOBIAN:
        return None
    return f"a Jacobian of order {order} is above {LARGEST_JACOBIAN} and is not taken"


def lstm_spectra(
    weights: Mapping[str, Floats],
    biases: Mapping[str, Floats],
    projection: Floats | None = None,
    device: str = "auto",
    peepholes: Mapping[str, Floats] | None = None,
    inputs: Mapping[str, Floats] | None = None,
) -> HiddenSpectra:
    """The spectra of an LSTM's gates and of its step.

    Args:
        weights: as of `lstm_jacobian`, like the biases, the projection and the peepholes.
        biases: of each gate.
        projection: of the state, or None.
        device: for the eigendecompositions.
        peepholes: of the gates that have some.
        inputs: (H, inputs) of each gate where they are known, for the network as a whole.
    """
    size = biases["forget"].size
    outputs = size if projection is None else projection.shape[0]
    found = _spectra(
        {} if projection is not None else weights,
        lambda: lstm_jacobian(weights, biases, projection, peepholes),
        size + outputs,
        device,
    )
    if inputs is None or projection is not None or peepholes:
        return found
    return replace(found, network=GatedNetwork(weights, inputs, biases))


def gru_spectra(
    weights: Mapping[str, Floats],
    biases: Mapping[str, Floats],
    inner_bias: Floats | None,
    device: str = "auto",
    inputs: Mapping[str, Floats] | None = None,
) -> HiddenSpectra:
    """The spectra of a GRU's gates and of its step.

    Args:
        weights: as of `gru_jacobian`, like the biases.
        biases: of each gate.
        inner_bias: of the candidate.
        device: for the eigendecompositions.
        inputs: (H, inputs) of each gate where they are known, for the network as a whole.
    """
    found = _spectra(
        weights, lambda: gru_jacobian(weights, biases, inner_bias), biases["update"].size, device
    )
    if inputs is None:
        return found
    return replace(found, network=GatedNetwork(weights, inputs, biases, inner_bias))


def lstm_jacobian(
    weights: Mapping[str, Floats],
    biases: Mapping[str, Floats],
    projection: Floats | None = None,
    peepholes: Mapping[str, Floats] | None = None,
) -> Floats:
    """d(h', c')/d(h, c) at zero input, h = 0 and c = 0, by the chain rule.

    ``c' = σ(f) c + σ(i) tanh(g)``, ``h' = R σ(o) tanh(c')``, and every gate is ``W h + b``, plus
    ``p c`` for the input gate and ``p c'`` for the output gate where there are peepholes.

    Args:
        weights: (H, P) W of the gates input, forget, cell and output, row = target.
        biases: (H,) b of each gate, summed over the tensors that hold it.
        projection: (P, H) R, or None for the identity.
        peepholes: (H,) p of the gates input and output, as far as they are there.

    Returns:
        (P + H, P + H), h before c.
    """
    seen = {"input": 0.0, "output": 0.0} | dict(peepholes or {})
    opened, forget = sigmoid(biases["input"]), sigmoid(biases["forget"])
    candidate = np.tanh(biases["cell"])
    written = opened * candidate
    bent = np.tanh(written)
    shown = biases["output"] + seen["output"] * written
    output, turned = sigmoid(shown), sigmoid(shown) * sigmoid(-shown) * bent
    slope = output * (1 - bent**2) + seen["output"] * turned
    # The forget gate's own weights and peephole multiply c = 0.
    turned_input = opened * sigmoid(-biases["input"]) * candidate
    cell_by_cell = forget + seen["input"] * turned_input
    cell_by_state = _scaled(turned_input, weights["input"])
    cell_by_state += _scaled(opened * (1 - candidate**2), weights["cell"])
    state_by_state = _scaled(slope, cell_by_state)
    state_by_state += _scaled(turned, weights["output"])
    state_by_cell = np.diag(slope * cell_by_cell)
    if projection is not None:
        state_by_state, state_by_cell = projection @ state_by_state, projection @ state_by_cell
    return np.block([[state_by_state, state_by_cell], [cell_by_state, np.diag(cell_by_cell)]])


def gru_jacobian(
    weights: Mapping[str, Floats], biases: Mapping[str, Floats], inner_bias: Floats | None
) -> Floats:
    """dh'/dh at zero input and h = 0, by the chain rule.

    ``h' = σ(z) h + (1 - σ(z)) tanh(n)`` with ``n = b_n + σ(r) (W_n h + b_inner)``, or, where the
    reset gate acts before the matrix, ``n = b_n + W_n (σ(r) h)``.

    Args:
        weights: (H, H) W of the gates reset and update and of the candidate new, row = target.
        biases: (H,) b of the gates, summed over the tensors that hold it, and b_n of ``new``.
        inner_bias: (H,) b_inner, zeros where there is none; None where the reset gate acts before
            the matrix.
    """
    reset, update = sigmoid(biases["reset"]), sigmoid(biases["update"])
    closed = sigmoid(-biases["update"])
    if inner_bias is None:
        candidate = np.tanh(biases["new"])
        inside = weights["new"] * reset
    else:
        candidate = np.tanh(biases["new"] + reset * inner_bias)
        inside = _scaled(reset, weights["new"])
        inside += _scaled(reset * sigmoid(-biases["reset"]) * inner_bias, weights["reset"])
    jacobian = _scaled(closed * (1 - candidate**2), inside)
    jacobian -= _scaled(update * closed * candidate, weights["update"])
    return jacobian + np.diag(update)


def _scaled(factor: Floats, matrix: Floats) -> Floats:
    """diag(factor) matrix."""
    return factor[:, None] * matrix


def _spectra(
    weights: Mapping[str, Floats], jacobian: Callable[[], Floats], order: int, device: str
) -> HiddenSpectra:
    reasons = []
    if not weights:
        reasons.append("the gates' hidden matrices are not square and have no eigenvalues")
    if order > LARGEST_JACOBIAN:
        reasons.append(
            f"a Jacobian of order {order} costs more than all gates, so those above "
            f"{LARGEST_JACOBIAN} are not taken"
        )
    return HiddenSpectra(
        gates={gate: eigenvalues(matrix, device) for gate, matrix in weights.items()},
        jacobian=eigenvalues(jacobian(), device) if order <= LARGEST_JACOBIAN else None,
        reason="; ".join(reasons) or None,
    )
