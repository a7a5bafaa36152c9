"""The minGRU against a plain loop of its step, in both namings, and differences."""

from __future__ import annotations

import numpy as np
import pytest
from families.derivatives import check_derivatives, match_of, read_layer
from numpy.testing import assert_allclose

from memcurse_cli.errors import TensorError
from memcurse_cli.families.selective.mixing import MinGRU

N, INPUTS = 3, 2
BIAS = np.array([-2.0, 0.5, 30.0])
WEIGHT = np.zeros((N, INPUTS))
FUSED = {
    "to_hidden_and_gate.weight": np.zeros((2 * N, INPUTS)),
    "to_hidden_and_gate.bias": np.concatenate([np.ones(N), BIAS]),
}
SEPARATE = {"linear_z.weight": WEIGHT, "linear_z.bias": BIAS, "linear_h.weight": WEIGHT}


@pytest.mark.parametrize("arrays", [FUSED, SEPARATE], ids=["minGRU-pytorch", "paper"])
def test_the_state_decays_by_the_closed_gate(arrays: dict[str, np.ndarray]) -> None:
    recurrence = read_layer({f"rnn.{name}": array for name, array in arrays.items()}, MinGRU())
    assert recurrence.name == "rnn"
    gate = 1 / (1 + np.exp(-BIAS))
    state = np.ones(N)
    for _ in range(4):
        state = state + gate * (0.0 - state)  # torch.lerp(h, candidate, gate)
    assert_allclose(state[:2], np.exp(4 * recurrence.log_eigenvalues.real)[:2], rtol=1e-12)
    assert_allclose(np.exp(recurrence.log_gain), gate, rtol=1e-13)
    assert_allclose(recurrence.log_eigenvalues[2].real, -30, rtol=1e-12)
    assert recurrence.assumptions == ()


@pytest.mark.parametrize(
    ("arrays", "elements"),
    [(FUSED, {"to_hidden_and_gate.bias[gate]": slice(N, None)}), (SEPARATE, None)],
)
def test_derivatives(arrays: dict[str, np.ndarray], elements: dict[str, slice] | None) -> None:
    check_derivatives(arrays, MinGRU(), elements=elements)


def test_without_a_bias_the_gate_stands_half_open() -> None:
    recurrence = read_layer({"to_hidden_and_gate.weight": np.zeros((2 * N, INPUTS))}, MinGRU())
    assert_allclose(np.exp(recurrence.log_eigenvalues), np.full(N, 0.5))
    assert recurrence.parameters == ()
    assert "no bias" in recurrence.assumptions[0]


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(TensorError, match=r"to_hidden_and_gate.bias: its shape \(3\)"):
        read_layer(FUSED | {"to_hidden_and_gate.bias": BIAS}, MinGRU())
    assert match_of(SEPARATE | {"linear_r.weight": WEIGHT}, MinGRU()) == []
    assert match_of(SEPARATE | {"linear_h.weight": np.zeros((N, 7))}, MinGRU()) == []
