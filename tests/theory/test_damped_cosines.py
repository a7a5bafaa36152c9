"""Gates under inputs with R(Δ) = ρ^|Δ| cos(ωΔ): their limits, and a simulation."""

from __future__ import annotations

import math

import numpy as np
import pytest

from memcurse_cli.theory.autocorrelation import Autocorrelation
from memcurse_cli.theory.gates.laws import Keep, Mix
from memcurse_cli.theory.gates.moments import Preactivation, gated_moments
from memcurse_cli.theory.moments import moments


def test_a_moving_gate_is_what_it_does_in_a_simulation() -> None:
    rho, frequency, bias, spread = 0.95, 0.6, 1.5, 0.8
    random = np.random.default_rng(3)
    sequences, steps = 400, 3000
    noise = random.standard_normal((steps, 2, sequences)) * math.sqrt(1 - rho**2)
    drive = random.standard_normal((2, sequences))
    turn = rho * np.array(
        [[math.cos(frequency), -math.sin(frequency)], [math.sin(frequency), math.cos(frequency)]]
    )
    h, total = np.zeros(sequences), []
    for step in range(steps):
        drive = turn @ drive + noise[step]
        opened = 1 / (1 + np.exp(-bias - spread * random.standard_normal(sequences)))
        h = opened * h + (1 - opened) * drive[0]
        if step >= 200:
            total.append(np.mean(h**2))
    source = Autocorrelation((1.0,), (rho,), (frequency,))
    gate = Preactivation(np.array([bias]), np.array([spread]))
    exact = gated_moments(Mix(), gate, source).second_moment[0]
    assert np.mean(total) == pytest.approx(exact, rel=0.01)


@pytest.mark.parametrize(("bias", "tolerance"), [(4.0, 1e-12), (8.0, 1e-12), (14.0, 1e-12)])
def test_a_slow_gate_off_resonance_keeps_its_digits(bias: float, tolerance: float) -> None:
    """Where the products of the gate would cancel: 6 % off at a bias of 12."""
    source = Autocorrelation((1.0,), (1.0,), (1.0,))
    found = gated_moments(Keep(), Preactivation(np.array([bias]), np.zeros(1)), source)
    log = np.array([-np.log1p(math.exp(-bias))])
    slope = math.exp(log[0]) / (1 + math.exp(bias))
    expected = moments(log, source).sensitivity[0] * slope**2
    assert found.sensitivities["forget"][0] == pytest.approx(expected, rel=tolerance, abs=0)
