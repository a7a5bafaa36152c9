"""Laws of decays and gates behind caps: slopes against differences, moments against a fine rule."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_allclose

from memcurse_cli.theory.gates.laws import (
    CappedLogistic,
    Exponential,
    Keep,
    OpenedDecay,
    Opening,
    Write,
)
from memcurse_cli.theory.gates.moments import Preactivation, gated_moments

MEANS = np.array([-6.0, -2.0, 0.0, 1.0])
STEP = 1e-4
DECAY = OpenedDecay(1.0, opening=Exponential())


@pytest.mark.parametrize(
    "opening", [CappedLogistic(0.5), CappedLogistic(15.0), Exponential(3.0), Exponential()]
)
def test_the_slope_of_a_capped_gate(opening: Opening) -> None:
    above, below = opening(MEANS + STEP), opening(MEANS - STEP)
    slope = (above.value - below.value) / (2 * STEP)
    assert_allclose(opening(MEANS).slope, slope, rtol=1e-6, atol=1e-11)
    assert_allclose(opening(MEANS).value + opening(MEANS).complement, 1.0, rtol=1e-15)


def test_a_wide_cap_is_none() -> None:
    assert_allclose(Exponential(1e9)(MEANS).value, Exponential()(MEANS).value, rtol=1e-12)
    assert not CappedLogistic(0.5).smooth
    assert CappedLogistic(15.0).smooth


def test_a_decay_far_out_stays_finite() -> None:
    z = np.array([-800.0, -40.0, 40.0, 1e4])
    for law in (DECAY, OpenedDecay(5.0, log_scale="scale")):
        values = law(z)
        for found in (values.eigenvalue, values.complement, values.gain):
            assert np.isfinite(found).all()
        for motion in values.motions.values():
            assert np.isfinite(motion.eigenvalue).all()
    assert_allclose(DECAY(z).complement[1], np.exp(-40.0), rtol=1e-14)


def test_the_scale_of_a_decay_moves_its_preactivation() -> None:
    law = OpenedDecay(5.0, log_scale="scale")
    above, below = (law(MEANS * np.exp(sign * STEP)).eigenvalue for sign in (1, -1))
    slope = (above - below) / (2 * STEP)
    assert_allclose(law(MEANS).motions["scale"].eigenvalue, slope, rtol=1e-6, atol=1e-11)


@pytest.mark.parametrize("spread", [0.5, 2.0])
def test_the_moments_of_an_exponential_decay(spread: float) -> None:
    found = gated_moments(DECAY, Preactivation(MEANS, np.full(4, spread)))
    nodes = np.linspace(-12, 12, 100_001)[:, None]
    weights = np.exp(-(nodes[:, 0] ** 2) / 2)
    weights /= weights.sum()
    decay = np.exp(MEANS + spread * nodes)
    lost = weights @ -np.expm1(-2 * decay)  # E[1 - λ²]
    assert_allclose(found.second_moment, 1 / lost, rtol=1e-11)
    # E hs and E s² of a white drive.
    slope = -decay * np.exp(-decay)
    held = 1 / lost
    mixed = weights @ (np.exp(-decay) * slope)  # E[λ d]
    squared = ((weights @ slope**2) * held + 2 * mixed * (mixed * held / lost)) / lost
    assert_allclose(found.sensitivities["bias"], squared, rtol=1e-11)


def test_an_exponential_gate_writes_its_mean_square() -> None:
    """E e^(2z) = e^(2b + 2σ²)."""
    still, spread = Preactivation(MEANS, np.zeros(4)), 1.3
    gate = Preactivation(MEANS, np.full(4, spread))
    law, write = Keep(), Write(Exponential())
    moving = gated_moments(law, still, write=write, write_gate=gate).second_moment
    nominal = gated_moments(law, still, write=write, write_gate=still).second_moment
    assert_allclose(moving / nominal, np.exp(2 * spread**2), rtol=1e-10)
