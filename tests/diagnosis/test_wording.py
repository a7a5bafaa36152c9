from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memcurse_cli.diagnosis.wording import (
    count,
    duration,
    number,
    percent,
    rounded_down,
    share_having,
)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (1, "1"),
        (0.1234, "0.123"),
        (999.4, "999"),
        (1234.5, "1234"),
        (99999, "99999"),
        (123456, "1.23e5"),
        (1e-4, "1e-4"),
        (1.5e-9, "1.5e-9"),
        (-2e7, "-2e7"),
    ],
)
def test_number(value: float, text: str) -> None:
    assert number(value) == text


def test_percent_and_count() -> None:
    assert percent(2.2) == "220 %"
    assert count(1, "eigenvalue") == "1 eigenvalue"
    assert count(2, "eigenvalue") == "2 eigenvalues"
    assert share_having(1, 1, "eigenvalue") == "1 of 1 eigenvalue has"
    assert share_having(2, 64, "eigenvalue") == "2 of 64 eigenvalues have"
    assert duration(1.0) == "1 step"
    assert duration(38.42) == "38.4 steps"


@pytest.mark.parametrize(
    ("value", "text"), [(4.5e-4, "4e-4"), (1e-3, "1e-3"), (0.078, "0.07"), (3.9, "3"), (5e5, "5e5")]
)
def test_rounded_down(value: float, text: str) -> None:
    assert rounded_down(value) == text


@given(st.floats(1e-300, 1e300))
def test_rounded_down_stays_a_bound(value: float) -> None:
    assert value / 2.0000001 < float(rounded_down(value)) <= value * (1 + 1e-9)
