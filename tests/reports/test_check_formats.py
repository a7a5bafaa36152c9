"""The outcome of a check in each format, read back by that format's own readers."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from junitparser import Error, Failure, JUnitXml, Skipped
from reports.build import layer, parameter, report
from reports.streams import Stream

from memcurse_cli.diagnosis.check import check
from memcurse_cli.diagnosis.policy import Limit, Policy, RuleSet
from memcurse_cli.diagnosis.rules import RULES
from memcurse_cli.reports.check import to_github, to_junit, to_sarif
from memcurse_cli.schema.derived import Check
from memcurse_cli.schema.report import CheckpointSummary, Finding, Report, SkippedLayer

SCHEMA = Path(__file__).parent / "schemas" / "sarif-2.1.0.json"
HOSTILE = "a%b,c:d\r\n::error::\x1b[31m<&\"'\u202e]]>λ"
POLICY = Policy(
    (
        RuleSet(
            limits=(
                Limit("max-step-effect", 0.5, "memcurse.toml:4"),
                Limit("min-diagonality", 0.1, "memcurse.toml:5"),
            ),
            forbid=("MC2",),
        ),
    )
)


def network(name: str = "encoder.0", effect: float | None = 2.0) -> Report:
    found = Finding("MC201", "error", f"one step on nu of {name}", "use another", "a paper")
    made = layer(name, "lru", [10.0], [parameter("nu", effect), parameter("theta", 0.1)], (found,))
    return report(made, skipped=(SkippedLayer("bad", "lru", "NaN"),))


OUTCOMES = {
    "failing": check([network(), network(effect=None)], POLICY),
    "known": check([network(effect=2.2)], POLICY, baseline=[network(effect=2.19)]),
    "allowed": check([network()], Policy(POLICY.rule_sets, allow_missing=True)),
    "hostile": check([network(HOSTILE)], POLICY),
    "passing": check([report(layer("a", "lru", [1.0], [parameter("nu", 0.01)]))], Policy()),
}


each_outcome = pytest.mark.parametrize("outcome", OUTCOMES.values(), ids=list(OUTCOMES))


def failures(outcome: Check) -> int:
    return sum(len(one.failures) for one in outcome.reports)


def log(outcome: Check) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(to_sarif(outcome, RULES.values()))
    return loaded


@each_outcome
def test_sarif_is_what_its_schema_says(outcome: Check) -> None:
    schema = json.loads(SCHEMA.read_text())
    validator = jsonschema.validators.validator_for(schema)
    validator.check_schema(schema)
    validator(schema, format_checker=jsonschema.FormatChecker()).validate(log(outcome))
    assert to_sarif(outcome, RULES.values()).isascii()


@each_outcome
def test_sarif_results_point_at_their_rules_and_artifacts(outcome: Check) -> None:
    run = log(outcome)["runs"][0]
    rules = run["tool"]["driver"]["rules"]
    for result in run["results"]:
        assert rules[result["ruleIndex"]]["id"] == result["ruleId"]
        place = result["locations"][0]["physicalLocation"]["artifactLocation"]
        assert run["artifacts"][place["index"]]["location"]["uri"] == place["uri"]
    new = [result for result in run["results"] if result.get("baselineState") != "unchanged"]
    errors = [result for result in new if result["level"] == "error"]
    assert len(errors) == failures(outcome)


def test_sarif_fingerprints_stay_while_figures_change() -> None:
    before, after = (log(check([network(effect=x)], POLICY))["runs"][0] for x in (2.0, 3.0))

    def prints(run: dict[str, Any]) -> list[Any]:
        return [result["partialFingerprints"] for result in run["results"]]

    assert prints(before) == prints(after)
    assert len({json.dumps(one) for one in prints(before)}) == len(before["results"])


@pytest.mark.parametrize(
    ("path", "uri"),
    [
        ("a b/ä.pt", "a%20b/%C3%A4.pt"),
        ("/data/x#1.pt", "file:///data/x%231.pt"),
        ("https://host/a b.pt?x=1", "https://host/a%20b.pt?x=1"),
        ("C%3A.pt", "C%253A.pt"),
    ],
)
def test_sarif_paths_are_uris(path: str, uri: str) -> None:
    checkpoint = CheckpointSummary(path, "safetensors", 1, 1, 1)
    made = report(network().layers[0], checkpoint=checkpoint)
    run = log(check([made], POLICY))["runs"][0]
    assert run["artifacts"][0]["location"]["uri"] == uri


@each_outcome
def test_junit_is_read_by_a_stranger(outcome: Check, tmp_path: Path) -> None:
    text = to_junit(outcome)
    assert text.isascii()
    file = tmp_path / "junit.xml"
    file.write_text(text)
    suites = JUnitXml.fromfile(str(file))
    cases = [case for suite in suites for case in suite]
    results = [type(result) for case in cases for result in case.result]
    assert results.count(Failure) + results.count(Error) == failures(outcome)
    skipped = sum(len(one.known) + len(one.missing) for one in outcome.reports)
    assert results.count(Skipped) == skipped
    assert len(cases) == sum(len(one.judgements) for one in outcome.reports)
    assert (suites.tests, suites.failures + suites.errors) == (len(cases), failures(outcome))


@each_outcome
def test_github_writes_one_command_per_failure_and_nothing_else_that_is_one(
    outcome: Check,
) -> None:
    lines = to_github(outcome, file=Path("out")).split("\n")
    commands = [line for line in lines if line.startswith("::")]
    assert [line.split(" ")[0] for line in commands].count("::error") == failures(outcome)
    pattern = r"::(error|warning) file=[^,:]+,title=[^,:]+::[^:].*"
    assert all(re.fullmatch(pattern, line) for line in commands)
    assert len(lines) == len(commands) + 1
    assert lines[-1].startswith("memcurse check: ")


def test_github_escapes_what_is_written_in_ascii(monkeypatch: pytest.MonkeyPatch) -> None:
    name = "a\uff0cfile=b\uff1a\uff1ac\uff0525"
    monkeypatch.setattr("sys.stdout", Stream(terminal=False, encoding="ascii"))
    (first, *_) = to_github(check([network(name)], POLICY)).split("\n")
    assert "a%2Cfile=b%3A%3Ac%2525" in first
    assert re.match(r"::error file=[^,:]+,title=[^,:]+::[^:]", first)


def test_github_escapes_come_back_as_the_name_was() -> None:
    (first, *_) = to_github(OUTCOMES["hostile"], file=Path("out")).split("\n")
    title = first.partition("title=")[2].partition("::")[0]
    for code, character in (("%0D", "\r"), ("%0A", "\n"), ("%3A", ":"), ("%2C", ","), ("%25", "%")):
        title = title.replace(code, character)
    shown = HOSTILE.replace("\x1b", "\\x1b").replace("\u202e", "\\u202e")
    assert title == f"max-step-effect {shown}, nu"
