"""What storing a parameter group in fewer bits does to the state."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from memcurse_cli.diagnosis.finite import finite
from memcurse_cli.diagnosis.quantiles import quantiles
from memcurse_cli.diagnosis.report_figures import Rounding
from memcurse_cli.diagnosis.settings import Settings
from memcurse_cli.recurrences.recurrence import ParameterGroup, Recurrence
from memcurse_cli.theory.rounding import Dtype, rounded, rounding_error

Floats = NDArray[np.float64]
Truths = NDArray[np.bool_]


DTYPES: tuple[Dtype, ...] = (
    "bfloat16",
    "float16",
    "float32",
    "int8",
    "float8_e4m3fn",
    "float8_e5m2",
)
"""In the order of the fields of `Rounding`."""

PARTS = {"complex64": "float32"}
"""The type of the real and imaginary parts of a complex one."""

ROUND_OFF = 1e-9
"""The share of log|λ| within which a decay that rounding has taken away counts as gone."""


def is_stored(stored: str, dtype: Dtype) -> bool:
    """Whether a tensor of one type holds its numbers in another."""
    return PARTS.get(stored, stored) == dtype


def summarise_rounding(
    relative_sensitivity: Floats, recurrence: Recurrence, group: ParameterGroup, settings: Settings
) -> Rounding:
    """The p99 relative error of the state when a group is stored in each type.

    It diverges where an infinite sequence meets an eigenvalue that rounding takes out of the disk.
    """
    figures = []
    for dtype in DTYPES:
        stored = is_stored(group.dtype, dtype)
        error = rounding_error(relative_sensitivity, group.values, dtype, stored=stored)
        if settings.horizon is None:
            crossed = leaves_disk(recurrence, group, dtype)
            error[group.scalar[crossed[group.eigenvalue]]] = np.inf
        figures.append(quantiles(error).p99)
    return Rounding(*figures)


def leaves_disk(recurrence: Recurrence, group: ParameterGroup, dtype: Dtype) -> Truths:
    """(n,) the stable eigenvalues that storing a group in a type takes to |λ| ≥ 1.

    By ``log|λ| + Re Σ δω (dλ/dω) / λ``: first order in δω, all scalars of the group at once.
    """
    none = np.zeros(recurrence.size, dtype=bool)
    safe = recurrence.stable_by_construction or group.keeps_stable
    if safe or is_stored(group.dtype, dtype):
        return none
    moved = rounded(group.values, dtype) - group.values
    moved = np.where(np.isfinite(moved), moved, 0.0)  # an overflow, which is told as such
    log_modulus = recurrence.log_eigenvalues.real
    change = np.zeros(recurrence.size)
    with np.errstate(over="ignore", invalid="ignore"):
        inverse = np.exp(-recurrence.log_eigenvalues[group.eigenvalue])
        pushed = (group.eigenvalue_derivative * inverse).real * moved[group.scalar]
    np.add.at(change, group.eigenvalue, np.where(np.isfinite(pushed), pushed, 0.0))
    reached = log_modulus + change >= ROUND_OFF * log_modulus
    return (log_modulus < 0) & (change != 0) & reached


def summarise_matrix_rounding(relative_sensitivity: Floats, matrix: Floats) -> Rounding:
    """The relative error of the state when every entry of a dense matrix is rounded at once.

    With the errors of the entries taken as independent, so that their squares add. A matrix that a
    type holds exactly is taken as one that was stored in it.
    """
    errors = []
    for dtype in DTYPES:
        held = bool(np.array_equal(rounded(matrix, dtype), matrix))
        each = rounding_error(relative_sensitivity, matrix, dtype, stored=held)
        errors.append(math.sqrt(float(np.sum(each**2))))
    return Rounding(*map(finite, errors))
