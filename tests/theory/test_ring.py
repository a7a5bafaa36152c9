"""Averages over a ring: closed forms, explicit sums over angles, and draws of eigenvalues."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from memcurse_cli.theory.autocorrelation import Autocorrelation
from memcurse_cli.theory.moments import Readout, moments, ring_moments
from memcurse_cli.theory.parametrization import normalizing_log_gain

COLOURED = Autocorrelation((0.3, 0.5, 0.7), (0.0, 0.9, 0.8), (0.0, 0.0, 1.1))


@given(inner=st.floats(0, 0.9995), outer=st.floats(0, 0.9995))
def test_the_blow_up_of_the_forward_pass(inner: float, outer: float) -> None:
    """Orvieto et al. 2023, proposition 3, and its limit 1/(1-r²) on a thin ring."""
    low, high = sorted((inner**2, outer**2))
    with np.errstate(divide="ignore"):
        found = ring_moments(*(0.5 * np.log([low, high])))
    wide = high - low > 1e-6
    printed = np.log((1 - low) / (1 - high)) / (high - low) if wide else 1 / (1 - low)
    assert found.second_moment == pytest.approx(printed, rel=1e-9 if wide else 1e-2)
    moved = (1 - low * high) / ((1 - low) * (1 - high)) ** 2
    assert found.sensitivity == pytest.approx(moved, rel=1e-9)


@pytest.mark.parametrize(("horizon", "readout"), [(None, "last"), (40, "last"), (40, "every")])
def test_any_input_counts_as_white(horizon: int | None, readout: Readout) -> None:
    """The mean over equally spaced angles and over areas, of the moments under a coloured input."""
    nodes, weights = np.polynomial.legendre.leggauss(24)
    squares = 0.3 + 0.5 * (nodes + 1) / 2
    angles = np.arange(-128, 128) * np.pi / 128
    logs = 0.5 * np.log(squares)[:, None] + 1j * angles
    found = moments(logs.ravel(), COLOURED, horizon, readout)
    means = [
        float(np.asarray(one).reshape(logs.shape).mean(1) @ weights / 2)
        for one in (found.second_moment, found.sensitivity)
    ]
    ring = ring_moments(0.5 * np.log(0.3), 0.5 * np.log(0.8), COLOURED.variance, horizon, readout)
    assert tuple(ring) == pytest.approx(means, rel=1e-10)


@pytest.mark.parametrize("outer", [0.8, 1.0, 1.05])
def test_a_finite_sequence_is_a_sum_of_powers(outer: float) -> None:
    """Σ_k p_k ∫u^k du, with p_k = 1 at the last step and (T-k)/T over every one."""
    steps, low, high = 60, 0.25, outer**2
    k = np.arange(steps)
    for readout, share in (("last", np.ones(steps)), ("every", (steps - k) / steps)):
        held = share @ ((high ** (k + 1) - low ** (k + 1)) / (k + 1)) / (high - low)
        moved = (share * k) @ (high**k - low**k) / (high - low)
        found = ring_moments(np.log(0.5), np.log(outer), 1.0, steps, readout)  # type: ignore[arg-type]
        assert tuple(found) == pytest.approx((held, moved), rel=1e-10)


def test_a_normalized_ring_keeps_the_variance_and_costs_less() -> None:
    low, high = 0.81, 0.998
    found = ring_moments(0.5 * np.log(low), 0.5 * np.log(high), 2.0, log_gain=normalizing_log_gain)
    assert found.second_moment == pytest.approx(2, rel=1e-12)
    moved = [2 / (1 - square) + np.log(1 - square) for square in (low, high)]
    assert found.sensitivity == pytest.approx(2 * (moved[1] - moved[0]) / (high - low), rel=1e-10)


def test_what_leaves_the_range_of_a_float() -> None:
    assert ring_moments(np.log(1.0), np.log(2.0), 1.0, 5000) == (np.inf, np.inf)
