"""What networks bore against what was told of them, by family and question.

The questions: from the start, which rates learn; from a *trained* network, which keep its loss.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from benchmarks.calibration.outcomes import HOPELESS

Result = Mapping[str, Any]
Question = Literal["initial", "trained"]
QUESTIONS: tuple[Question, ...] = ("initial", "trained")
LEVELS = 0.1, 0.5, 0.9
FEWEST = 3
"""Setups that a range is taken of."""
CLASSES = "copying", "digits"
UNTAUGHT = 0.5
"""The lowest cross-entropy of these, as a share of a silent student's, from which no rate taught
anything; of a squared error it is `HOPELESS`."""


class Comparison(NamedTuple):
    """One setup and one question."""

    family: str  # stacks are families of their own
    held_out: bool
    told: float  # by the rule, of a cell that is run without its constant
    seen: float  # the largest rate that learnt, or that kept the loss
    apart: float | None  # that of a trained stack's recurrent tensors alone

    @property
    def ratio(self) -> float:
        """Seen over told."""
        return self.seen / self.told


class Range(NamedTuple):
    """Quantiles of what was seen over what was told."""

    low: float
    middle: float
    high: float

    @classmethod
    def of(cls, ratios: Iterable[float]) -> Range:
        """Those at `LEVELS`, between ratios by their logarithms."""
        return cls(*np.exp(np.quantile(np.log([*ratios]), LEVELS)).tolist())

    @property
    def width(self) -> float:
        """From end to end, as a factor."""
        return self.high / self.low

    def holds(self, ratio: float) -> bool:
        """Whether a ratio is within, where rounding does not decide."""
        return self.low * (1 - 1e-9) <= ratio <= self.high * (1 + 1e-9)


def seen(result: Result, question: Question) -> float | None:
    """The largest rate that did well; None where none did, or none taught anything at first."""
    start, classes = result["start"], result["setup"]["task"] in CLASSES
    if start is not None and start["lowest_loss"] > (UNTAUGHT if classes else HOPELESS):
        return None
    if question == "trained":
        kept: float | None = result["trained"]["kept"]["rate"]
        return kept
    ends = zip(result["rates"], start["outcomes"], strict=True)
    return max((rate for rate, end in ends if end == "converges"), default=None)


def told(result: Result, question: Question) -> float | None:
    """The smallest of the layers' rates; None where there is none."""
    layers = result["quantities"]["start" if question == "initial" else "trained"]["layers"]
    horizon = result["setup"]["horizon"]
    rates = [_rate(one, horizon) for layer in layers for one in layer["reported"]]
    return None if None in rates else min(rate for rate in rates if rate is not None)


def _rate(reported: Result, horizon: int) -> float | None:
    """As `diagnosis.verdicts` has it, which refuses what is chaotic within the horizon."""
    if "usable" in reported:
        return float(reported["usable"]["rate"])
    ran = reported.get("simulated", {})
    effect = ran.get("together")
    return 1 / effect if effect and (ran["lyapunov"] or 0.0) * horizon <= 1 else None


def comparisons(results: Iterable[Result], question: Question) -> Iterator[Comparison]:
    """Every setup of plain Adam for which a rate was told and one was seen."""
    for result in results:
        setup = result["setup"]
        if setup["variant"] or (question == "initial" and result["start"] is None):
            continue
        kind, rates = setup["kind"], (told(result, question), seen(result, question))
        if rates[0] is None or rates[1] is None:
            continue
        stacked = setup["layers"] > 1 and not kind.endswith("stack")
        apart = result["trained"]["apart"] if question == "trained" else None
        family = f"{kind} stack" if stacked else kind
        yield Comparison(family, setup["held_out"], *rates, apart and apart["rate"])


class Assessment(NamedTuple):
    """The rule of a family for one question, beside the guess that all of it bear one rate."""

    calibrated: int
    rule: Range  # of seen over told, on the setups that calibrate
    guess: Range  # of the seen rates
    held_out: tuple[Comparison, ...]

    @property
    def tells(self) -> bool:
        """Whether the rule knows more than the guess."""
        return self.rule.width < self.guess.width

    @property
    def within(self) -> tuple[int, int]:
        """How many held-out setups the ranges of the rule and of the guess held."""
        return (
            sum(self.rule.holds(one.ratio) for one in self.held_out),
            sum(self.guess.holds(one.seen) for one in self.held_out),
        )


def by_family(results: Iterable[Result], question: Question) -> dict[str, list[Comparison]]:
    """The comparisons of every family, in the order of their names."""
    families: dict[str, list[Comparison]] = {}
    for one in comparisons(results, question):
        families.setdefault(one.family, []).append(one)
    return dict(sorted(families.items()))


def assessments(results: Iterable[Result], question: Question) -> dict[str, Assessment]:
    """That of every family of which enough setups calibrate."""
    return {
        family: assess(ours)
        for family, ours in by_family(results, question).items()
        if sum(not one.held_out for one in ours) >= FEWEST
    }


def assess(ours: Sequence[Comparison]) -> Assessment:
    """The comparisons of one family and question."""
    calibration = [one for one in ours if not one.held_out]
    return Assessment(
        len(calibration),
        Range.of(one.ratio for one in calibration),
        Range.of(one.seen for one in calibration),
        tuple(one for one in ours if one.held_out),
    )


def moved(results: Iterable[Result], variant: str, question: Question) -> list[float]:
    """Of each network that was varied, the rate seen with a variant over that without."""
    rates: dict[str, dict[str, float | None]] = {}
    for result in results:
        if question == "trained" or result["start"] is not None:
            network = {**result["setup"], "variant": ""}
            of = rates.setdefault(str(network), {})
            of[result["setup"]["variant"]] = seen(result, question)
    pairs = ((of.get(variant), of.get("")) for of in rates.values())
    return sorted(with_it / without for with_it, without in pairs if with_it and without)
