from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import memcurse_cli.diagnosis.findings as findings
from memcurse_cli.diagnosis.rules import RULES, find_rules, require_codes
from memcurse_cli.diagnosis.wording import (
    count,
    duration,
    number,
    percent,
    rounded_down,
    share_having,
)
from memcurse_cli.errors import UsageError
from memcurse_cli.schema.figures import Quantiles, quantiles
from memcurse_cli.schema.listings import RuleDocument

GROUPS = {
    "MC1": "dynamics",
    "MC2": "sensitivity",
    "MC3": "Hessian",
    "MC4": "precision",
    "MC5": "assumptions",
}


def test_no_code_is_used_twice() -> None:
    codes = [rule.code for rule in RULES.values()]
    assert len(codes) > 20
    assert len(set(codes)) == len(codes)
    assert codes == sorted(codes)


@pytest.mark.parametrize("rule", RULES.values(), ids=lambda rule: rule.code)
def test_a_rule_explains_itself(rule: RuleDocument) -> None:
    assert re.fullmatch(r"MC[1-5]\d\d", rule.code)
    for field in fields(rule):
        text = getattr(rule, field.name)
        assert text == " ".join(text.split()), field.name
        assert text, field.name
    for name in ("what", "why", "change"):
        text = getattr(rule, name)
        assert text[0].isupper() or text[0] == "λ", name
        assert text.endswith("."), name
    assert not rule.title.endswith(".")


def test_every_rule_is_found_somewhere() -> None:
    written = re.findall(r"\"(MC\d{3})\"", Path(findings.__file__).read_text())
    assert set(written) == set(RULES)


def test_a_beginning_finds_all_its_rules() -> None:
    assert [rule.code for rule in find_rules("mc204")] == ["MC204"]
    for group in GROUPS:
        assert {rule.code[:3] for rule in find_rules(group)} == {group}


@pytest.mark.parametrize("code", ["", "MC9", "MC2041", "E501"])
def test_another_code_is_refused(code: str) -> None:
    with pytest.raises(UsageError, match="MC204"):
        find_rules(code)


def test_a_prefix_that_matches_nothing_is_refused() -> None:
    require_codes(("MC", "MC1", "MC204"), "here")
    with pytest.raises(UsageError, match=r"here.*MC29"):
        require_codes(("MC1", "MC29"), "here")


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


def test_nan_is_a_defect_of_the_caller() -> None:
    with pytest.raises(ValueError, match="not a number"):
        quantiles(np.array([1.0, np.nan]))
