"""Moments of one state, of pairs and of rings: sums, mpmath, autodiff and the authors' numbers."""

from __future__ import annotations

import json
import math
from itertools import product
from pathlib import Path

import jax
import mpmath
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from theory import brute_force
from theory.brute_force import COSINES, MIXTURE, assert_close

from memcurse_cli.theory.autocorrelation import Autocorrelation
from memcurse_cli.theory.finite_sums import DerivativeSums, summed_products, white_sums
from memcurse_cli.theory.moments import (
    Moments,
    PairMoments,
    Readout,
    bilinear,
    empirical_moments,
    moments,
    one_minus_exp,
    pair_moments,
    ring_moments,
)
from memcurse_cli.theory.parametrization import normalizing_log_gain

RHOS = [0.0, 0.3, 0.9, 0.997, 1.0]
INPUTS = [*map(Autocorrelation.from_rho, RHOS), MIXTURE, COSINES]
STABLE = np.array([0.0, 0.5, -0.8, 0.9 * np.exp(0.3j), 0.9 * np.exp(-0.3j), 0.7j])
EVERY = np.array([*STABLE, 0.999j, 1.0, np.exp(2j), 1.02, 1.05 * np.exp(1j)])


def logs_of(eigenvalues: np.ndarray) -> np.ndarray:
    with np.errstate(divide="ignore"):
        return np.log(eigenvalues.astype(complex))


def at(log_eigenvalue: complex, rho: float, horizon: int | None = None) -> Moments:
    return moments(np.array([log_eigenvalue]), Autocorrelation.from_rho(rho), horizon)


@pytest.mark.parametrize("autocorrelation", INPUTS, ids=str)
def test_moments_are_the_sums_that_define_them(autocorrelation: Autocorrelation) -> None:
    found = moments(logs_of(STABLE), autocorrelation)
    for place, eigenvalue in enumerate(STABLE):
        expected = brute_force.moments(eigenvalue, autocorrelation, 1500)
        assert_close(Moments(*(value[[place]] for value in found)), expected, 1e-11)


@pytest.mark.parametrize("autocorrelation", INPUTS, ids=str)
@pytest.mark.parametrize("steps", [1, 2, 3, 8, 101])
def test_the_moments_are_the_sums_cut_at_the_step_that_is_read(
    autocorrelation: Autocorrelation, steps: int
) -> None:
    logs = logs_of(EVERY)
    for place, eigenvalue in enumerate(EVERY):
        cut = [brute_force.moments(eigenvalue, autocorrelation, t) for t in range(1, steps + 1)]
        f, c, s = (sum(parts) / steps for parts in zip(*cut, strict=True))
        for readout, expected in (("last", cut[-1]), ("every", (f, c, s))):
            found = moments(logs[[place]], autocorrelation, steps, readout)
            assert_close(found, expected, 1e-11)


@pytest.mark.parametrize("steps", [1, 2, 300, 10**6])
def test_white_input_in_closed_form_is_what_doubling_sums(steps: int) -> None:
    near = np.array([0.24, 0.26, 0.3, 1.0, 30.0]) / steps  # on either side of where it cancels
    logs = np.concatenate([-near, near, [-0.5, -20.0]])
    sums = summed_products(DerivativeSums(logs, None, 0.0), 0.0, steps, "last")[-3:]
    for found, wanted in zip(white_sums(logs, steps), sums, strict=True):
        assert_allclose(found, wanted, rtol=2e-14)


@pytest.mark.parametrize("rho", RHOS)
@pytest.mark.parametrize(
    ("exploding", "horizon", "readout"),
    [
        ([0j, 1j, 0.1 + 2j, 1e-300 + 0j, 300 + 1j], None, "last"),
        *(
            ([0.1 + 1j, 5.0 + 0j, 0.3 + np.pi * 1j], 10**5, readout)
            for readout in ("last", "every")
        ),
    ],
)
def test_an_exploding_state_ends_as_infinite_and_never_nan(
    exploding: list[complex], horizon: int | None, readout: Readout, rho: float
) -> None:
    logs = np.array([*exploding, -0.1 + 2j])
    found = moments(logs, Autocorrelation.from_rho(rho), horizon, readout)
    assert np.isposinf(found.second_moment[:-1]).all()
    assert np.isposinf(found.sensitivity[:-1]).all()
    assert (found.cross_moment[:-1] == 0).all()
    alone = moments(logs[-1:], Autocorrelation.from_rho(rho), horizon, readout)
    for value, right in zip(found, alone, strict=True):
        assert np.isfinite(right).all()
        assert_allclose(value[-1:], right, rtol=1e-15)


@pytest.mark.parametrize(("horizon", "readout"), [(None, "last"), (37, "last"), (37, "every")])
def test_the_same_lines_run_on_torch_and_jax(horizon: int | None, readout: Readout) -> None:
    autocorrelation = Autocorrelation((0.4, 1.0), (0.0, 0.8))
    log = np.array([-0.1 + 1j, -1e-6 + 3j, -2 + 0j])
    expected = moments(log, autocorrelation, horizon, readout)
    found = moments(torch.tensor(log), autocorrelation, horizon, readout)
    for name, value in zip(Moments._fields, found, strict=True):
        np.testing.assert_allclose(value.numpy(), getattr(expected, name), rtol=1e-13)
    with jax.enable_x64(True):
        compiled = jax.jit(lambda z: moments(z, autocorrelation, horizon, readout))
        for name, value in zip(Moments._fields, compiled(jax.numpy.array(log)), strict=True):
            np.testing.assert_allclose(value, getattr(expected, name), rtol=1e-12)


@pytest.mark.parametrize("rho", RHOS)
def test_bilinear_for_any_pair(rho: float) -> None:
    logs = np.array([complex(-d, a) for d, a in product([2.0, 1e-3, 1e-10], [0.0, 0.3, -2.0])])
    found = bilinear(logs[:, None], logs[None, :], Autocorrelation.from_rho(rho))
    for i, j in product(range(logs.size), repeat=2):
        expected = brute_force.closed_form(complex(logs[i]), complex(logs[j]), rho)
        values = found.hh, found.sh, found.hs, found.ss
        for value, right in zip(values, expected, strict=True):
            assert abs(complex(value[i, j]) - right) <= 1e-12 * abs(right)


def test_one_minus_exp_keeps_every_digit_near_zero() -> None:
    for x, y in product([-1e-300, -1e-12, -1.0, 0.5, -50.0], [0.0, 1e-12, 0.5, 3.0]):
        with mpmath.workdps(400):
            expected = complex(-mpmath.expm1(mpmath.mpc(x, y)))
        found = complex(one_minus_exp(np.array(complex(x, y))))
        assert abs(found - expected) <= 1e-15 * abs(expected)
    assert complex(one_minus_exp(np.array(complex(-np.inf, 2.0)))) == 1
    assert float(one_minus_exp(np.array(-1e-12))) == -np.expm1(-1e-12)


def test_the_numbers_of_the_papers_own_code(paper: Path) -> None:
    data = json.loads((paper / "one_dimensional.json").read_text())
    with np.errstate(divide="ignore"):
        for rho, eigenvalue, _, expected in data["dh_dlamb"]:
            found = at(np.log(complex(eigenvalue)), rho).sensitivity[0]
            assert found == pytest.approx(expected, rel=1e-7)  # λ itself rounds 1 - λ
        for rho, eigenvalue, expected in data["h2"]:
            found = at(np.log(complex(eigenvalue)), rho).second_moment[0]
            assert found == pytest.approx(expected, rel=1e-10)


def by_sums(
    eigenvalues: np.ndarray, autocorrelation: Autocorrelation, steps: int, *, every: bool = False
) -> list[PairMoments]:
    """As they stand, and with the second of each pair conjugated."""
    h, s = brute_force.impulse_responses(eigenvalues, steps)
    seen = brute_force.covariance(autocorrelation, steps, every=every)
    return [
        PairMoments(*(a @ seen @ turn(b).T for a, b in product((s, h), repeat=2)))
        for turn in (np.asarray, np.conj)
    ]


def assert_same(found: PairMoments, wanted: PairMoments, tolerance: float) -> None:
    for one, other in zip(found, wanted, strict=True):
        assert_allclose(one, other, rtol=tolerance, atol=tolerance * np.abs(other).max())


@pytest.mark.parametrize("horizon", [None, 1, 2, 3, 40])
@pytest.mark.parametrize("autocorrelation", INPUTS, ids=str)
def test_pairs_are_sums_over_responses(
    autocorrelation: Autocorrelation, horizon: int | None
) -> None:
    eigenvalues = STABLE if horizon is None else EVERY
    for readout in ("last", "every") if horizon else ("last",):
        found = pair_moments(logs_of(eigenvalues), autocorrelation, horizon, readout)
        wanted = by_sums(eigenvalues, autocorrelation, horizon or 600, every=readout == "every")
        for one, other in zip(found, wanted, strict=True):
            assert_same(one, other, 1e-11)


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
def test_on_a_ring_any_input_counts_as_white(horizon: int | None, readout: Readout) -> None:
    """The mean over equally spaced angles and over areas, of the moments under a coloured input."""
    nodes, weights = np.polynomial.legendre.leggauss(24)
    squares = 0.3 + 0.5 * (nodes + 1) / 2
    angles = np.arange(-128, 128) * np.pi / 128
    logs = 0.5 * np.log(squares)[:, None] + 1j * angles
    found = moments(logs.ravel(), COSINES, horizon, readout)
    means = [
        float(np.asarray(one).reshape(logs.shape).mean(1) @ weights / 2)
        for one in (found.second_moment, found.sensitivity)
    ]
    ring = ring_moments(0.5 * np.log(0.3), 0.5 * np.log(0.8), COSINES.variance, horizon, readout)
    assert tuple(ring) == pytest.approx(means, rel=1e-10)


@pytest.mark.parametrize("outer", [0.8, 1.0, 1.05])
def test_a_ring_over_a_finite_sequence_is_a_sum_of_powers(outer: float) -> None:
    """Σ_k p_k ∫u^k du, with p_k = 1 at the last step and (T-k)/T over every one."""
    steps, low, high = 60, 0.25, outer**2
    k = np.arange(steps)
    for readout, share in (("last", np.ones(steps)), ("every", (steps - k) / steps)):
        held = share @ ((high ** (k + 1) - low ** (k + 1)) / (k + 1)) / (high - low)
        moved = (share * k) @ (high**k - low**k) / (high - low)
        found = ring_moments(np.log(0.5), np.log(outer), 1.0, steps, readout)
        assert tuple(found) == pytest.approx((held, moved), rel=1e-10)


@pytest.mark.parametrize("left", [2e-3, 2**-26])
def test_a_normalized_ring_keeps_the_variance_and_costs_less(left: float) -> None:
    low, high = 0.81, 1 - left
    found = ring_moments(0.5 * np.log(low), 0.5 * np.log(high), 2.0, log_gain=normalizing_log_gain)
    assert found.second_moment == pytest.approx(2, rel=1e-12)
    moved = [2 / (1 - square) + np.log(1 - square) for square in (low, high)]
    assert found.sensitivity == pytest.approx(2 * (moved[1] - moved[0]) / (high - low), rel=1e-10)


def test_what_of_a_ring_leaves_the_range_of_a_float() -> None:
    assert ring_moments(np.log(1.0), np.log(2.0), 1.0, 5000) == (np.inf, np.inf)


@pytest.mark.parametrize("autocorrelation", [*INPUTS[:3], COSINES], ids=str)
@pytest.mark.parametrize("time_constant", [0.5, 5.0, 50.0])
def test_of_a_mixture_s_lags_they_are_those_of_the_mixture(
    autocorrelation: Autocorrelation, time_constant: float
) -> None:
    log = -1 / time_constant
    found = empirical_moments(log, autocorrelation.at(np.arange(3000.0)))
    expected = moments(np.array([log]), autocorrelation)
    assert_allclose(found.second_moment, expected.second_moment[0], rtol=1e-10)
    assert_allclose(found.sensitivity, expected.sensitivity[0], rtol=1e-10)


@pytest.mark.parametrize("log", [0.0, -math.inf, 0.1, math.nan])
def test_other_eigenvalues_are_refused(log: float) -> None:
    with pytest.raises(ValueError, match="between 0 and 1"):
        empirical_moments(log, np.ones(3))
