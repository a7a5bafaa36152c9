from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from memcurse_cli.diagnosis import findings, model
from memcurse_cli.diagnosis.rules import RULES, find_rules
from memcurse_cli.errors import UsageError
from memcurse_cli.schema.figures import Quantiles, quantiles
from memcurse_cli.wording import (
    count,
    duration,
    number,
    percent,
    rounded_down,
    share_having,
)


def test_every_rule_is_whole_and_found_somewhere() -> None:
    assert list(RULES) == sorted({rule.code for rule in RULES.values()})
    assert all(all(structs.astuple(rule)) for rule in RULES.values())
    modules = "".join(Path(one.__file__).read_text() for one in (findings, model))
    assert set(re.findall(r"\"(MC\d{3})\"", modules)) == set(RULES)


def test_a_beginning_finds_all_its_rules_and_another_is_refused() -> None:
    assert [rule.code for rule in find_rules("mc204")] == ["MC204"]
    assert {rule.code[:3] for rule in find_rules("MC3")} == {"MC3"}
    for other in ("", "MC9", "MC2041", "E501"):
        with pytest.raises(UsageError, match="MC204"):
            find_rules(other)


@pytest.mark.parametrize(
    ("found", "text"),
    [
        *((number(0), "0"), (number(0.1234), "0.123"), (number(1234.5), "1230")),
        (number(999.7), "1000"),
        *((number(99999), "100000"), (number(123456), "1.23e5"), (number(-1.5e-9), "-1.5e-9")),
        *((percent(2.2), "220 %"), (duration(1.0), "1 step"), (duration(38.42), "38.4 steps")),
        *((count(1, "value"), "1 value"), (count(2, "value"), "2 values")),
        (share_having(1, 1, "eigenvalue"), "1 of 1 eigenvalue has"),
        (share_having(2, 64, "eigenvalue"), "2 of 64 eigenvalues have"),
        *((rounded_down(4.5e-4), "4e-4"), (rounded_down(1e-3), "0.001"), (rounded_down(3.9), "3")),
    ],
)
def test_wording(found: str, text: str) -> None:
    assert found == text


@given(st.floats(1e-300, 1e300))
def test_rounded_down_stays_a_bound(value: float) -> None:
    assert value / 2.0000001 < float(rounded_down(value)) <= value * (1 + 1e-9)


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=50))
def test_finite_quantiles_are_numpys(elements: list[float]) -> None:
    found = quantiles(np.array(elements))
    expected = np.quantile(elements, [0, 0.5, 0.9, 0.99, 1])
    np.testing.assert_allclose(
        [found.min, found.p50, found.p90, found.p99, found.max], expected, rtol=1e-12, atol=1e-9
    )
    assert found.divergent == 0


def test_a_divergent_element_is_counted_and_never_printed() -> None:
    found = quantiles(np.array([np.inf, 1.0, 2.0, 3.0]))
    assert found == Quantiles(1.0, 2.5, None, None, None, divergent=1)
    with pytest.raises(ValueError, match="not a number"):
        quantiles(np.array([1.0, np.nan]))
