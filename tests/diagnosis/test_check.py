"""Only what got worse fails against a baseline."""

from __future__ import annotations

from dataclasses import replace

import pytest
from reports.build import layer, parameter, report

from memcurse_cli.diagnosis.check.check import check
from memcurse_cli.diagnosis.check.policy import Limit, Policy, RuleSet
from memcurse_cli.errors import UsageError
from memcurse_cli.schema.derived import Check
from memcurse_cli.schema.figures import HessianSummary
from memcurse_cli.schema.report import Finding, Report


def policy(name: str, bound: float) -> Policy:
    return Policy((RuleSet(limits=(Limit(name, bound, "here"),)),))


STEPS = policy("max-step-effect", 0.5)


def network(**effects: float | None) -> Report:
    return report(
        *(layer(name, "lru", [10.0], [parameter("nu", effect)]) for name, effect in effects.items())
    )


def failing(outcome: Check) -> list[str]:
    return [judgement.layer for one in outcome.reports for judgement in one.failures]


@pytest.mark.parametrize(
    ("now", "before", "fails"),
    [
        ({"a": 0.9}, {"a": 1.0}, []),
        ({"a": 1.049}, {"a": 1.0}, []),
        ({"a": 1.06}, {"a": 1.0}, ["a"]),  # worse by more than the tolerance
        ({"a": None}, {"a": 1.0}, ["a"]),  # it diverges
        ({"a": None}, {"a": None}, []),  # as it did before
        ({"a": 0.4}, {"a": 0.01}, []),  # within the limit, however much worse
        ({"a": 1.0, "b": 0.51}, {"b": 0.5}, ["a", "b"]),  # new, and within the limit before
    ],
)
def test_only_what_got_worse_fails(
    now: dict[str, float | None], before: dict[str, float | None], fails: list[str]
) -> None:
    outcome = check([network(**now)], STEPS, baseline=[network(**before)])
    assert failing(outcome) == fails
    assert outcome.passed is not bool(fails)
    for known in outcome.reports[0].known:
        assert known.baseline == before[known.layer]


def test_a_lower_limit_is_worse_below() -> None:
    def with_diagonality(value: float) -> Report:
        one = layer("a", "lru", [10.0], [parameter("nu", 0.1)])
        return report(replace(one, hessian=HessianSummary(8, value, 1.0, 2.0, 3.0, 4.0, None)))

    limit = policy("min-diagonality", 0.5)
    assert check([with_diagonality(0.4)], limit, baseline=[with_diagonality(0.41)]).passed
    assert not check([with_diagonality(0.38)], limit, baseline=[with_diagonality(0.41)]).passed


def with_findings(*findings: tuple[str, str], effect: float = 2.0) -> Report:
    found = tuple(
        Finding("MC201", severity, message, "", "a paper")  # type: ignore[arg-type]  # one of three
        for severity, message in findings
    )
    return report(layer("a", "lru", [10.0], [parameter("nu", effect)], found))


def test_a_finding_is_known_unless_it_is_another_a_severer_or_a_larger_one() -> None:
    forbid = Policy((RuleSet(forbid=("MC201",)),))
    before = with_findings(("warning", "on nu by 200 %"))
    for after, passes in (
        (with_findings(("warning", "on nu by 190 %"), effect=1.9), True),
        (with_findings(("warning", "on nu by 250 %"), effect=2.5), False),
        (with_findings(("error", "on nu by 200 %")), False),
        (with_findings(("warning", "on theta by 200 %")), False),
        (with_findings(("warning", "on nu by 200 %"), ("warning", "on nu twice")), False),
        (with_findings(), True),
    ):
        assert check([after], forbid, baseline=[before]).passed is passes


def test_a_figure_that_was_missing_before_may_be_missing() -> None:
    limit = policy("min-diagonality", 0.5)
    assert check([network(a=0.1)], limit, baseline=[network(a=0.1)]).passed
    assert not check([network(a=0.1, b=0.1)], limit, baseline=[network(a=0.1)]).passed


def test_other_assumptions_do_not_compare() -> None:
    now = network(a=1.0)
    for change, word in (({"learning_rate": 3e-4}, "learning rate"), ({"horizon": 7}, "horizon")):
        before = replace(now, input=replace(now.input, **change))
        with pytest.raises(UsageError, match=word):
            check([now], STEPS, baseline=[before])
    with pytest.raises(UsageError, match="2 reports for 1"):
        check([now], STEPS, baseline=[now, now])
