"""Limits and finding codes against reports made by hand, and against a baseline."""

from __future__ import annotations

import math

import pytest
from msgspec.structs import replace
from reports.build import layer, parameter, report

from memcurse_cli.diagnosis.check import check, judge
from memcurse_cli.diagnosis.policy import Limit, Policy, RuleSet
from memcurse_cli.errors import UsageError
from memcurse_cli.schema.derived import Judgement
from memcurse_cli.schema.figures import HessianSummary
from memcurse_cli.schema.report import Finding, LayerReport, Report, Severity, SkippedLayer


def finding(
    code: str, severity: Severity = "error", message: str = "something is wrong"
) -> Finding:
    return Finding(code, severity, message, "mend it", "a paper")


def limited(name: str, bound: float, **scope: tuple[str, ...]) -> RuleSet:
    return RuleSet(limits=(Limit(name, bound, "here"),), **scope)


def one_layer(
    effect: float | None = 0.5, *findings: Finding, usable: float | None = 0.01
) -> LayerReport:
    groups = [parameter("nu", effect)]
    return layer("encoder.0", "lru", [10.0, 20.0], groups, findings, usable=usable)


CURSED, WATCHED = 1e-4, 1e-3
"""Usable rates of layers that are trained at 1e-3."""


def failures(report: Report, *rules: RuleSet, allow_missing: bool = False) -> list[Judgement]:
    policy = Policy(rules, allow_missing=allow_missing)
    return [judgement for judgement in judge(report, policy) if judgement.fails]


def test_by_default_every_error_fails_once_and_so_does_a_cursed_layer() -> None:
    rate, unstable = finding("MC207"), finding("MC101")
    found = failures(report(one_layer(2.0, unstable, rate, finding("MC301", "warning"))))
    assert [judgement.rule for judgement in found] == ["MC101", "MC207"]
    cursed = report(one_layer(2.0, unstable, usable=CURSED))
    # A report of 0.1 may hold a cursed layer without the error that says so.
    assert [one.rule for one in failures(cursed)] == ["MC101", "MC207"]
    assert [one.rule for one in failures(cursed, RuleSet(ignore=("MC1",)))] == ["MC207"]
    assert failures(cursed, RuleSet(ignore=("MC",))) == []
    assert failures(report(one_layer(0.5, usable=WATCHED))) == []
    # One limit replaces the default.
    assert failures(cursed, limited("max-time-constant", 100)) == []


def test_a_finding_of_the_model_fails_too_and_no_override_of_layers_ignores_it() -> None:
    short = replace(report(one_layer()), verdict="watch", findings=(finding("MC107"),))
    (found,) = failures(short, RuleSet(ignore=("MC1",), layers=("*",)))
    assert (found.layer, found.rule, found.figure) == ("", "MC107", 20.0)
    assert failures(short, RuleSet(ignore=("MC107",))) == []
    (found,) = failures(short, limited("max-verdict", 0))
    assert (found.layer, found.figure) == ("", "watch")
    shorter = replace(short, memory=10.0)
    for after, passes in ((short, True), (shorter, False)):
        assert check([after], Policy(), baseline=[short]).passed is passes


def not_judged(*reasons: str) -> Report:
    layers = [
        replace(one_layer(usable=None), name=f"l{index}", not_judged=reason)
        for index, reason in enumerate(reasons)
    ]
    return report(*layers)


def test_what_was_not_judged_is_told_once_for_each_reason() -> None:
    found = not_judged("gates alone", "gates alone", "no readout")

    def told(policy: Policy) -> list[tuple[str, bool, float | str | None]]:
        lines = [one for one in judge(found, policy) if one.outcome == "not computed"]
        return [(one.rule, one.fails, one.figure) for one in lines]

    assert told(Policy()) == [("not-judged", False, 2.0), ("not-judged", False, 1.0)]
    assert told(Policy(fail_on="not-judged")) == [("not-judged", True, 2), ("not-judged", True, 1)]
    limit = limited("max-verdict", 1)
    assert told(Policy((limit,))) == [("max-verdict", True, 2.0), ("max-verdict", True, 1.0)]
    assert not any(fails for _, fails, _ in told(Policy((limit,), allow_missing=True)))
    assert all(fails for _, fails, _ in told(Policy((limit,), True, "not-judged")))
    assert told(Policy((limited("max-unstable", 0),))) == []
    line = next(one for one in judge(found, Policy()) if one.rule == "not-judged")
    assert "l0" in line.message
    assert "gates alone" in line.message
    assert "--min-memory" in line.advice
    policy = Policy(fail_on="not-judged")
    fewer = not_judged("gates alone")
    assert check([fewer], policy, baseline=[found]).passed
    assert not check([found], policy, baseline=[fewer]).passed


def test_the_memory_of_the_model_is_held_and_hidden_weights_are_named() -> None:
    short, long = one_layer(), replace(one_layer(), name="encoder.1", memory=900.0)
    assert failures(report(short, long), limited("min-memory", 900)) == []
    (found,) = failures(report(short, long), limited("min-memory", 901))
    assert (found.layer, found.figure) == ("", 900.0)
    assert "hidden" not in found.message
    endless = replace(short, memory=None)
    assert failures(report(endless), limited("min-memory", 1e9)) == []
    (found,) = failures(report(endless), limited("max-time-constant", 1e9))
    assert (found.diverges, "never ends" in found.message) == (True, True)
    (found,) = failures(report(replace(short, hidden_feedback=True)), limited("min-memory", 21))
    assert "hidden weights" in found.message
    assert "--spectra" in found.advice
    (found,) = failures(report(), limited("min-memory", 1))
    assert found.outcome == "not computed"


@pytest.mark.parametrize(
    ("name", "bound", "fails"),
    [
        ("max-step-effect", 0.5, False),
        ("max-relative-sensitivity", 249_999, True),
        ("max-time-constant", 19.9, True),
        ("max-rounding-error.bfloat16", 1.1, True),
        ("max-verdict", 0, True),
        ("min-diagonality", 0.3, False),
        ("min-diagonality", 0.31, True),
        ("max-adam-residual", 11.9, True),
    ],
)
def test_a_limit_is_exceeded_beyond_it_not_on_it(name: str, bound: float, fails: bool) -> None:
    # An effect of 0.5 at 1e-3 is κ = 250,000; bfloat16 changes the state by 500 · 2⁻⁸ / √3.
    scores = HessianSummary(64, 0.3, 1.0, 2.0, 12.0, 4.0, None)
    figures = replace(one_layer(0.5, usable=WATCHED), hessian=scores, hessian_reason=None)
    found = failures(report(figures), limited(name, bound))
    assert [(one.rule, one.outcome) for one in found] == [(name, "beyond")] * fails


def test_a_figure_that_is_missing_and_a_layer_that_was_not_read_fail_unless_allowed() -> None:
    skipped = replace(report(one_layer(0.01)), skipped=(SkippedLayer("bad", "lru", "NaN in nu"),))
    (found,) = failures(skipped)
    assert (found.layer, found.rule, found.outcome) == ("bad", "readable", "not computed")
    (missing,) = failures(report(one_layer()), limited("min-diagonality", 0.1))
    assert missing.outcome == "not computed"
    assert "no readout" in missing.message
    for held in (skipped, report(one_layer())):
        assert failures(held, limited("min-diagonality", 0.1), allow_missing=True) == []


def test_what_diverges_is_beyond_every_limit() -> None:
    for name in ("max-step-effect", "max-relative-sensitivity", "max-rounding-error.float32"):
        (found,) = failures(report(one_layer(None)), limited(name, 1e300))
        assert (found.outcome, found.diverges, found.figure) == ("beyond", True, None)
        assert found.value == math.inf
        assert "diverges" in found.message
    unstable = report(layer("rnn", "lru", [10.0, math.inf], [parameter("nu", 0.1)]))
    assert [one.diverges for one in failures(unstable, limited("max-time-constant", 1e9))] == [True]
    (counted,) = failures(unstable, limited("max-unstable", 0))
    assert counted.figure == 1


def test_codes_are_prefixes_and_the_longest_decides() -> None:
    found = report(one_layer(0.01, *(finding(f"MC10{n}", "info") for n in (1, 3, 4))))

    def codes(*rules: RuleSet) -> list[str]:
        return [judgement.rule for judgement in failures(found, *rules)]

    assert codes(RuleSet(select=("MC1",))) == ["MC101", "MC103", "MC104"]
    assert codes(RuleSet(forbid=("MC1",), ignore=("MC103",))) == ["MC101", "MC104"]
    assert codes(RuleSet(forbid=("MC103",), ignore=("MC1",))) == ["MC103"]
    assert codes(RuleSet(forbid=("MC1",), ignore=("MC1",))) == []
    # A later select stands in place of an earlier one, and a forbid beside it.
    first = RuleSet(select=("MC101",), forbid=("MC104",))
    assert codes(first, RuleSet(select=("MC103",))) == ["MC103", "MC104"]


def test_rule_sets_apply_to_the_layers_and_families_they_name_and_later_ones_win() -> None:
    layers = [
        layer(name, family, [10.0], [parameter("nu", 0.5)])
        for name, family in (("encoder.0", "lru"), ("encoder.1", "s4d"), ("decoder.0", "lru"))
    ]
    rules = [
        limited("max-step-effect", 0.1),
        limited("max-step-effect", 1.0, layers=("encoder.*",)),
        limited("max-step-effect", 0.2, families=("s4d",)),
    ]
    assert [(one.layer, one.bound) for one in failures(report(*layers), *rules)] == [
        ("encoder.1", 0.2),
        ("decoder.0", 0.1),
    ]
    nowhere = RuleSet(layers=("nowhere.*",))
    assert list(Policy((*rules, nowhere)).unmatched([report(*layers)])) == [nowhere]


def test_a_finding_knows_the_group_it_is_about_and_its_figure() -> None:
    groups = [parameter("nu", 2.0, tensor="rnn.nu"), parameter("nu_log", 3.0)]
    about = finding("MC201", message="one step at 0.001 on nu moves the state by 200 %")
    (found,) = failures(report(one_layer(0.5, usable=None)), limited("max-step-effect", 0.2))
    assert found.advice.endswith("4e-4")  # of 0.5 at 1e-3
    (found,) = failures(report(one_layer(0.5)), limited("max-step-effect", 0.2))
    assert found.advice == "training bears a rate of about 0.01, yours is 0.001"
    (found,) = failures(report(layer("rnn", "lru", [10.0], groups, (about,))))
    assert (found.subject, found.tensor, found.figure) == ("nu", "rnn.nu", 2.0)


STEPS = Policy((limited("max-step-effect", 0.5),))
DIAGONAL = Policy((limited("min-diagonality", 0.5),))


def network(**effects: float | None) -> Report:
    return report(
        *(layer(name, "lru", [10.0], [parameter("nu", effect)]) for name, effect in effects.items())
    )


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
    assert [judgement.layer for judgement in outcome.reports[0].failures] == fails
    assert outcome.passed is not bool(fails)
    for known in outcome.reports[0].known:
        assert known.baseline == before[known.layer]


def test_a_lower_limit_is_worse_below_and_what_was_missing_may_be_missing() -> None:
    def diagonality(value: float) -> Report:
        scores = HessianSummary(8, value, 1.0, 2.0, 3.0, 4.0, None)
        return report(replace(one_layer(0.1), hessian=scores))

    assert check([diagonality(0.4)], DIAGONAL, baseline=[diagonality(0.41)]).passed
    assert not check([diagonality(0.38)], DIAGONAL, baseline=[diagonality(0.41)]).passed
    before = [network(a=0.1)]
    assert check([network(a=0.1)], DIAGONAL, baseline=before).passed
    assert not check([network(a=0.1, b=0.1)], DIAGONAL, baseline=before).passed


def with_findings(*findings: tuple[str, str], effect: float = 2.0) -> Report:
    found = tuple(
        Finding("MC201", severity, message, "", "a paper") for severity, message in findings
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


def test_other_assumptions_do_not_compare() -> None:
    now = network(a=1.0)
    for change, word in (({"learning_rate": 3e-4}, "learning rate"), ({"horizon": 7}, "horizon")):
        before = replace(now, input=replace(now.input, **change))
        with pytest.raises(UsageError, match=word):
            check([now], STEPS, baseline=[before])
    with pytest.raises(UsageError, match="2 reports for 1"):
        check([now], STEPS, baseline=[now, now])
