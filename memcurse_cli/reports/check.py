"""The outcome of `memcurse check`: a page of text, GitHub's annotations, JUnit XML, SARIF 2.1.0."""

from __future__ import annotations

import hashlib
import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path, PurePath
from typing import Any
from urllib.parse import quote
from xml.etree import ElementTree

from rich.text import Text

from memcurse_cli.diagnosis.policy import BY_NAME, READABLE
from memcurse_cli.reports.console import (
    ALARM,
    LABEL,
    NAME,
    TITLE,
    VERDICT_STYLES,
    Screen,
    capitalised,
    text_of,
    to_ascii,
    visible,
)
from memcurse_cli.reports.grid import paragraph
from memcurse_cli.reports.numbers import count, percent
from memcurse_cli.schema.derived import Check, CheckedReport, Judgement
from memcurse_cli.schema.report import RuleDocument


def subject(judgement: Judgement) -> str:
    """``layer`` or ``layer, group``."""
    return ", ".join(part for part in (judgement.layer, judgement.subject) if part)


def sentence(judgement: Judgement) -> str:
    """What is wrong, who set the limit, and what to do about it."""
    said = judgement.message
    if judgement.origin:
        said += f" ({judgement.origin})"
    return f"{said}; {judgement.advice}" if judgement.advice else said


def summary(check: Check) -> str:
    """How many failures in how many layers, in one line."""
    failures = sum(len(report.failures) for report in check.reports)
    layers = sum(report.layers for report in check.reports)
    if not failures:
        said = f"nothing fails in {count(layers, 'layer')}"
    else:
        failing = sum(len(failing_layers(report)) for report in check.reports)
        said = f"{count(failures, 'failure')} in {failing:,} of {count(layers, 'layer')}"
    known = sum(len(report.known) for report in check.reports)
    if check.tolerance is not None:
        said += f"; {known:,} no worse than in the baseline, within {percent(check.tolerance)}"
    if check.default_policy:
        said += "; no limit is set, so cursed layers and findings of severity error fail"
    return said


def failing_layers(report: CheckedReport) -> set[str]:
    """The names of the layers that something fails in."""
    return {judgement.layer for judgement in report.failures}


NAME_WIDTH = 48


def to_text(check: Check, *, file: Path | None = None) -> str:
    """What standard output would show, or the text for a file."""
    return text_of(partial(lines, check), file)


def lines(check: Check, screen: Screen) -> Iterator[Text]:
    """The page line by line."""
    for report in check.reports:
        yield from _report(screen, report)
    word, style = ("passed", VERDICT_STYLES["ok"]) if check.passed else ("failed", ALARM)
    said = summary(check)
    yield from paragraph(
        screen,
        screen.sentence(f"{capitalised(said)}.", TITLE),
        gutter=[(word, style)],
    )


def _report(screen: Screen, report: CheckedReport) -> Iterator[Text]:
    yield Text(screen.shorten(screen.clean(report.path), screen.width).rstrip(), TITLE)
    for judgement in report.failures:
        yield from _line(screen, judgement, "fail", ALARM)
    for judgement in report.missing:
        yield from _line(screen, judgement, "missing", VERDICT_STYLES["watch"])
    for judgement in report.known:
        yield from _line(screen, judgement, "known", LABEL)
    yield Text()


def _line(screen: Screen, judgement: Judgement, word: str, style: str) -> Iterator[Text]:
    place = Text(screen.shorten(screen.clean(judgement.layer), NAME_WIDTH), NAME)
    place.append(": ", LABEL).append_text(screen.sentence(judgement.message))
    if judgement.origin:
        place.append(f" ({screen.clean(judgement.origin)})", LABEL)
    said = [place]
    if judgement.advice and judgement.fails:
        advice = Text(f"{screen.glyphs.advice} ", LABEL)
        said.append(advice.append_text(screen.sentence(judgement.advice)))
    code = judgement.rule if judgement.outcome == "found" else ""
    yield from paragraph(screen, *said, gutter=[(word, style), (screen.clean(code), LABEL)])


def to_github(check: Check, *, file: Path | None = None) -> str:
    """One ``::error`` per failure, one ``::warning`` per figure that is allowed to be missing.

    Within a line ``%``, ``\\r`` and ``\\n`` are escaped, in a property ``:`` and ``,`` too, as in
    actions/toolkit; other control characters, which a tensor's name may hold, are made visible.
    The text is ASCII where standard output can write nothing else and no file is named.
    """
    unicode = file is not None or (sys.stdout.encoding or "").lower().startswith("utf")
    # Before the escapes: in ASCII a character can become one that has to be escaped.
    written = str if unicode else to_ascii
    lines = [
        _annotation("error" if judgement.fails else "warning", report.path, judgement, written)
        for report in check.reports
        for judgement in (*report.failures, *report.missing)
    ]
    return "\n".join([*lines, f"memcurse check: {written(summary(check))}"])


def _annotation(level: str, path: str, judgement: Judgement, written: Callable[[str], str]) -> str:
    title = f"{judgement.rule} {subject(judgement)}"
    path, title, said = map(written, (path, title, sentence(judgement)))
    return f"::{level} file={_property(path)},title={_property(title)}::{_data(said)}"


def _data(text: str) -> str:
    kept = (part if part in "\r\n" else visible(part) for part in re.split("([\r\n])", text))
    return "".join(kept).replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")


NOT_COMPUTED = "not computed"


def to_junit(check: Check) -> str:
    """The XML text in ASCII.

    A failure has the rule as its type. A figure that is missing and may be, and what the baseline
    knows, are skipped cases.
    """
    suites = [_suite(report) for report in check.reports]
    root = ElementTree.Element("testsuites", _counts(suites))
    root.extend(suites)
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="us-ascii", xml_declaration=True).decode("ascii")


def _suite(report: CheckedReport) -> ElementTree.Element:
    cases = [_case(report, judgement) for judgement in report.judgements]
    suite = ElementTree.Element("testsuite", {"name": visible(report.path)})
    suite.extend(cases)
    for word, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        suite.set(word, str(sum(case.find(tag) is not None for case in cases)))
    suite.set("tests", str(len(cases)))
    return suite


def _counts(suites: list[ElementTree.Element]) -> dict[str, str]:
    return {
        word: str(sum(int(suite.get(word, "0")) for suite in suites))
        for word in ("tests", "failures", "errors")
    }


def _case(report: CheckedReport, judgement: Judgement) -> ElementTree.Element:
    name = " ".join(part for part in (judgement.rule, judgement.subject) if part)
    case = ElementTree.Element(
        "testcase",
        {
            "classname": visible(judgement.layer),
            "name": visible(name),
            "file": visible(report.path),
        },
    )
    if judgement.fails:
        # An error is a test that could not be made, a failure one that was.
        tag = "error" if judgement.outcome == NOT_COMPUTED else "failure"
        said = {"message": visible(judgement.message), "type": judgement.rule}
        ElementTree.SubElement(case, tag, said).text = visible(sentence(judgement))
    elif judgement.known or judgement.outcome == NOT_COMPUTED:
        why = "no worse than in the baseline: " if judgement.known else ""
        ElementTree.SubElement(case, "skipped", {"message": visible(why + judgement.message)})
    return case


VERSION = "2.1.0"
SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
LEVELS = {"info": "note", "warning": "warning", "error": "error"}
FINGERPRINT = "memcurseJudgement/v1"


def to_sarif(check: Check, rules: Iterable[RuleDocument]) -> str:
    """The log as JSON in ASCII: one run, whose results are all that fails, is known or missing."""
    results = [
        (report, judgement)
        for report in check.reports
        for judgement in (*report.failures, *report.missing, *report.known)
    ]
    by_code = {rule.code: rule for rule in rules}
    paths = list(dict.fromkeys(report.path for report in check.reports))
    used = list(dict.fromkeys(judgement.rule for _, judgement in results))
    log = {
        "$schema": SCHEMA,
        "version": VERSION,
        "runs": [
            {
                "tool": {
                    "driver": {
                        "name": "memcurse",
                        "version": check.version,
                        "semanticVersion": check.version,
                        "rules": [_rule(name, by_code) for name in used],
                    }
                },
                "invocations": [{"executionSuccessful": True, "exitCode": int(not check.passed)}],
                "artifacts": [{"location": _artifact(path)} for path in paths],
                "results": [
                    _result(report.path, paths.index(report.path), judgement, used)
                    for report, judgement in results
                ],
            }
        ],
    }
    return json.dumps(log, indent=2, allow_nan=False)


def _rule(name: str, rules: Mapping[str, RuleDocument]) -> dict[str, Any]:
    rule = rules.get(name)
    if rule is not None:
        return {
            "id": name,
            "shortDescription": {"text": rule.title},
            "fullDescription": {"text": f"{rule.what} {rule.why}"},
            "help": {"text": f"{rule.change}\n{rule.equation}\n{rule.source}"},
        }
    if name in BY_NAME:
        kind = BY_NAME[name]
        return {
            "id": name,
            "shortDescription": {"text": f"limit on the {kind.noun}"},
            "fullDescription": {"text": kind.meaning},
        }
    words = "a layer that cannot be read" if name == READABLE else "a finding"
    return {"id": name, "shortDescription": {"text": words}}


def _result(path: str, index: int, judgement: Judgement, rules: list[str]) -> dict[str, Any]:
    severity = judgement.severity if judgement.fails or judgement.known else "warning"
    names = [part for part in (judgement.layer, judgement.subject) if part]
    result: dict[str, Any] = {
        "ruleId": judgement.rule,
        "ruleIndex": rules.index(judgement.rule),
        "level": LEVELS[severity],
        "message": {"text": f"{visible(subject(judgement))}: {visible(sentence(judgement))}"},
        "locations": [
            {
                "physicalLocation": {
                    "artifactLocation": {**_artifact(path), "index": index},
                    # A checkpoint has no lines, but services show no result without one.
                    "region": {"startLine": 1},
                },
                "logicalLocations": [
                    {
                        "name": visible(names[-1]),
                        "fullyQualifiedName": visible("/".join(names)),
                        "kind": "member" if judgement.subject else "module",
                    }
                ],
            }
        ],
        "partialFingerprints": {FINGERPRINT: _fingerprint(judgement)},
        "properties": {
            "family": judgement.family,
            "outcome": judgement.outcome,
            "figure": judgement.figure,
            "bound": judgement.bound,
            "tensor": visible(judgement.tensor),
        },
    }
    if judgement.known:
        result["baselineState"] = "unchanged"
    return result


def _artifact(path: str) -> dict[str, Any]:
    """A relative path as a relative reference, an absolute one as a file: URI, a URL as itself."""
    if "://" in path:
        return {"uri": quote(path, safe=":/?#[]@!$&'()*+,;=%~")}
    if PurePath(path).is_absolute():
        return {"uri": "file://" + quote(PurePath(path).as_posix())}
    return {"uri": quote(PurePath(path).as_posix())}


def _fingerprint(judgement: Judgement) -> str:
    """What stays the same while figures change, so that a service tells old from new."""
    return hashlib.sha256("\0".join(judgement.key).encode(errors="surrogatepass")).hexdigest()[:32]
