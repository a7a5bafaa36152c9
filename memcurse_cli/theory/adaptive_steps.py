"""What Adam makes of a learning rate, parameter by parameter.

Adam moves ω by ``lr m̂ / (√v̂ + ε)``, where v̂ is the running mean of the squared gradient: on a
gradient g, by the effective step ``lr / (√v̂ + ε)`` times g (Zucchet & Orvieto 2024, figure 4C-D).
At a perfect fit with residual noise σ², ``E g² = σ² H_ωω``: an effective step then falls as the
square root of the curvature, and takes its spread away as far as the Hessian is diagonal.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

FEWEST = 8
"""Elements below which a correlation says nothing."""


class Compensation(NamedTuple):
    """How far effective steps follow a sensitivity.

    Attributes:
        correlation: of log(effective step) with the logarithm of the sensitivity: -1 where Adam
            takes smaller steps wherever the sensitivity is larger, 0 where they have nothing to do
            with each other.
        spread_before: the standard deviation, in decades, of the square root of the sensitivity:
            that of the effects of equal steps per unit of gradient.
        spread_after: that of the effective step times this square root: what Adam leaves.
    """

    correlation: float
    spread_before: float
    spread_after: float


def effective_steps(
    second_moment: Floats,
    learning_rate: float,
    step: float | None = None,
    beta2: float = 0.999,
    epsilon: float = 1e-8,
) -> Floats:
    """``lr / (√v̂ + ε)`` with ``v̂ = v / (1 - β₂ᵗ)``.

    Args:
        second_moment: v.
        learning_rate: lr.
        step: t; None leaves v as it is, which is right after many more than 1/(1-β₂) steps.
        beta2: the decay of v.
        epsilon: ε.
    """
    correction = 1.0
    if step is not None and step > 0 and 0 < beta2 < 1:
        correction = -math.expm1(step * math.log(beta2))
    return np.asarray(learning_rate / (np.sqrt(second_moment / correction) + epsilon))


def compensation(steps: Floats, sensitivity: Floats) -> Compensation | None:
    """How far effective steps follow a sensitivity (κ, or a diagonal of the Hessian).

    Elements whose sensitivity is 0 or infinite are passed over. None where fewer than `FEWEST`
    are left, or where all of them have one sensitivity or one step.
    """
    seen = (sensitivity > 0) & np.isfinite(sensitivity) & np.isfinite(steps) & (steps > 0)
    if np.count_nonzero(seen) < FEWEST:
        return None
    log_steps, log_effects = np.log10(steps[seen]), 0.5 * np.log10(sensitivity[seen])
    before, moved = float(np.std(log_effects)), float(np.std(log_steps))
    if min(before, moved) < 1e-12:
        return None
    covariance = np.mean((log_steps - log_steps.mean()) * (log_effects - log_effects.mean()))
    return Compensation(
        correlation=float(np.clip(covariance / (before * moved), -1, 1)),
        spread_before=before,
        spread_after=float(np.std(log_steps + log_effects)),
    )
