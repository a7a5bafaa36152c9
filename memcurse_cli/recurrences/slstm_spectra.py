"""What an sLSTM remembers through its recurrent kernel, head by head.

The kernel is block-diagonal: a unit sees the state of its own head alone. Without the stabiliser,
which cancels, a step from (h, c, n) at zero input is

    c' = σ(f) c + e^i tanh(z),  n' = σ(f) n + e^i,  h' = σ(o) c' / n'

with every gate ``R h + b``. It is smooth at zero state, the start of a sequence, where n' = e^i.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from memcurse_cli.recurrences.gated_cells import LARGEST_JACOBIAN
from memcurse_cli.recurrences.reading import sigmoid
from memcurse_cli.recurrences.recurrence import Complexes, Floats, HiddenSpectra
from memcurse_cli.spectra.eigendecomposition import eigenvalues


def slstm_spectra(
    weights: Mapping[str, Floats], biases: Mapping[str, Floats], device: str = "auto"
) -> HiddenSpectra:
    """The spectra of the gates' kernels and of one step of the whole state.

    Args:
        weights: (heads, units, units) R of the gates input, forget, cell and output, row = target.
        biases: (heads, units) b of each gate.
        device: where to decompose.
    """
    gates = {gate: _all_heads(weight, device) for gate, weight in weights.items()}
    heads, units, _ = weights["cell"].shape
    if 3 * units > LARGEST_JACOBIAN:
        reason = (
            f"a Jacobian of order {3 * units} for each head costs more than all gates, so those "
            f"above {LARGEST_JACOBIAN} are not taken"
        )
        return HiddenSpectra(gates, None, reason)
    blocks = [
        slstm_jacobian(
            {gate: weight[head] for gate, weight in weights.items()},
            {gate: bias[head] for gate, bias in biases.items()},
        )
        for head in range(heads)
    ]
    return HiddenSpectra(gates, _all_heads(np.stack(blocks), device))


def _all_heads(matrices: Floats, device: str) -> Complexes:
    return np.concatenate([eigenvalues(matrix, device) for matrix in matrices])


def slstm_jacobian(weights: Mapping[str, Floats], biases: Mapping[str, Floats]) -> Floats:
    """d(h', c', n')/d(h, c, n) of one head at zero input and zero state, by the chain rule.

    c and n are taken in units of e^{b_i}, which no eigenvalue depends on.

    Args:
        weights: (units, units) R of each gate, row = target.
        biases: (units,) b of each gate.

    Returns:
        (3 units, 3 units).
    """
    kept, shown = sigmoid(biases["forget"]), sigmoid(biases["output"])
    candidate = np.tanh(biases["cell"])
    written = (1 - candidate**2)[:, None] * weights["cell"]
    c_by_h = candidate[:, None] * weights["input"] + written
    h_by_h = shown[:, None] * written
    h_by_h += (shown * sigmoid(-biases["output"]) * candidate)[:, None] * weights["output"]
    none = np.zeros_like(written)
    forget = np.diag(kept)
    return np.block(
        [
            [h_by_h, np.diag(shown * kept), np.diag(-shown * candidate * kept)],
            [c_by_h, forget, none],
            [weights["input"], none, forget],
        ]
    )
