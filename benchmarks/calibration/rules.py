"""What networks bore against what was told of them, by family and question.

The questions: from the start, which rates learn; from a *trained* network, which keep its loss.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from benchmarks.calibration.outcomes import HOPELESS
from benchmarks.calibration.setups import NETWORKS as LINEAR
from memcurse_cli.theory.simulation import TRIALS

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
    told: float  # by the rule, of a cell that is run without its share
    limited_by: str | None  # of a single linear layer
    effect: float | None  # of a step of 1 on the state, the largest of the layers'
    seen: float  # the largest rate that learnt, or that kept the loss
    beyond_grid: bool  # which may then be larger still
    apart: float | None  # that of a trained stack's recurrent tensors alone

    @property
    def ratio(self) -> float:
        """Seen over told; 1 where both are beyond the rates that were tried."""
        return 1.0 if self.beyond_grid and self.told > self.seen else self.seen / self.told


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
    if start["lowest_loss"] > (UNTAUGHT if classes else HOPELESS):
        return None
    if question == "trained":
        kept: float | None = result["trained"]["kept"]["rate"]
        return kept
    ends = zip(result["rates"], start["outcomes"], strict=True)
    return max((rate for rate, end in ends if end == "converges"), default=None)


def _reported(result: Result, question: Question) -> list[Result]:
    layers = result["quantities"]["start" if question == "initial" else "trained"]["layers"]
    return [one for layer in layers for one in layer["reported"]]


def _told(reported: Result) -> float:
    """The rate of a layer, as `diagnosis.verdicts` has it; of a cell that is run without share."""
    if "stability_rate" in reported:
        return float(reported["stability_rate"])
    # Where no gate sees the state each λ stays within the unit disk, whatever the step.
    return float(reported["usable"]["rate"]) if "usable" in reported else TRIALS[-1]


def _effect(reported: Result, horizon: int) -> float | None:
    """As of `Comparison`; None of a layer that is chaotic within the horizon."""
    ran = reported["simulated"]
    return ran["together"] if (ran["lyapunov"] or 0.0) * horizon <= 1 else None


def comparisons(results: Iterable[Result], question: Question) -> Iterator[Comparison]:
    """Every setup of plain Adam for which a rate was seen."""
    for result in results:
        setup = result["setup"]
        if setup["variant"]:
            continue
        kind, bore, reported = setup["kind"], seen(result, question), _reported(result, question)
        if bore is None:
            continue
        effects = [_effect(one, setup["horizon"]) for one in reported]
        stacked = setup["layers"] > 1 and not kind.endswith("stack")
        apart = result["trained"]["apart"] if question == "trained" else None
        family = f"{kind} stack" if stacked else kind
        yield Comparison(
            family,
            setup["held_out"],
            min(map(_told, reported)),
            reported[0]["usable"]["limited_by"] if kind in LINEAR else None,
            None if None in effects else max(effects),
            bore,
            bore == result["rates"][-1],
            apart and apart["rate"],
        )


class Assessment(NamedTuple):
    """The rule of a family for one question, beside the guess that all of it bear one rate."""

    calibrated: int
    rule: Range  # of seen over told, on the setups that calibrate
    effect: Range  # of the seen rates times the effects: another rule
    guess: Range  # of the seen rates
    held_out: tuple[Comparison, ...]

    @property
    def tells(self) -> bool:
        """Whether the rule knows more than the guess, and held half of what was held out."""
        narrower = self.rule.width < self.guess.width * (1 - 1e-9)
        return narrower and 2 * self.within[0] >= len(self.held_out)

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
        Range.of(one.seen * one.effect for one in calibration if one.effect),
        Range.of(one.seen for one in calibration),
        tuple(one for one in ours if one.held_out),
    )


def moved(results: Iterable[Result], variant: str, question: Question) -> list[float]:
    """Of each network that was varied, the rate seen with a variant over that without."""
    rates: dict[str, dict[str, float | None]] = {}
    for result in results:
        network = {**result["setup"], "variant": ""}
        of = rates.setdefault(str(network), {})
        of[result["setup"]["variant"]] = seen(result, question)
    pairs = ((of.get(variant), of.get("")) for of in rates.values())
    return sorted(with_it / without for with_it, without in pairs if with_it and without)
