"""States rounded at every step, for real and by ml_dtypes, against what is told of each type."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from theory.test_rounding import TYPES

from memcurse_cli.theory.autocorrelation import WHITE, Autocorrelation
from memcurse_cli.theory.moments import moments
from memcurse_cli.theory.rounding import Dtype
from memcurse_cli.theory.simulation import drawn_inputs
from memcurse_cli.theory.stored_state import (
    BLOCK,
    HeldStates,
    keep,
    largest_of_blocks,
    overflow_steps,
    roundings,
    roundings_under,
    stored,
)

MIXTURE = Autocorrelation.parse("0.5:0,0.3:0.9,0.2:0.95:0.4")


def energies(eigenvalue: complex, autocorrelation: Autocorrelation, steps: int) -> np.ndarray:
    """E|h_k|² for k = 1 … T by the double sum over lags."""
    lags = np.subtract.outer(np.arange(steps), np.arange(steps))
    correlation = sum(
        part.weight * part.rho ** abs(lags) * np.cos(part.frequency * lags)
        for part in autocorrelation.parts
    )
    powers = eigenvalue ** np.arange(steps)
    terms = powers[:, None] * correlation * powers.conj()
    return np.array([terms[:k, :k].sum().real for k in range(1, steps + 1)])


@pytest.mark.parametrize("drive", [WHITE, MIXTURE, Autocorrelation.from_rho(1.0)])
@pytest.mark.parametrize("eigenvalue", [0.0, 0.5, -0.7, 0.9 + 0.3j, math.exp(-1e-6), 1.0, 1.05])
def test_the_roundings_are_the_sum_over_the_steps(
    eigenvalue: complex, drive: Autocorrelation
) -> None:
    steps = 25
    held = energies(complex(eigenvalue), drive, steps)
    kept = abs(eigenvalue) ** (2.0 * np.arange(steps)[::-1])
    with np.errstate(divide="ignore"):
        found = roundings_under(np.log(np.array([eigenvalue], complex)), drive, steps)
    assert_allclose(found, kept @ held / held[-1], rtol=1e-9)


@given(st.floats(-300, 2), st.integers(1, 10**9))
def test_the_roundings_lie_between_one_and_those_of_a_sum(exponent: float, steps: int) -> None:
    (found,) = roundings(np.array([10.0**exponent]), steps)
    assert 1 - 1e-6 <= found <= (steps + 1) / 2 * (1 + 1e-9)
    (endless,) = roundings(np.array([10.0**exponent]), None)
    assert found <= endless * (1 + 1e-6)


def test_without_decay_an_endless_sequence_has_no_end_of_them() -> None:
    assert roundings(np.array([0.0, -1e-3]), None).tolist() == [math.inf, math.inf]


def rounded_run(
    eigenvalues: np.ndarray,
    dtype: Dtype,
    steps: int,
    random: np.random.Generator | None = None,
    sequences: int = 1000,
) -> tuple[np.ndarray, np.ndarray]:
    """The relative error of each state, and the share of the steps that did not move it."""
    shape = (sequences, eigenvalues.size)
    drive = drawn_inputs(WHITE, shape, np.random.default_rng(1))
    exact = held = np.zeros(shape, eigenvalues.dtype)
    frozen = np.zeros(eigenvalues.size)
    for _ in range(steps):
        x = next(drive)
        exact = eigenvalues * exact + x
        before, held = held, keep(eigenvalues * held + x, dtype, random)
        frozen += (held.real == before.real).mean(axis=0) / steps
    error, size = (np.mean(np.abs(values) ** 2, axis=0) for values in (held - exact, exact))
    return np.sqrt(error / size), frozen


def held_states(eigenvalues: np.ndarray, steps: int, alike: int = 1) -> HeldStates:
    logs = np.log(eigenvalues.astype(complex))
    size, left = moments(logs, WHITE, steps).second_moment, np.abs(1 - eigenvalues)
    movement = left**2 + 1 / size
    return HeldStates(
        roundings_under(logs, WHITE, steps),
        movement,
        left,
        largest_of_blocks(np.repeat(size, alike), 1)[::alike],
    )


MEMORIES = np.array([3.0, 30.0, 300.0, 1e5])


@pytest.mark.parametrize("angle", [0.0, 0.7])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float8_e4m3fn"])
def test_rounding_at_every_step_costs_what_is_told(dtype: Dtype, angle: float) -> None:
    eigenvalues = np.exp(-1 / MEMORIES + (1j * angle if angle else 0))
    seen, _ = rounded_run(eigenvalues, dtype, 400)
    told = stored(held_states(eigenvalues, 400), dtype).errors
    small = told < 0.3
    assert_allclose(seen[small], told[small], rtol=0.15)
    assert small.sum() >= 2


def test_rounding_at_random_costs_root_two_more_and_integers_have_a_scale_for_each_block() -> None:
    eigenvalues = np.exp(-1 / MEMORIES)
    seen, _ = rounded_run(eigenvalues, "bfloat16", 300, np.random.default_rng(5))
    told = stored(held_states(eigenvalues, 300), "bfloat16")
    assert_allclose(seen, math.sqrt(2) * told.errors, rtol=0.15)
    assert told.stochastic == math.sqrt(2) * told.errors.max()
    blocks = np.repeat(eigenvalues, BLOCK)
    errors, _ = rounded_run(blocks, "int8", 60, sequences=100)
    seen = np.sqrt(np.mean(errors.reshape(-1, BLOCK) ** 2, axis=1))
    assert_allclose(seen, stored(held_states(eigenvalues, 60, BLOCK), "int8").errors, rtol=0.15)


def test_frozen_steps_are_counted_and_decay_alone_stops() -> None:
    for memory in (10.0, 100.0):
        eigenvalues = np.exp(-1 / np.array([memory]))
        _, frozen = rounded_run(eigenvalues, "float8_e4m3fn", 500)
        told = stored(held_states(eigenvalues, 500), "float8_e4m3fn").frozen
        assert told == pytest.approx(frozen[0], rel=0.25)
    for memory, stops in ((200.0, False), (300.0, True)):  # 2⁸ is where bfloat16 ends
        eigenvalue, held = math.exp(-1 / memory), np.ones(1) * 1.9
        for _ in range(1000):
            held = keep(eigenvalue * held, "bfloat16")
        assert (held[0] >= 1) == stops
        assert stored(held_states(np.array([eigenvalue]), 1000), "bfloat16").stopped == stops


@pytest.mark.parametrize("dtype", TYPES)
def test_a_kept_state_is_a_number_of_its_type(dtype: Dtype) -> None:
    random = np.random.default_rng(2)
    values = random.normal(size=2000) * 10.0 ** random.integers(-9, 5, 2000)
    with np.errstate(over="ignore"):
        cast = values.astype(TYPES[dtype]).astype(float)
    nearest = keep(values, dtype)
    assert np.array_equal(np.isfinite(nearest), np.isfinite(cast))
    assert np.array_equal(nearest[np.isfinite(cast)], cast[np.isfinite(cast)])
    assert np.array_equal(keep(values + 1j * values, dtype).imag, nearest)


def test_a_draw_is_one_of_two_neighbours_and_has_no_bias() -> None:
    value = np.full(40000, 1 + 0.3 * 2.0**-7)
    drawn = keep(value, "bfloat16", np.random.default_rng(3))
    assert set(drawn.tolist()) == {1.0, 1 + 2.0**-7}
    assert np.mean(drawn) - value[0] == pytest.approx(0, abs=4e-5)
    integers = keep(np.linspace(-3, 2, 3 * BLOCK), "int8")
    for part in np.split(integers, 3):
        steps = part / (np.abs(part).max() / 127)
        assert_allclose(steps, np.rint(steps), atol=1e-9)
    assert keep(np.zeros((2, 5)), "int8").tolist() == np.zeros((2, 5)).tolist()


def test_the_largest_of_a_block_is_that_of_draws() -> None:
    random = np.random.default_rng(4)
    sizes = np.exp(random.normal(size=2 * BLOCK))
    draws = np.abs(random.normal(size=(4000, 2, BLOCK)) * sizes.reshape(2, BLOCK)).max(axis=-1)
    found = largest_of_blocks(sizes**2, 1) * sizes
    assert_allclose(found[[0, BLOCK]], np.median(draws, axis=0), rtol=0.02)
    assert_allclose(found[:BLOCK], found[0])
    products = np.abs(np.prod(random.normal(size=(2, 4000, BLOCK)), axis=0)).max(axis=-1)
    found = largest_of_blocks(np.array([1.0, 0.0]), 4 * BLOCK)
    assert_allclose(found, np.median(products), rtol=0.02)
    assert largest_of_blocks(np.array([0.0, 0.0]), 1).tolist() == [0.0, 0.0]


@pytest.mark.parametrize("drive", [WHITE, Autocorrelation.from_rho(1.0)])
@pytest.mark.parametrize("eigenvalue", [1.0, math.exp(-1e-7), 1.001])
def test_the_overflow_is_where_five_deviations_pass_the_largest_number(
    eigenvalue: float, drive: Autocorrelation
) -> None:
    logs = np.log(np.array([eigenvalue, 0.5], complex))

    def second_moment(steps: int) -> np.ndarray:
        return np.asarray(moments(logs, drive, steps).second_moment)

    gain, closed = np.array([0.01, 4.0]), None if drive.is_white else second_moment
    step, integer = overflow_steps(-2 * logs.real, gain, ("float8_e4m3fn", "int8"), closed)
    assert step is not None
    past = [
        (5 * np.sqrt(gain * second_moment(at))).max() > 448
        for at in (int(0.96 * step), int(1.04 * step))
    ]
    assert past == [False, True]
    assert integer is None
    assert overflow_steps(-2 * logs.real[1:], gain[1:], ("float8_e4m3fn",), None) == [None]
