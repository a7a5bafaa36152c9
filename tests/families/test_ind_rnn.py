"""IndRNN against a plain loop of its step, in the names of five implementations."""

from __future__ import annotations

import numpy as np
import pytest
from families.derivatives import check_derivatives, match_of, read_layer
from families.impulse import impulse_response
from numpy.testing import assert_allclose

from memcurse_cli.families.state_space.ind_rnn import IndRNN

VECTOR = np.array([0.9, -0.5, 1.0, 1.2])
WEIGHT = np.array([[1.0, 2.0, 0.5], [-1.0, 0.3, 0.0], [0.2, 0.2, 0.2], [1.0, 0.0, -1.0]])
TORCH = {"cells.0.weight_hh": VECTOR, "cells.0.weight_ih": WEIGHT, "cells.0.bias_ih": np.zeros(4)}
HASTE = {"rnn.kernel": WEIGHT.T, "rnn.recurrent_scale": VECTOR, "rnn.bias": np.zeros(4)}
TENSORFLOW = {
    "rnn/ind_rnn_cell/input_kernel": WEIGHT.T,
    "rnn/ind_rnn_cell/recurrent_kernel": VECTOR,
}
KERAS = {"ind_rnn/kernel": WEIGHT.T, "ind_rnn/recurrent_kernel": VECTOR}


def response(steps: int) -> np.ndarray:
    """(units, inputs, steps) of h = φ(W x + u ∘ h) where every unit is where φ has slope 1."""
    state, found = WEIGHT.copy(), []
    for _ in range(steps):
        found.append(state)
        state = VECTOR[:, None] * state
    return np.stack(found, axis=-1)


@pytest.mark.parametrize(
    ("arrays", "layer", "activation"),
    [
        (TORCH, "cells.0", "relu"),
        (HASTE, "rnn", "tanh"),
        (TENSORFLOW, "rnn/ind_rnn_cell", "relu"),
        (KERAS, "ind_rnn", "relu"),
    ],
    ids=["indrnn-pytorch", "haste", "tensorflow", "keras"],
)
def test_an_impulse(arrays: dict[str, np.ndarray], layer: str, activation: str) -> None:
    recurrence = read_layer(arrays, IndRNN())
    assert recurrence.name == layer
    ours = impulse_response(recurrence, 6, readout=np.eye(4))
    assert_allclose(ours, response(6), rtol=1e-12, atol=1e-15)
    assert f"activation={activation}" in recurrence.assumptions[0]
    assert not recurrence.stable_by_construction


def test_the_recurrent_part_alone() -> None:
    recurrence = read_layer({"RNNs.0.indrnn1.weight_hh": VECTOR}, IndRNN())
    assert recurrence.name == "RNNs.0.indrnn1"
    assert recurrence.readin is None
    assert_allclose(np.exp(recurrence.log_eigenvalues), VECTOR, rtol=1e-15, atol=1e-15)


def test_layers_and_directions() -> None:
    arrays = {f"weight_hh_{suffix}": VECTOR for suffix in ("l0", "l1", "l0_reverse")}
    assert {m.layer for m in match_of(arrays, IndRNN())} == {"l0", "l1", "l0_reverse"}


@pytest.mark.parametrize("arrays", [TORCH, HASTE], ids=["torch", "haste"])
def test_derivatives(arrays: dict[str, np.ndarray]) -> None:
    check_derivatives(arrays, IndRNN())
