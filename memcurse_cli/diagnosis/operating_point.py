"""Where a layer with an activation between its steps works, and where no linear figure holds."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from memcurse_cli.diagnosis.report_dense import OperatingPoint
from memcurse_cli.diagnosis.settings import Settings
from memcurse_cli.diagnosis.wording import number
from memcurse_cli.recurrences.reading import eigenvalues_of
from memcurse_cli.recurrences.recurrence import DenseDynamics, Recurrence
from memcurse_cli.theory.mean_field import elman_operating_point


def linearised_at_work(
    recurrence: Recurrence, settings: Settings
) -> tuple[Recurrence, OperatingPoint | None, str | None]:
    """The layer that linear figures are taken of, its operating point, and why there are none.

    At its operating point a layer answers small changes as ``s A`` and ``s B`` do, with the slope
    s of mean field theory. Where that point is not known, the slope is 1: that of small states,
    which stay small only while every |λ| < 1 (or is 1 by design).
    """
    dense = recurrence.dense
    activation = recurrence.activation if dense is None else dense.activation
    if activation == "linear" or (dense is not None and dense.slope != 1):
        return recurrence, None, None
    point = None if dense is None else _operating_point(recurrence, dense, settings)
    if dense is not None and point is not None:
        if point.time_constant is None:
            at_work = f"{number(point.slope)} at its operating point"
            return recurrence, point, _reason(activation, at_work, point.spectral_radius)
        readin, slope = recurrence.readin, float(np.float32(point.slope))  # s W / s is W again
        working = replace(
            recurrence,
            log_eigenvalues=recurrence.log_eigenvalues + math.log(slope),
            readin=None if readin is None else slope * readin,
            dense=replace(dense, matrix=slope * dense.matrix, slope=slope),
        )
        return working, point, None
    radius = float(np.abs(eigenvalues_of(recurrence.log_eigenvalues)).max(initial=0.0))
    if radius >= 1 and not recurrence.unitary:
        return recurrence, None, _reason(activation, "1 for small states", radius)
    return recurrence, None, None


def _reason(activation: str, slope: str, radius: float) -> str:
    return (
        f"with the {activation}'s slope of {slope} the largest |λ| is {number(radius)}: changes of "
        "the state do not decay, and no linear figure holds"
    )


def _operating_point(
    recurrence: Recurrence, dynamics: DenseDynamics, settings: Settings
) -> OperatingPoint | None:
    """The slope of mean field theory and the spectrum that it leaves, or None without one."""
    if dynamics.bias is None or dynamics.scale != 1:
        return None
    found = elman_operating_point(
        dynamics.matrix,
        None if recurrence.readin is None else recurrence.readin.real,
        dynamics.bias,
        dynamics.activation,
        sum(settings.autocorrelation.weights),
    )
    if found is None or found.slope == 0:
        return None
    radius = found.slope * float(np.abs(eigenvalues_of(recurrence.log_eigenvalues)).max())
    time_constant = None
    if radius < 1:
        time_constant = -1 / math.log(radius) if radius > 0 else 0.0
    return OperatingPoint(found.slope, found.second_moment, radius, time_constant)
