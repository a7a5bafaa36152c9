from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest

from memcurse_cli.errors import UsageError
from memcurse_cli.theory.autocorrelation import WHITE, Autocorrelation


def test_reads_and_gives_back_what_is_written() -> None:
    text = Autocorrelation.parse("0.332:0, 0.044:0.997")
    assert text == Autocorrelation((0.332, 0.044), (0.0, 0.997))
    assert text.variance == pytest.approx(0.376, rel=1e-15)
    found = Autocorrelation.parse("0.3:0,0.7:0.99:0.2")
    assert list(found) == [(0.3, 0.0), (0.7, 0.99, 0.2)]
    assert Autocorrelation.from_components(found) == found
    np.testing.assert_allclose(
        found.at(np.array([0.0, 7.0])), [1, 0.7 * 0.99**7 * math.cos(1.4)], rtol=1e-14
    )
    assert list(Autocorrelation.from_rho(0.5)) == [(1.0, 0.5)]


def test_white_is_white_whatever_has_no_weight() -> None:
    assert WHITE.is_white
    assert Autocorrelation((1.0, 0.0), (0.0, 0.9)).is_white
    assert not Autocorrelation((1.0, 0.1), (0.0, 0.9)).is_white


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        *((((1.0,), (rho,)), r"is outside \[0, 1\]") for rho in (-0.1, 1.1, math.nan)),
        *((((1.0, weight), (0.0, 0.5)), "weight") for weight in (-0.1, math.nan, math.inf)),
        *((((1.0,), (0.5,), (w,)), "frequency") for w in (-0.1, 3.15, math.nan, math.inf)),
        (((0.0,), (0.5,)), "variance 0"),
        (((1e308, 1e308), (0.0, 0.5)), "an input of variance"),  # which no float holds
        (((1e-320, 0.0), (0.0, 0.5)), "an input of variance"),
        (((1.0, 2.0), (0.5,)), "2 weights for 1 values of rho"),
        (((1.0,), (0.5,), (0.1, 0.2)), "2 frequencies for 1"),
        (((), ()), "0 weights"),
    ],
)
def test_what_is_refused(parts: tuple[tuple[float, ...], ...], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Autocorrelation(*parts)


@pytest.mark.parametrize("text", ["", "0.5", "1:0,", "a:b", "1:0:1:1", "1;0"])
def test_refuses_text_that_is_not_pairs(text: str) -> None:
    with pytest.raises(UsageError, match="write WEIGHT:RHO pairs"):
        Autocorrelation.parse(text)


def test_quadratures_keep_their_digits_at_long_lags() -> None:
    """1e6 steps of 3 rad: the product alone would be off by 1e-10."""
    found = Autocorrelation((1.0,), (1.0,), (3.0001,)).at(np.array([1_000_003.0]))
    with mpmath.workdps(40):
        exact = float(mpmath.cos(mpmath.mpf(3.0001) * 1_000_003))
    assert found[0] == pytest.approx(exact, abs=1e-14)
