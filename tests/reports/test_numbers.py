"""Numbers as tables say them."""

from __future__ import annotations

import re
from collections.abc import Callable
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memcurse_cli.reports.numbers import count, effect, number, percent, quantile, setting, size
from memcurse_cli.schema.figures import Quantiles

TABLES: dict[Callable[[float], str], dict[float, str]] = {
    number: {
        0.0: "0",
        -2.5: "-2.50",
        12.34: "12.3",
        999.6: "1000",
        12345.0: "12300",
        99949.0: "99900",
        99950.0: "1e5",
        123456.0: "1.23e5",
        120000.0: "1.2e5",
        0.00123: "0.00123",
        0.000999: "9.99e-4",
        1.7e308: "1.7e308",
        5e-324: "4.94e-324",
    },
    percent: {2.2: "220 %", 0.0123: "1.23 %", 1e-7: "1e-5 %", 1e308: "1e310 %", 0.0: "0 %"},
    setting: {1e-3: "0.001", 1e-5: "1e-5", 0.997: "0.997", 1.0: "1", 0: "0"},
    size: {
        0: "0 bytes",
        1: "1 byte",
        999: "999 bytes",
        1000: "1.00 kB",
        999_999: "1.00 MB",
        2_800_000_000: "2.80 GB",
        10**16: "10000 TB",
    },
}


@pytest.mark.parametrize("written", TABLES)
def test_a_number_is_written_as_a_reader_expects(written: Callable[[float], str]) -> None:
    assert {value: written(value) for value in TABLES[written]} == TABLES[written]


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_three_digits_are_right_and_short(value: float) -> None:
    text = number(value)
    shown, exact = Decimal(text), Decimal(value)
    assert abs(shown - exact) <= abs(exact) * Decimal("0.005")
    assert re.fullmatch(r"-?\d+(\.\d+)?(e-?\d+)?", text)
    assert len(text) <= 10


def test_count() -> None:
    assert (count(1, "layer"), count(2048, "step")) == ("1 layer", "2,048 steps")


def test_what_diverges_is_said_and_what_is_not_there_is_a_dash() -> None:
    finite = Quantiles(1.0, 2.0, 3.0, 4.0, 5.0)
    diverging = Quantiles(1.0, 2.0, None, None, None, divergent=3)
    empty = Quantiles(None, None, None, None, None)
    assert (quantile("max")(finite), quantile("p50")(diverging)) == ("5.00", "2.00")
    assert quantile("max")(diverging) == "divergent"
    assert quantile("max")(empty) == "-"
    assert effect(2.2, divergent=0) == "220 %"
    assert effect(None, divergent=1) == "divergent"
    assert effect(None, divergent=0) == "-"
