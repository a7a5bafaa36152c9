"""The outcome of `memcurse check`: a page, Markdown, annotations of GitHub's, JUnit XML, SARIF."""

from __future__ import annotations

import hashlib
import json
import os
import re
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote
from xml.etree import ElementTree

from rich.text import Text

from memcurse_cli.checkpoints.registry import FORMATS
from memcurse_cli.checkpoints.untrusted.names import is_url
from memcurse_cli.diagnosis.policy import BY_NAME, NOT_JUDGED, READABLE
from memcurse_cli.diagnosis.rules import RULES
from memcurse_cli.reports.answer import rate_words, steps
from memcurse_cli.reports.console import (
    ALARM,
    LABEL,
    NAME,
    TITLE,
    VERDICT_STYLES,
    Screen,
    capitalised,
    inert,
    text_of,
    to_ascii,
    visible,
    writes_unicode,
)
from memcurse_cli.reports.grid import paragraph
from memcurse_cli.reports.numbers import count, percent, setting
from memcurse_cli.schema.derived import Check, CheckedReport, Judgement


def subject(judgement: Judgement) -> str:
    """``layer`` or ``layer, group``; empty for the model."""
    return ", ".join(part for part in (judgement.layer, judgement.subject) if part)


def sentence(judgement: Judgement) -> str:
    """What is wrong, who set the limit, and what to do about it."""
    said = judgement.message
    if judgement.origin:
        said += f" ({judgement.origin})"
    return f"{said}; {judgement.advice}" if judgement.advice else said


def summary(check: Check) -> str:
    """How much fails, what was not judged and what the baseline knows, in one line."""
    failing = [report for report in check.reports if report.failures]
    missing = sum(bool(report.missing) for report in check.reports)
    of_all = count(len(check.reports), "checkpoint")
    said = f"nothing fails in {of_all}"
    if failing:
        failures = count(sum(len(report.failures) for report in failing), "failure")
        said = f"{failures} in {len(failing):,} of {of_all}"
    if missing:
        said += f"; {missing:,} could not be judged in full"
    known = sum(len(report.known) for report in check.reports)
    if check.tolerance is not None:
        said += f"; {known:,} no worse than in the baseline, within {percent(check.tolerance)}"
    if check.default_policy:
        said += "; no limit is set, so cursed layers and findings of severity error fail"
    return said


def checkout_file(path: str) -> str:
    """The file that stands for a checkpoint in the checkout, from its root; empty for none.

    Of a folder that is its config.json, else the index of its shards, else its first file of
    weights. A URL has none, and neither has what lies outside the checkout: $GITHUB_WORKSPACE
    where the working directory lies in it, else that.
    """

    def place(name: str) -> tuple[bool, bool, bool, str]:
        return name != "config.json", not name.endswith(INDEXES), not name.endswith(WEIGHTS), name

    file = Path(path)
    try:
        if file.is_dir():
            names = (one.name for one in file.iterdir() if one.is_file())
            file /= min(names, key=place, default="")
        here, workspace = Path.cwd(), Path(os.environ.get("GITHUB_WORKSPACE") or ".").resolve()
        root = workspace if here.is_relative_to(workspace) else here
        there = file.is_file() and not is_url(path)
        return Path(os.path.abspath(file)).relative_to(root).as_posix() if there else ""
    except (OSError, ValueError):
        return ""


INDEXES = (".index.json", ".index")
WEIGHTS = tuple(extension for one in FORMATS for extension in one.extensions)
NAME_WIDTH = 48


def to_text(check: Check, *, file: Path | None = None) -> str:
    """What standard output would show, or the text for a file."""
    return text_of(partial(lines, check), file)


def lines(check: Check, screen: Screen) -> Iterator[Text]:
    """The page line by line: of each checkpoint what there is to say, and the outcome."""
    for report in check.reports:
        told = [(judgement, "fail", ALARM) for judgement in report.failures]
        told += [(judgement, "not judged", LABEL) for judgement in report.missing]
        told += [(judgement, "known", LABEL) for judgement in report.known]
        if told:
            yield Text(screen.shorten(screen.clean(report.path), screen.width).rstrip(), TITLE)
            for judgement, words, style in told:
                yield from _line(screen, judgement, words, style)
            yield Text()
    word, style = ("passed", VERDICT_STYLES["ok"]) if check.passed else ("failed", ALARM)
    said_of_all = screen.sentence(f"{capitalised(summary(check))}.", TITLE)
    yield from paragraph(screen, said_of_all, gutter=[(word, style)])


def _line(screen: Screen, judgement: Judgement, words: str, style: str) -> Iterator[Text]:
    place = Text(screen.shorten(screen.clean(judgement.layer), NAME_WIDTH), NAME)
    place.append(": " if judgement.layer else "", LABEL)
    place.append_text(screen.sentence(judgement.message))
    if judgement.origin:
        place.append(f" ({screen.clean(judgement.origin)})", LABEL)
    said = [place]
    if judgement.advice and not judgement.known:
        advice = Text(screen.clean("→ "), LABEL)
        said.append(advice.append_text(screen.sentence(judgement.advice)))
    gutter = [(word, style) for word in words.split()]
    gutter += [(screen.clean(judgement.rule), LABEL)] if judgement.outcome == "found" else []
    yield from paragraph(screen, *said, gutter=gutter)


SHOWN = 20
SPECIAL = re.compile(r"[&<>|`*\[\]~$@#\\!^{}]|:(?=/)|(?<![^\W_])_|_(?![^\W_])")
"""What could be more than text in Markdown or in HTML."""


def to_markdown(check: Check, *, file: Path | None = None) -> str:
    """A table of the checkpoints, then the sentence and what to do where one needs attention."""
    heading = f"### memcurse check: {'passed' if check.passed else 'failed'}"
    said = [heading, f"{_plain(capitalised(summary(check)))}."]
    rows = ["| checkpoint | verdict | memory | usable rate | your rate | what fails |"]
    rows += ["|---|---|--:|--:|--:|---|", *map(_row, check.reports)]
    said.append("\n".join(rows))
    attention = [one for one in check.reports if one.verdict != "ok" or one.failures]
    for report in attention[:SHOWN]:
        said += [f"**{_plain(report.path)}**  \n{_plain(report.sentence)}", _what_to_do(report)]
    if len(attention) > SHOWN:
        said.append(f"{len(attention) - SHOWN:,} more need attention.")
    text = "\n\n".join(filter(None, said))
    stream = sys.stdout if file is None else None
    if not writes_unicode(stream):
        text = text.encode("ascii", "xmlcharrefreplace").decode("ascii")
    return inert(text, stream)


def _plain(text: str) -> str:
    """Text as Markdown shows it, with nothing in it that is more than text."""
    return SPECIAL.sub(lambda found: f"&#{ord(found[0])};", visible(text))


def _row(report: CheckedReport) -> str:
    fails = ", ".join(dict.fromkeys(one.rule for one in report.failures)) or "-"
    rates = rate_words(report.usable_rate.rate), setting(report.learning_rate)
    cells = (report.path, report.verdict.replace("_", " "), steps(report.memory), *rates, fails)
    return f"| {' | '.join(map(_plain, cells))} |"


def _what_to_do(report: CheckedReport) -> str:
    """What fails or is missing, where the sentence does not say it, then what to do and paste."""
    told = [*report.failures, *(one for one in report.missing if one.rule != NOT_JUDGED)]
    said = [f"- {_plain(': '.join(filter(None, (one.layer, sentence(one)))))}" for one in told]
    said[SHOWN:] = [f"- {len(told) - SHOWN:,} more"] if len(told) > SHOWN else []
    said += [""] if told and report.actions else []
    for place, action in enumerate(report.actions, 1):
        said.append(f"{place}. {_plain(action.text)}{_code(action.command)}")
    return "\n".join(said)


def _code(command: str) -> str:
    """A command to copy: between more backticks than it holds."""
    fence = "`" * (max(map(len, re.findall("`+", command)), default=0) + 1)
    pad = " " if "`" in command else ""
    return f" {fence}{pad}{visible(command)}{pad}{fence}" if command else ""


def to_github(check: Check, *, file: Path | None = None) -> str:
    """One ``::error`` per failure, one ``::warning`` per figure that is allowed to be missing.

    Within a line ``%``, ``\\r`` and ``\\n`` are escaped, in a property ``:`` and ``,`` too, as in
    actions/toolkit; other control characters, which a tensor's name may hold, are made visible.
    The text is ASCII where standard output can write nothing else and no file is named.
    """
    # Before the escapes: in ASCII a character can become one that has to be escaped.
    written = str if writes_unicode(sys.stdout if file is None else None) else to_ascii
    lines = [
        _annotation(report.path, judgement, written)
        for report in check.reports
        for judgement in (*report.failures, *report.missing)
    ]
    return "\n".join([*lines, f"memcurse check: {written(summary(check))}"])


def _annotation(path: str, judgement: Judgement, written: Callable[[str], str]) -> str:
    level, file = "error" if judgement.fails else "warning", checkout_file(path)
    title = _property(written(f"{judgement.rule} {subject(judgement)}".strip()))
    place = f"file={_property(written(file))}," if file else ""
    said = sentence(judgement) if file else f"{path}: {sentence(judgement)}"
    return f"::{level} {place}title={title}::{_data(written(said))}"


def _data(text: str) -> str:
    kept = (part if part in "\r\n" else visible(part) for part in re.split("([\r\n])", text))
    return "".join(kept).replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")


def to_junit(check: Check) -> str:
    """The XML text in ASCII.

    A failure has its rule as type. What may be missing and is, or the baseline knows, is skipped.
    """
    root = ElementTree.Element("testsuites")
    for report in check.reports:
        suite = ElementTree.SubElement(root, "testsuite", {"name": visible(report.path)})
        suite.extend(_case(report, judgement) for judgement in report.judgements)
        _count(suite, "skipped")
    _count(root)
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="us-ascii", xml_declaration=True).decode("ascii")


def _count(element: ElementTree.Element, *also: str) -> None:
    """Write how many cases are inside, and how many of them have each outcome."""
    element.set("tests", str(len(list(element.iter("testcase")))))
    for word in ("failures", "errors", *also):
        element.set(word, str(len(list(element.iter(word.removesuffix("s"))))))


def _case(report: CheckedReport, judgement: Judgement) -> ElementTree.Element:
    name, place = f"{judgement.rule} {judgement.subject}".strip(), visible(report.path)
    layer = visible(judgement.layer) or place
    case = ElementTree.Element("testcase", classname=layer, name=visible(name), file=place)
    missing = judgement.outcome == "not computed"
    if judgement.fails:
        # An error is a test that could not be made, a failure one that was.
        tag = "error" if missing else "failure"
        said = {"message": visible(judgement.message), "type": judgement.rule}
        ElementTree.SubElement(case, tag, said).text = visible(sentence(judgement))
    elif judgement.known or missing:
        why = "no worse than in the baseline: " if judgement.known else ""
        ElementTree.SubElement(case, "skipped", {"message": visible(why + judgement.message)})
    return case


LEVELS = {"info": "note", "warning": "warning", "error": "error"}


def to_sarif(check: Check) -> str:
    """The log as JSON in ASCII: one run, whose results are all that fails, is known or missing."""
    results = [
        (report, judgement)
        for report in check.reports
        for judgement in (*report.failures, *report.missing, *report.known)
    ]
    files = {report.path: checkout_file(report.path) for report in check.reports}
    used = list(dict.fromkeys(judgement.rule for _, judgement in results))
    driver = {"name": "memcurse", "version": check.version, "semanticVersion": check.version}
    run = {
        "tool": {"driver": {**driver, "rules": list(map(_rule, used))}},
        "invocations": [{"executionSuccessful": True, "exitCode": int(not check.passed)}],
        "results": [_result(one, report.path, files[report.path], used) for report, one in results],
    }
    schema = "https://json.schemastore.org/sarif-2.1.0.json"
    log = {"$schema": schema, "version": "2.1.0", "runs": [run]}
    return json.dumps(log, indent=2, allow_nan=False)


def _rule(name: str) -> dict[str, Any]:
    rule = RULES.get(name)
    if rule is not None:
        return {
            "id": name,
            "shortDescription": {"text": rule.title},
            "fullDescription": {"text": f"{rule.what} {rule.why}"},
            "help": {"text": f"{rule.change}\n{rule.equation}\n{rule.source}"},
        }
    others = {READABLE: "a layer that cannot be read", NOT_JUDGED: "a layer that is not judged"}
    words = f"limit on the {BY_NAME[name].noun}" if name in BY_NAME else others[name]
    return {"id": name, "shortDescription": {"text": words}}


def _result(judgement: Judgement, path: str, file: str, rules: list[str]) -> dict[str, Any]:
    severity = judgement.severity if judgement.fails or judgement.known else "warning"
    said = filter(None, ("" if file else path, subject(judgement), sentence(judgement)))
    key = "\0".join(judgement.key).encode(errors="surrogatepass")
    result: dict[str, Any] = {
        "ruleId": judgement.rule,
        "ruleIndex": rules.index(judgement.rule),
        "level": LEVELS[severity],
        "message": {"text": visible(": ".join(said))},
        # Code scanning refuses a whole log for one location without a file in the checkout.
        "locations": [_location(judgement, file)] if file else [],
        # What stays the same while figures change, so that a service tells old from new.
        "partialFingerprints": {"memcurseJudgement/v1": hashlib.sha256(key).hexdigest()[:32]},
        "properties": {
            name: visible(value) if isinstance(value := getattr(judgement, name), str) else value
            for name in ("family", "outcome", "figure", "bound", "tensor")
        },
    }
    if judgement.known:
        result["baselineState"] = "unchanged"
    return result


def _location(judgement: Judgement, file: str) -> dict[str, Any]:
    # A checkpoint has no lines, but services show no result without one.
    physical = {"artifactLocation": {"uri": quote(file)}, "region": {"startLine": 1}}
    location: dict[str, Any] = {"physicalLocation": physical}
    names = [visible(part) for part in (judgement.layer, judgement.subject) if part]
    if names:
        kind = "member" if judgement.subject else "module"
        logical = {"name": names[-1], "fullyQualifiedName": "/".join(names), "kind": kind}
        location["logicalLocations"] = [logical]
    return location
