"""`memcurse rule` from the command line."""

from __future__ import annotations

import json

from end_to_end.command import assert_refused, memcurse

from memcurse_cli.diagnosis.rules import RULES


def test_without_a_code_every_rule_is_listed() -> None:
    result = memcurse("rule")
    assert (result.returncode, result.stderr) == (0, "")
    assert [line.split()[0] for line in result.stdout.splitlines()[1:]] == [
        rule.code for rule in RULES.values()
    ]


def test_a_code_is_explained_whole() -> None:
    (rule,) = (rule for rule in RULES.values() if rule.code == "MC204")
    said = " ".join(memcurse("rule", "mc204").stdout.split())
    for text in (rule.title, rule.what, rule.why, rule.equation, rule.change, rule.source):
        assert text in said


def test_json_is_every_field() -> None:
    everything = json.loads(memcurse("rule", "--json").stdout)
    assert everything["schema"] == "memcurse.rules/1"
    assert [rule["code"] for rule in everything["rules"]] == [rule.code for rule in RULES.values()]
    (one,) = json.loads(memcurse("rule", "MC101", "--json").stdout)["rules"]
    assert one in everything["rules"]
    assert set(one) == {"code", "title", "source", "what", "why", "equation", "change"}


def test_an_unknown_code_is_refused() -> None:
    assert_refused(memcurse("rule", "MC999"), "MC999", "known are")
