"""How often the predicted usable rate and the verdict were right."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from benchmarks.calibration.outcomes import HOPELESS
from benchmarks.calibration.rules import Comparison
from benchmarks.calibration.sweep import RATES
from memcurse_cli.diagnosis.verdicts import DIVERGENCE_EFFECT, STALL_EFFECT
from memcurse_cli.schema.report import known_rate, rate_verdict

Result = Mapping[str, Any]
FACTOR = 3.0

CONSTANTS = {"divergence": DIVERGENCE_EFFECT, "stall": STALL_EFFECT}
OUTCOMES = ("slow", "converges", "stalls", "diverges")
FAILURES = ("stalls", "diverges")
VERDICTS = ("ok", "watch", "cursed")


def fitted_constant(compared: Sequence[Comparison], limited_by: str) -> float:
    """The constant that would have made the median ratio of the calibration setups 1."""
    ratios = [one.ratio for one in compared if not one.held_out and one.limited_by == limited_by]
    return CONSTANTS[limited_by] * float(np.exp(np.median(np.log(ratios))))


def share(compared: Sequence[Comparison]) -> tuple[int, int]:
    """How many are within `FACTOR` of what was told, of how many."""
    agreed = sum(1 / FACTOR <= one.ratio <= FACTOR for one in compared)
    return agreed, len(compared)


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
