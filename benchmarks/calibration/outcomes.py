"""What became of the runs of a sweep, and the largest rate that was usable."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

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


KEPT = 3.0
"""The loss of a trained network, in multiples of what it was, up to which a rate keeps it."""


def kept_rate(
    losses: NDArray[np.float64], rates: Sequence[float], trained: float, silent: float
) -> dict[str, float | None]:
    """The largest rate that keeps a trained network's loss, and that up to which all of them do.

    A run keeps it that ends below `KEPT` times the loss and never exceeded `EXPLOSION` times that
    of a silent student, or its own; None where none does.
    """
    final, peak = losses[:, -FINAL_CHUNKS:].mean(axis=1), losses.max(axis=1)
    keeps = (final < KEPT * trained) & (peak <= EXPLOSION * max(trained, silent))
    first_broken = len(keeps) if keeps.all() else int(np.argmin(keeps))
    return {
        "rate": rates[int(np.flatnonzero(keeps)[-1])] if keeps.any() else None,
        "up_to": rates[first_broken - 1] if first_broken else None,
    }
