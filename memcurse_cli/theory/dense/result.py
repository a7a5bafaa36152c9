"""What is computed of a dense recurrence: the state and its sensitivity to the matrix."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class DenseSensitivity:
    """The state and its sensitivity to a dense matrix.

    Attributes:
        second_moment: (n,) E h_i²; inf where it diverges, None where not computed.
        total: E‖dh/dA‖²_F = Σ_ij E‖dh/dA_ij‖²; inf where it diverges, None where not computed.
        per_entry: (n, n) E‖dh/dA_ij‖², or None where only the total is computed.
        reason: why something is None.
    """

    second_moment: Floats | None
    total: float | None
    per_entry: Floats | None
    reason: str | None = None

    @classmethod
    def of_entries(cls, second_moment: Floats, entries: Floats) -> DenseSensitivity:
        """Everything, from E h_i² and (n, n) E‖dh/dA_ij‖²; what is not finite has diverged."""
        entries = _diverged(entries)
        return cls(_diverged(second_moment), float(entries.sum()), entries)

    @classmethod
    def of_total(cls, second_moment: Floats, total: float, reason: str) -> DenseSensitivity:
        """All but the single entries, and why they are missing."""
        total = total if math.isfinite(total) else math.inf
        return cls(_diverged(second_moment), total, None, reason)

    @classmethod
    def of_state(cls, second_moment: Floats, reason: str) -> DenseSensitivity:
        """E h_i² alone, and why the rest is missing."""
        return cls(_diverged(second_moment), None, None, reason)

    @property
    def relative(self) -> float | None:
        """E‖dh/dA‖²_F / E‖h‖²; inf where it diverges, None where not computed."""
        if self.total is None or self.second_moment is None or math.isinf(self.total):
            return self.total
        state = float(self.second_moment.sum())
        return self.total / state if state > 0 else 0.0


def mean_of_rise_and_limit(
    rise: DenseSensitivity, limit: DenseSensitivity, share: float
) -> DenseSensitivity:
    """The mean over a sequence whose first steps have one mean, and all others the limit.

    Args:
        rise: the mean over the first steps.
        limit: what every later step has.
        share: which part of the sequence the first steps are, in [0, 1].
    """
    if rise.second_moment is None or limit.second_moment is None:
        return rise if rise.second_moment is None else limit

    def mixed(first: Floats, later: Floats) -> Floats:
        return np.asarray(share * first + (1 - share) * later)

    moment = mixed(rise.second_moment, limit.second_moment)
    if rise.per_entry is not None and limit.per_entry is not None:
        return DenseSensitivity.of_entries(moment, mixed(rise.per_entry, limit.per_entry))
    reason = rise.reason or limit.reason or ""
    if rise.total is None or limit.total is None:
        return DenseSensitivity.of_state(moment, reason)
    return DenseSensitivity.of_total(moment, share * rise.total + (1 - share) * limit.total, reason)


def _diverged(values: Floats) -> Floats:
    """What has left the range of a float is infinite."""
    return np.where(np.isfinite(values), values, np.inf)
