from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from memcurse_cli.theory.rounding import Dtype, rounded, rounding_error, rounding_steps, spacing

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
def test_spacing_is_the_gap_between_stored_numbers(dtype: Dtype) -> None:
    info = ml_dtypes.finfo(TYPES[dtype])
    tiny, least = float(info.smallest_normal), float(info.smallest_subnormal)
    values = [0.0, 1.0, 1.5, 1.99, 2.0, -3.0, 0.3, 4e2, tiny, 1.5 * tiny, tiny / 2, least]
    stored = np.array(values).astype(TYPES[dtype])
    assert spacing(stored.astype(np.float64), dtype).tolist() == gap(stored).tolist()


@pytest.mark.parametrize("dtype", TYPES)
def test_a_value_beyond_the_range_has_no_spacing(dtype: Dtype) -> None:
    largest = float(ml_dtypes.finfo(TYPES[dtype]).max)
    ulp = spacing(np.array([largest]), dtype)[0]
    values = np.array([largest, largest + 0.49 * ulp, largest + 0.51 * ulp, 2 * largest, np.inf])
    with np.errstate(over="ignore", invalid="ignore"):
        # float8_e4m3fn has no infinity: what does not fit becomes nan there.
        overflows = ~np.isfinite(values.astype(TYPES[dtype]).astype(np.float64))
    assert np.isinf(spacing(values, dtype)).tolist() == overflows.tolist()
    assert overflows.tolist() == [False, False, True, True, True]


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


@pytest.mark.parametrize("dtype", TYPES)
def test_a_tie_rounds_to_the_even_number(dtype: Dtype) -> None:
    numbers = 1 + np.arange(5) * spacing(np.ones(1), dtype)[0]
    ties = (numbers[1:] + numbers[:-1]) / 2
    assert rounded(ties, dtype).tolist() == ties.astype(TYPES[dtype]).astype(float).tolist()


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
