"""The outcome of `memcurse check` as JUnit XML: a suite per checkpoint, a case per judgement."""

from __future__ import annotations

from xml.etree import ElementTree

from memcurse_cli.reports.check.terminal import sentence
from memcurse_cli.reports.console import visible
from memcurse_cli.schema.derived import Check, CheckedReport, Judgement

NOT_COMPUTED = "not computed"


def to_text(check: Check) -> str:
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
