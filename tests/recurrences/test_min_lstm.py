"""The minLSTM against a plain loop of its step, in both namings, and differences."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_allclose
from recurrences.derivatives import check_derivatives, match_of, read_layer

from memcurse_cli.errors import TensorError
from memcurse_cli.recurrences.min_lstm import MinLSTM

N, INPUTS = 3, 2
FORGET, INPUT = np.array([3.0, -1.0, 0.0]), np.array([-2.0, 1.5, 0.2])
WEIGHT = np.zeros((N, INPUTS))
FUSED = {
    "to_hidden_and_f_i_gate.weight": np.zeros((3 * N, INPUTS)),
    "to_hidden_and_f_i_gate.bias": np.concatenate([np.ones(N), FORGET, INPUT]),
}
SEPARATE = {
    "linear_f.weight": WEIGHT,
    "linear_f.bias": FORGET,
    "linear_i.weight": WEIGHT,
    "linear_i.bias": INPUT,
    "linear_h.weight": WEIGHT,
}
ROWS = {
    "to_hidden_and_f_i_gate.bias[forget]": slice(N, 2 * N),
    "to_hidden_and_f_i_gate.bias[input]": slice(2 * N, None),
}


@pytest.mark.parametrize("arrays", [FUSED, SEPARATE], ids=["minGRU-pytorch", "paper"])
def test_the_state_decays_by_the_share_of_the_forget_gate(arrays: dict[str, np.ndarray]) -> None:
    recurrence = read_layer({f"rnn.{name}": array for name, array in arrays.items()}, MinLSTM())
    forget, opened = 1 / (1 + np.exp(-FORGET)), 1 / (1 + np.exp(-INPUT))
    state = np.ones(N)
    for _ in range(4):
        state = state * (forget / (forget + opened))
    assert_allclose(state, np.exp(4 * recurrence.log_eigenvalues.real), rtol=1e-12)
    assert_allclose(np.exp(recurrence.log_gain), opened / (forget + opened), rtol=1e-12)


@pytest.mark.parametrize(("arrays", "elements"), [(FUSED, ROWS), (SEPARATE, None)])
def test_derivatives(arrays: dict[str, np.ndarray], elements: dict[str, slice] | None) -> None:
    check_derivatives(arrays, MinLSTM(), elements=elements)


@pytest.mark.parametrize("arrays", [FUSED, SEPARATE])
def test_without_biases_the_gates_are_even(arrays: dict[str, np.ndarray]) -> None:
    weights = {name: array for name, array in arrays.items() if name.endswith("weight")}
    recurrence = read_layer(weights, MinLSTM())
    assert_allclose(np.exp(recurrence.log_eigenvalues), np.full(N, 0.5))
    assert recurrence.parameters == ()
    assert "no bias" in recurrence.assumptions[0]


def test_what_does_not_fit_is_refused() -> None:
    one = {name: array for name, array in SEPARATE.items() if name != "linear_i.bias"}
    with pytest.raises(TensorError, match=r"linear_f.bias: only one of the two gates has a bias"):
        read_layer(one, MinLSTM())
    assert match_of(SEPARATE | {"linear_o.weight": WEIGHT}, MinLSTM()) == []
    assert match_of(SEPARATE | {"linear_h.weight": np.zeros((N, 7))}, MinLSTM()) == []
