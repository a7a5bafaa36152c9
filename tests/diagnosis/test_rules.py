"""The registry of rules: complete, unique, and what the findings really cite."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import pytest

import memcurse_cli.diagnosis.findings as findings
from memcurse_cli.diagnosis.rules import RULES, find_rules, require_codes
from memcurse_cli.errors import UsageError
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
