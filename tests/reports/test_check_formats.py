"""The outcome of a check in each format, read back by that format's own readers."""

from __future__ import annotations

import json
import re
from html import escape
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import jsonschema
import pytest
from junitparser import Error, Failure, JUnitXml, Skipped
from markdown_it import MarkdownIt
from msgspec.structs import replace
from reports.build import layer, parameter, report
from reports.streams import Stream

from memcurse_cli.diagnosis.check import check
from memcurse_cli.diagnosis.policy import Limit, Policy, RuleSet
from memcurse_cli.reports.check import to_github, to_junit, to_markdown, to_sarif
from memcurse_cli.schema.derived import Check
from memcurse_cli.schema.report import Action, CheckpointSummary, Finding, Report, SkippedLayer

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
    "passing": check(
        [report(layer("a", "lru", [1.0], [parameter("nu", 0.01)], usable=1.0))], Policy()
    ),
    "not judged": check([report(layer("a", "lru", [1.0], []))], Policy()),
    "model": check(
        [report(findings=(Finding("MC107", "error", "its memory is 1", "", ""),))], Policy()
    ),
}


@pytest.fixture(autouse=True)
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout that has the checkpoint that reports are about."""
    (tmp_path / "model.safetensors").touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GITHUB_WORKSPACE", str(tmp_path))
    return tmp_path


def of(path: str) -> Check:
    """A failing checkpoint at this place."""
    checkpoint = CheckpointSummary(path, "safetensors", 1, 1, 1)
    return check([report(network().layers[0], checkpoint=checkpoint)], POLICY)


each_outcome = pytest.mark.parametrize("outcome", OUTCOMES.values(), ids=list(OUTCOMES))


def failures(outcome: Check) -> int:
    return sum(len(one.failures) for one in outcome.reports)


def log(outcome: Check) -> dict[str, Any]:
    return json.loads(to_sarif(outcome))


@each_outcome
def test_sarif_is_what_its_schema_says(outcome: Check) -> None:
    schema = json.loads(SCHEMA.read_text())
    validator = jsonschema.validators.validator_for(schema)
    validator.check_schema(schema)
    validator(schema, format_checker=jsonschema.FormatChecker()).validate(log(outcome))
    assert to_sarif(outcome).isascii()


@each_outcome
def test_sarif_results_point_at_their_rules_and_files(outcome: Check) -> None:
    run = log(outcome)["runs"][0]
    rules = run["tool"]["driver"]["rules"]
    for result in run["results"]:
        assert rules[result["ruleIndex"]]["id"] == result["ruleId"]
        place = result["locations"][0]["physicalLocation"]["artifactLocation"]
        assert place == {"uri": "model.safetensors"}
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
    ("path", "files", "named"),
    [
        ("a b/ä#1.pt", ["a b/ä#1.pt"], "a b/ä#1.pt"),
        ("{root}/x.pt", ["x.pt"], "x.pt"),
        ("run", ["run/config.json", "run/a.safetensors"], "run/config.json"),
        ("run", ["run/README.md", "run/m.safetensors.index.json", "run/a.pt"], "run/m.safeten"),
        ("run", ["run/README.md", "run/b.safetensors", "run/a/x.pt"], "run/b.safetensors"),
        ("run", ["run/0/default/_METADATA"], ""),
        ("absent.pt", [], ""),
        ("{root}/../other.pt", ["../other.pt"], ""),
        ("https://host/a b.pt", [], ""),
        ("hf://owner/model", ["hf:/owner/model"], ""),
    ],
)
def test_a_place_is_a_file_of_the_checkout(
    path: str, files: list[str], named: str, checkout: Path
) -> None:
    for file in files:
        (checkout / file).parent.mkdir(parents=True, exist_ok=True)
        (checkout / file).touch()
    path = path.format(root=checkout)
    (command, *_) = to_github(of(path), file=Path("out")).split("\n")
    (result, *_) = log(of(path))["runs"][0]["results"]
    if named:
        assert command.startswith(f"::error file={named}")
        place = result["locations"][0]["physicalLocation"]["artifactLocation"]["uri"]
        assert unquote(place).startswith(named)
        assert "#" not in place
    else:
        assert command.startswith("::error title=")
        assert f"::{path}: " in command
        # One location without a file makes GitHub refuse the whole log.
        assert result["locations"] == []
        assert result["message"]["text"].startswith(f"{path}: ")


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
def test_github_writes_one_command_per_failure_and_nothing_else_that_is_one(outcome: Check) -> None:
    lines = to_github(outcome, file=Path("out")).split("\n")
    commands = [line for line in lines if line.startswith("::")]
    assert [line.split(" ")[0] for line in commands].count("::error") == failures(outcome)
    pattern = r"::(error|warning) file=model.safetensors,title=[^,:]+::[^:].*"
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


@each_outcome
def test_markdown_is_a_table_and_what_to_do(outcome: Check) -> None:
    text = to_markdown(outcome, file=Path("out"))
    page = MarkdownIt().enable("table").render(text)
    assert page.count("<tr>") == 1 + len(outcome.reports)
    assert page.count("<td") == 6 * len(outcome.reports)
    assert ("passed" in text.split("\n")[0]) is outcome.passed
    attention = sum(one.verdict != "ok" or bool(one.failures) for one in outcome.reports)
    assert page.count("<strong>") == attention
    assert page.count("<li>") == failures(outcome) + sum(
        one.rule != "not-judged" for report in outcome.reports for one in report.missing
    )


def test_markdown_shows_names_as_they_are_and_nothing_else_of_them() -> None:
    name = "a|b\\|c <img src=x> **d** `e` [f](g) _h_ $i$ https://j \n::error::k"
    made = of(name).reports[0]
    hostile = replace(
        made, sentence=name, actions=(Action(name, "memcurse inspect 'a`b``c'"),), judgements=()
    )
    text = to_markdown(replace(of("x"), reports=(hostile,)), file=Path("out"))
    page = MarkdownIt("commonmark", {"html": True}).enable(["table"]).render(text)
    shown = escape(name.replace("\n", "\\n"))
    assert page.count(shown) == 4  # the table, above the sentence, the sentence, the action
    assert page.count("<td") == 6
    tags = set(re.findall(r"</?(\w+)", page))
    assert " ".join(sorted(tags)) == "br code h3 li ol p strong table tbody td th thead tr"
    assert "<code>memcurse inspect 'a`b``c'</code>" in page
    assert "\n::" not in text


def test_markdown_is_written_in_ascii_where_it_must(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdout", Stream(terminal=False, encoding="ascii"))
    text = to_markdown(of("ä＜b＞|.pt"))
    assert text.isascii()
    assert escape("ä＜b＞|.pt") in MarkdownIt().enable("table").render(text)
