"""The gates' functions and their logarithms against differences."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_allclose

from memcurse_cli.families.cells.gated_layer import open_gate
from memcurse_cli.families.reading import LARGEST_DECAY
from memcurse_cli.theory.gates.laws import LOGISTIC, Clipped, Opening

FUNCTIONS = [LOGISTIC, Clipped(0.2, 0.5), Clipped(1 / 6, 0.5), Clipped(-0.3, 0.4)]
STEP = 1e-6


@pytest.mark.parametrize("function", FUNCTIONS, ids=str)
def test_the_parts_agree_with_each_other(function: Opening) -> None:
    bias = np.array([-1.1, -0.4, 0.0, 0.7, 1.2])
    gate, before, after = (open_gate(function, bias + offset) for offset in (0, -STEP, STEP))
    assert_allclose(np.exp(gate.log_value), gate.value, rtol=1e-15)
    assert_allclose(np.exp(gate.log_opposite), 1 - gate.value, rtol=1e-15)
    for name, derivative in (
        ("value", gate.derivative),
        ("log_value", gate.log_derivative),
        ("log_opposite", gate.log_opposite_derivative),
    ):
        measured = (getattr(after, name) - getattr(before, name)) / (2 * STEP)
        assert_allclose(derivative, measured, rtol=1e-8)


def test_a_hard_gate_saturates_and_no_bias_moves_it_there() -> None:
    gate = open_gate(Clipped(0.2, 0.5), np.array([-2.5, -9.0, 2.5, 9.0]))
    assert_allclose(gate.value, [0, 0, 1, 1], rtol=0)
    assert_allclose(gate.log_value, [-LARGEST_DECAY, -LARGEST_DECAY, 0, 0], rtol=1e-15)
    assert_allclose(gate.log_opposite, [0, 0, -LARGEST_DECAY, -LARGEST_DECAY], rtol=1e-15)
    for derivative in (gate.derivative, gate.log_derivative, gate.log_opposite_derivative):
        assert_allclose(derivative, 0, rtol=0)


def test_the_sigmoid_is_exact_in_both_tails() -> None:
    gate = open_gate(LOGISTIC, np.array([40.0, -40.0]))
    assert_allclose(gate.log_value, [-np.exp(-40), -40], rtol=1e-14)
    assert_allclose(gate.log_opposite, [-40, -np.exp(-40)], rtol=1e-14)
    assert_allclose(gate.derivative, np.exp([-40, -40]), rtol=1e-14)
