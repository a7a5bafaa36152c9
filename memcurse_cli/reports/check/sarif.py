"""The outcome of `memcurse check` as SARIF 2.1.0, the format of code scanning services."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import PurePath
from typing import Any
from urllib.parse import quote

from memcurse_cli.diagnosis.check.limits import BY_NAME
from memcurse_cli.diagnosis.check.policy import READABLE
from memcurse_cli.diagnosis.findings.facts import Rule
from memcurse_cli.reports.check.terminal import sentence, subject
from memcurse_cli.reports.console import visible
from memcurse_cli.schema.derived import Check, Judgement

VERSION = "2.1.0"
SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
LEVELS = {"info": "note", "warning": "warning", "error": "error"}
FINGERPRINT = "memcurseJudgement/v1"


def to_text(check: Check, rules: Iterable[Rule]) -> str:
    """The log as JSON in ASCII: one run, whose results are all that fails, is known or missing.

    Args:
        check: the outcome.
        rules: what the finding codes mean.
    """
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


def _rule(name: str, rules: Mapping[str, Rule]) -> dict[str, Any]:
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
