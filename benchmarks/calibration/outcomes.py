"""What became of the runs of a sweep, and the largest rate that was usable."""

from __future__ import annotations

from typing import Literal

import numpy as np

from benchmarks.calibration.sweep import Sweep

Outcome = Literal["slow", "converges", "stalls", "diverges"]

EXPLOSION = 10.0
"""A mean loss over 50 steps of this many times the start's is a divergence."""
LEARNT = 0.01
"""The loss, as a share of a silent student's, at which a task counts as learnt."""
NEAR_BEST = 2.0
"""Where no rate gets there, the loss that still counts, in multiples of the lowest."""
HOPELESS = 0.1
"""The lowest loss, as a share of a silent student's, from which no rate taught anything."""
FINAL_CHUNKS = 6


def outcomes(sweep: Sweep) -> tuple[list[Outcome], float]:
    """What became of the run at each rate, and the lowest final loss over a silent student's.

    *diverges*: the loss left the finite numbers or exploded on the way. *converges*: it ended at
    1 % of a silent student's, or within twice the lowest of all rates. Otherwise *slow* below the
    best rate and *stalls* above it.
    """
    losses = sweep.losses
    start = max(float(losses[0, 0]), sweep.silent_loss)
    finite = np.isfinite(losses).all(axis=1)
    peak = np.where(finite, np.where(np.isfinite(losses), losses, 0).max(axis=1), np.inf)
    diverged = peak > EXPLOSION * start
    final = losses[:, -FINAL_CHUNKS:].mean(axis=1) / sweep.silent_loss
    final = np.where(diverged, np.inf, final)
    best = int(np.argmin(final))
    good = final <= max(LEARNT, NEAR_BEST * float(final[best]))
    found: list[Outcome] = []
    for index in range(len(losses)):
        if diverged[index]:
            found.append("diverges")
        elif good[index]:
            found.append("converges")
        else:
            found.append("slow" if index < best else "stalls")
    return found, float(final[best])
