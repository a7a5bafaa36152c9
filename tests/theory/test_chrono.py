"""Both conventions of the Chrono initialisation."""

from __future__ import annotations

import math

import pytest

from memcurse_cli.theory.parametrization import chrono_bias, chrono_steps, printed_chrono_bias


def kept(bias: float) -> float:
    return 1 / (1 + math.exp(-bias))


@pytest.mark.parametrize("steps", [1.5, 2.0, 10.0, 1e6])
def test_the_gate_keeps_that_many_steps(steps: float) -> None:
    assert kept(chrono_bias(steps)) == pytest.approx(1 - 1 / steps, rel=1e-12)


@pytest.mark.parametrize("time_constant", [1.5, 3.0, 10.0, 1e6])
def test_the_bias_of_a_time_constant_gives_its_eigenvalue(time_constant: float) -> None:
    bias = chrono_bias(chrono_steps(time_constant))
    assert kept(bias) == pytest.approx(math.exp(-1 / time_constant), rel=1e-12)


@pytest.mark.parametrize("steps", [1.5, 2.0, 10.0])
def test_the_printed_bias_keeps_one_more(steps: float) -> None:
    """Zucchet & Orvieto 2024, section 3.2: log T is not the bias of λ = 1 - 1/T."""
    assert kept(printed_chrono_bias(steps)) == pytest.approx(steps / (1 + steps), rel=1e-12)
    assert printed_chrono_bias(steps) == pytest.approx(chrono_bias(steps + 1), rel=1e-12)
    assert abs(kept(printed_chrono_bias(steps)) - (1 - 1 / steps)) > 0.005
