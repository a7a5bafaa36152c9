"""Where a non-linear dense layer works, beside the slope of 1 that its figures are taken at."""

from __future__ import annotations

import math

import numpy as np

from memcurse_cli.diagnosis.report_dense import OperatingPoint
from memcurse_cli.diagnosis.settings import Settings
from memcurse_cli.recurrences.reading import eigenvalues_of
from memcurse_cli.recurrences.recurrence import DenseDynamics, Recurrence
from memcurse_cli.theory.mean_field import elman_operating_point


def summarise_operating_point(
    recurrence: Recurrence, dynamics: DenseDynamics, settings: Settings
) -> OperatingPoint | None:
    """The slope of mean field theory and the spectrum that it leaves, or None without one."""
    if dynamics.activation == "linear" or dynamics.bias is None or dynamics.scale != 1:
        return None
    found = elman_operating_point(
        dynamics.matrix,
        None if recurrence.readin is None else recurrence.readin.real,
        dynamics.bias,
        dynamics.activation,
        sum(settings.autocorrelation.weights),
    )
    if found is None:
        return None
    radius = found.slope * float(np.abs(eigenvalues_of(recurrence.log_eigenvalues)).max())
    time_constant = None
    if radius < 1:
        time_constant = -1 / math.log(radius) if radius > 0 else 0.0
    return OperatingPoint(found.slope, found.second_moment, radius, time_constant)
