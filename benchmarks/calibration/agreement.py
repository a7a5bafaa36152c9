"""How often the predicted usable rate and the verdict were right."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.calibration.outcomes import HOPELESS
from benchmarks.calibration.sweep import RATES
from memcurse_cli.diagnosis.verdicts import DIVERGENCE_EFFECT, STALL_EFFECT
from memcurse_cli.schema.report import WITHIN, known_rate, rate_verdict

Result = Mapping[str, Any]
FACTOR = WITHIN[1]

CONSTANTS = {"divergence": DIVERGENCE_EFFECT, "stall": STALL_EFFECT}
OUTCOMES = ("slow", "converges", "stalls", "diverges")
FAILURES = ("stalls", "diverges")
VERDICTS = ("ok", "watch", "cursed")


@dataclass(frozen=True)
class Comparison:
    """One setup's predicted rate beside the seen one.

    Attributes:
        network: the student's kind.
        held_out: whether it had no part in the calibration.
        predicted: the usable rate of the report.
        limited_by: what the report says would end training beyond it.
        seen: the largest rate that converged.
        beyond_grid: whether that is the largest rate that was tried, so that the usable one may
            be larger still.
    """

    network: str
    held_out: bool
    predicted: float
    limited_by: str
    seen: float
    beyond_grid: bool

    @property
    def log_ratio(self) -> float:
        """log(seen / predicted); 0 where both are beyond the rates that were tried."""
        ratio = math.log(self.seen / self.predicted)
        return min(ratio, 0.0) if self.beyond_grid and ratio < 0 else ratio

    @property
    def agrees(self) -> bool:
        """Whether the two are within `FACTOR` of each other."""
        return abs(self.log_ratio) <= math.log(FACTOR)


def comparisons(results: Iterable[Result], when: str = "at_start") -> list[Comparison]:
    """Every setup that some rate taught something and that a rate was predicted for.

    Args:
        results: the setups of results.json.
        when: ``at_start`` for predictions from the weights before training, ``trained`` for those
            from the best checkpoint.
    """
    found = []
    for result in results:
        prediction = result[when]
        if not learnt(result) or prediction["rate"] is None:
            continue
        converged = [
            rate
            for rate, outcome in zip(RATES, result["outcomes"], strict=True)
            if outcome == "converges"
        ]
        seen = max(converged)
        found.append(
            Comparison(
                result["network"],
                result["held_out"],
                prediction["rate"],
                prediction["limited_by"],
                seen,
                seen == RATES[-1],
            )
        )
    return found


def fitted_constant(compared: Sequence[Comparison], limited_by: str) -> float:
    """The constant that would have made the median ratio of the calibration setups 1."""
    ratios = [
        one.log_ratio for one in compared if not one.held_out and one.limited_by == limited_by
    ]
    return CONSTANTS[limited_by] * math.exp(float(np.median(ratios)))


def share(compared: Sequence[Comparison]) -> tuple[int, int]:
    """How many agree, of how many."""
    return sum(one.agrees for one in compared), len(compared)


def contingency(results: Iterable[Result]) -> dict[str, dict[str, int]]:
    """How many runs of each verdict, given before training at the run's rate, ended how."""
    table = {verdict: dict.fromkeys(OUTCOMES, 0) for verdict in VERDICTS}
    for result in results:
        prediction = result["at_start"]
        usable = known_rate(prediction["rate"], prediction["limited_by"])
        for rate, outcome in zip(RATES, result["outcomes"], strict=True):
            table[rate_verdict(usable, rate)][outcome] += 1
    return table


def learnt(result: Result) -> bool:
    """Whether some rate taught something; where none did, no run can be told from a failed one."""
    return float(result["lowest_loss"]) <= HOPELESS
