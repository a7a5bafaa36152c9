"""The sLSTM against a plain loop of its cell, in both layouts, and differences."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_allclose
from recurrences.derivatives import check_derivatives, match_of, read_layer

from memcurse_cli.errors import TensorError
from memcurse_cli.recurrences.slstm import GATES, SLSTM

HEADS, UNITS = 2, 3
SIZE = HEADS * UNITS
RANDOM = np.random.default_rng(15)
BIAS = RANDOM.normal(size=(len(GATES), HEADS, UNITS))
FLAT = np.arange(BIAS.size).reshape(BIAS.shape)

VANILLA = {
    "_bias_": BIAS.ravel(),
    "_recurrent_kernel_": np.zeros((HEADS, 4 * UNITS, UNITS)),
}
CUDA = {
    "_bias_": BIAS.swapaxes(0, 1).ravel(),
    "_recurrent_kernel_": np.zeros((HEADS, UNITS, 4 * UNITS)),
}


def cell(state: np.ndarray) -> np.ndarray:
    """One step at zero input and without the recurrent kernel: (c, n, m) of each unit."""
    c, n, m = state
    gate_input, forget, candidate, _ = BIAS.reshape(4, SIZE)
    kept = m - np.logaddexp(0, -forget)
    new = np.maximum(gate_input, kept)
    opened, closed = np.exp(gate_input - new), np.exp(kept - new)
    return np.array([closed * c + opened * np.tanh(candidate), closed * n + opened, new])


@pytest.mark.parametrize("arrays", [VANILLA, CUDA], ids=["vanilla", "cuda"])
def test_the_state_decays_as_the_cell_lets_it(arrays: dict[str, np.ndarray]) -> None:
    recurrence = read_layer({f"xlstm.slstm_cell.{n}": a for n, a in arrays.items()}, SLSTM())
    assert recurrence.name == "xlstm.slstm_cell"
    states = {}
    for kick in (0.0, 1.0):
        state = np.array([np.full(SIZE, kick), np.ones(SIZE), np.zeros(SIZE)])
        for _ in range(5):
            state = cell(state)
        states[kick] = state[0] * np.exp(state[2])
    decayed = np.exp(5 * recurrence.log_eigenvalues.real)
    assert_allclose(states[1.0] - states[0.0], decayed, rtol=1e-10)
    first = cell(np.array([np.zeros(SIZE), np.ones(SIZE), np.zeros(SIZE)]))
    written = first[0] * np.exp(first[2]) / np.tanh(BIAS[2].ravel())
    assert_allclose(written, np.exp(recurrence.log_gain.real), rtol=1e-12)


@pytest.mark.parametrize(
    ("arrays", "flat"), [(VANILLA, FLAT), (CUDA, None)], ids=["vanilla", "cuda"]
)
def test_derivatives(arrays: dict[str, np.ndarray], flat: np.ndarray | None) -> None:
    if flat is None:
        order = np.empty(BIAS.size, dtype=int)
        order[FLAT.swapaxes(0, 1).ravel()] = np.arange(BIAS.size)
        flat = order.reshape(BIAS.shape)
    check_derivatives(
        arrays,
        SLSTM(),
        elements={"_bias_[input]": flat[0].ravel(), "_bias_[forget]": flat[1].ravel()},
    )


def test_a_kernel_of_neither_layout_is_refused() -> None:
    arrays = VANILLA | {"_recurrent_kernel_": np.zeros((HEADS, 5, UNITS))}
    with pytest.raises(TensorError, match=r"_recurrent_kernel_: its shape \(2, 5, 3\) is neither"):
        read_layer(arrays, SLSTM())
    assert match_of({"_bias_": BIAS}, SLSTM()) == []
