"""What storing in fewer bits does: casts, and the sum over all pairs of lags."""

from __future__ import annotations

from itertools import product

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from theory.brute_force import covariance
from theory.matrices import system

from memcurse_cli.theory.autocorrelation import WHITE, Autocorrelation
from memcurse_cli.theory.moments import Readout, moments
from memcurse_cli.theory.rounding import (
    Dtype,
    matrix_state_change,
    moved_logs,
    rounded,
    rounding_error,
    rounding_steps,
    spacing,
    state_change,
)

TYPES: dict[Dtype, type] = {
    "bfloat16": ml_dtypes.bfloat16,
    "float16": np.float16,
    "float32": np.float32,
    "float8_e4m3fn": ml_dtypes.float8_e4m3fn,
    "float8_e5m2": ml_dtypes.float8_e5m2,
}


def gap(stored: np.ndarray) -> np.ndarray:
    """From each stored number to the next one away from zero, by counting up its bits."""
    integers = {1: np.uint8, 2: np.uint16, 4: np.uint32}[stored.dtype.itemsize]
    following = (stored.view(integers) + integers(1)).view(stored.dtype)
    return np.abs(following.astype(np.float64) - stored.astype(np.float64))


@pytest.mark.parametrize("dtype", TYPES)
def test_spacing_is_the_gap_between_stored_numbers_and_a_tie_rounds_to_even(dtype: Dtype) -> None:
    info = ml_dtypes.finfo(TYPES[dtype])
    tiny, least = float(info.smallest_normal), float(info.smallest_subnormal)
    values = [0.0, 1.0, 1.5, 1.99, 2.0, -3.0, 0.3, 4e2, tiny, 1.5 * tiny, tiny / 2, least]
    stored = np.array(values).astype(TYPES[dtype])
    assert spacing(stored.astype(np.float64), dtype).tolist() == gap(stored).tolist()
    numbers = 1 + np.arange(5) * spacing(np.ones(1), dtype)[0]
    ties = (numbers[1:] + numbers[:-1]) / 2
    assert rounded(ties, dtype).tolist() == ties.astype(TYPES[dtype]).astype(float).tolist()


@given(st.lists(st.floats(-1e6, 1e6, allow_subnormal=False), min_size=1, max_size=30))
def test_an_integer_type_has_one_scale_per_tensor(values: list[float]) -> None:
    tensor = np.array(values)
    scale = spacing(tensor, "int8")
    assert np.ptp(scale) == 0
    assert scale[0] == np.abs(tensor).max() / 127
    if scale[0] > 0:
        stored = np.rint(tensor / scale)
        assert np.abs(stored).max() <= 127
        assert (np.abs(stored * scale - tensor) <= 0.5 * scale * (1 + 1e-9)).all()


@given(share=st.floats(-1.1, 1.1), dtype=st.sampled_from(list(TYPES)))
def test_a_value_rounds_as_a_cast_does(share: float, dtype: Dtype) -> None:
    values = share * float(ml_dtypes.finfo(TYPES[dtype]).max) * np.array([1, 1e-3, 1e-6, 1e-9, 0])
    with np.errstate(over="ignore", invalid="ignore"):
        if dtype != "float32":  # ml_dtypes casts through float32, which rounds twice
            values = values.astype(np.float32).astype(np.float64)
        cast = values.astype(TYPES[dtype]).astype(np.float64)
    fits = np.isfinite(cast)
    assert rounded(values, dtype)[fits].tolist() == cast[fits].tolist()
    assert np.isinf(rounded(values, dtype)[~fits]).all()


def test_the_error_is_first_order_in_what_rounding_moves() -> None:
    values, kappa = np.array([0.3, -5.1, 1e5, 1.1]), np.array([2.0, 7.0, 0.0, np.inf])
    error = rounding_error(kappa, rounding_steps(values, "float16"))
    moved = np.abs(values[:2].astype(np.float16).astype(np.float64) - values[:2])
    np.testing.assert_allclose(error[:2], np.sqrt(kappa[:2]) * moved)
    assert np.isposinf(error[2:]).all()  # 1e5 is beyond float16, and κ diverges


def test_the_error_of_what_is_stored_already_is_uniform_over_its_spacing() -> None:
    values = np.array([0.3, -5.1, 0.0]).astype(np.float16).astype(np.float64)
    error = rounding_error(np.full(3, 2.0), rounding_steps(values, "float16", stored=True))
    gaps = np.spacing(np.abs(values[:2]).astype(np.float16))
    np.testing.assert_allclose(error, np.append(np.sqrt(2 / 12) * gaps, 0))
    # What rounding to it had moved by is that on average.
    before = np.random.default_rng(1).uniform(0.25, 0.5, 4000)
    known = rounding_error(np.ones(4000), rounding_steps(before, "float16"))
    after = rounded(before, "float16")
    expected = rounding_error(np.ones(4000), rounding_steps(after, "float16", stored=True))
    assert np.mean(known**2) == pytest.approx(np.mean(expected**2), rel=0.05)


@pytest.mark.parametrize("dtype", [*TYPES, "int8"])
def test_a_value_that_a_type_holds_exactly_loses_nothing_even_where_sensitivity_diverges(
    dtype: Dtype,
) -> None:
    exact = np.array([0.0, -0.5, 1.0]) if dtype != "int8" else np.array([0.0, -1.0, 127.0])
    assert not rounding_error(np.array([np.inf, 1.0, 1.0]), rounding_steps(exact, dtype)).any()
    assert not rounding_error(
        np.array([np.inf]), rounding_steps(np.zeros(1), dtype, stored=True)
    ).any()


INPUTS = [
    WHITE,
    Autocorrelation.from_rho(0.8),
    Autocorrelation.from_rho(1.0),
    Autocorrelation((0.3, 0.7), (0.0, 0.95), (0.0, 0.7)),
]


def explicit(responses: np.ndarray, autocorrelation: Autocorrelation, readout: str) -> float:
    """E‖Σ_k D_k x(t-k)‖² at the last step or as the mean over every one, of (T, ...) D."""
    flat = responses.reshape(len(responses), -1)
    seen = covariance(autocorrelation, len(flat), every=readout == "every")
    return float(np.sum(flat.conj() * (seen @ flat)).real)


@pytest.mark.parametrize("autocorrelation", INPUTS)
@pytest.mark.parametrize(
    ("steps", "readout"), [*product([1, 2, 7, 40], ["last", "every"]), (None, "last")]
)
def test_it_is_the_sum_over_all_lags(
    autocorrelation: Autocorrelation, readout: Readout, steps: int | None
) -> None:
    before = np.array([0.9, 0.97 * np.exp(0.3j), 0.5, 0.9])
    after = np.array([0.93, 0.96 * np.exp(0.32j), 0.51j, -0.3])
    if steps is not None:
        before, after = np.append(before, [0.9, 1.02]), np.append(after, [1.01, 1.05])
    gain = np.array([1, 1.1, 0.9, 1 + 0.1j, 1, 0.9])[: before.size]
    lags = np.arange(steps or 1000)[:, None]
    found = state_change(
        np.log(before), np.log(after), np.log(gain), autocorrelation, steps, readout
    )
    for place, difference in enumerate((gain * after**lags - before**lags).T):
        wanted = explicit(difference, autocorrelation, readout)
        assert found[place] == pytest.approx(wanted, rel=1e-9, abs=1e-12)

    random = np.random.default_rng(1)
    matrix, change = 0.4 * random.normal(size=(5, 5)), 0.1 * random.normal(size=(5, 5))
    readin = random.normal(size=(5, 2))
    dense = system(matrix, readin, None, autocorrelation, steps, readout)
    states, moved = (
        np.array([np.linalg.matrix_power(each, lag) @ readin for lag in lags.ravel()])
        for each in (matrix, matrix + change)
    )
    found = matrix_state_change(dense, change)
    for figure, response in zip(found, (moved - states, states), strict=True):
        wanted = explicit(response, autocorrelation, readout)
        assert figure == pytest.approx(wanted, rel=1e-9, abs=1e-12)


def test_what_grows_without_end_has_an_infinite_change() -> None:
    before, gain = np.log([0.9 * np.exp(0.2j)]), np.zeros(1, complex)
    assert np.isinf(state_change(before, -before, gain, WHITE, None, "last"))


@pytest.mark.parametrize("autocorrelation", INPUTS)
@pytest.mark.parametrize("readout", ["last", "every"])
def test_a_small_change_within_a_horizon_keeps_its_digits(
    autocorrelation: Autocorrelation, readout: Readout
) -> None:
    """A step of 1e-9 is E|dh/dλ|² δλ², of which a difference of states would have no digit."""
    logs, step = np.log([0.9 + 0j, 0.99 * np.exp(0.3j), 1.01 + 0j]), 1e-9
    moved = moved_logs(logs, np.ones(3, complex), np.full(3, step), bounded=False)
    found = state_change(logs, moved, np.zeros(3, complex), autocorrelation, 50, readout)
    first_order = moments(logs, autocorrelation, 50, readout).sensitivity
    assert found / step**2 == pytest.approx(first_order, rel=1e-6)


@pytest.mark.parametrize("step", [0.3, -0.3, 1e-6])
def test_an_exponential_moves_as_one_and_a_stored_eigenvalue_as_itself(step: float) -> None:
    log = np.array([-0.02 + 0.7j])
    eigenvalue = np.exp(log)
    steps = np.array([step])
    decay = moved_logs(log, -0.02 * eigenvalue, steps, bounded=True)
    assert decay == pytest.approx([-0.02 * np.exp(step) + 0.7j], rel=1e-12)
    both = moved_logs(log, log * eigenvalue, steps, bounded=True)
    assert both == pytest.approx(log * np.exp(step), rel=1e-12)
    angle = moved_logs(log, 1j * eigenvalue, steps, bounded=True)
    assert angle == pytest.approx(log + 1j * step, rel=1e-12)
    stored = moved_logs(log, np.ones(1), steps, bounded=False)
    assert np.exp(stored) == pytest.approx(eigenvalue + step, rel=1e-12)
