"""What storing a dense matrix in fewer bits does to the state, all entries together."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from memcurse_cli.diagnosis.rounding import DTYPES, is_stored
from memcurse_cli.diagnosis.settings import Settings
from memcurse_cli.families.recurrence import DenseDynamics, Recurrence
from memcurse_cli.schema.figures import ParameterSummary, Rounding
from memcurse_cli.schema.report import finite
from memcurse_cli.theory.dense.hessian import HorizonHessian, StationaryHessian
from memcurse_cli.theory.rounding import matrix_state_change, rounded

Floats = NDArray[np.float64]

EXACT = 256
"""The units up to which the state of the rounded matrix itself is taken."""

LARGEST = 512
"""The units up to which it is taken where it changes by more than `LARGE`, errors are added with
their signs, and new eigenvalues taken."""

LARGE = 0.1
"""The relative error of the state above which first order is not told as the change."""

LONGEST = 2e9
"""steps × inputs × units² up to which a finite horizon does so."""

OWN_SCALE = "int8_own_scale"
"""The name of int8 with a scale of the matrix's own, where it is a part of a larger tensor."""


def matrix_rounding(
    recurrence: Recurrence,
    dynamics: DenseDynamics,
    parameter: ParameterSummary,
    settings: Settings,
) -> ParameterSummary:
    """The group of a dense matrix, with ``E‖h' - h‖² / E‖h‖²`` of its known rounding.

    h' is the state of the rounded matrix. Beyond `EXACT` units it is taken to first order, up to
    `LARGEST` only while that is at most `LARGE`: equal entries have equal errors, which add up
    rather than average out, so that the sum is taken with its signs, as the quadratic form of the
    Hessian whose outputs are the states. Where that is too large or not to be had, the errors stay
    those of `summarise_matrix_rounding`, whose squares add. The type that the matrix is stored in
    keeps its expected error.
    """
    first_order = vars(parameter.rounding)
    if not any(error is not None for error in first_order.values()):
        return parameter  # the sensitivity itself diverges or was refused
    changes = matrix_changes(dynamics)
    known = {name: change for name, change in changes.items() if np.isfinite(change).all()}
    crossing = leaving_disk(recurrence, dynamics) if settings.horizon is None else {}
    gone = {name for name, count in crossing.items() if count}
    errors: dict[str, float | None] = dict(first_order)
    if dynamics.tensor_largest is not None:
        errors[OWN_SCALE] = parameter.rounding.int8
    if recurrence.size > EXACT:
        errors |= _coherent_errors(recurrence, dynamics, known, settings)
    if recurrence.size <= LARGEST:
        taken = {
            name: change
            for name, change in known.items()
            if name not in gone and (recurrence.size <= EXACT or (errors[name] or math.inf) > LARGE)
        }
        errors |= _exact_errors(recurrence, dynamics, taken, settings)
    errors |= {name: 0.0 for name, change in known.items() if not change.any()}
    # A saturating activation keeps the state finite where its linearisation explodes.
    if dynamics.activation == "linear":
        errors |= dict.fromkeys(gone, math.inf)
    figures = {name: None if error is None else finite(error) for name, error in errors.items()}
    own_scale = figures.pop(OWN_SCALE, None)
    return replace(parameter, rounding=Rounding(**figures), int8_own_scale=own_scale)


def matrix_changes(dynamics: DenseDynamics) -> dict[str, Floats]:
    """(n, n) δA by type, of the types that the matrix is not stored in; inf where it overflows.

    Of a matrix that is a part of a tensor, `OWN_SCALE` is int8 with a scale of the part's own.
    """
    scale, largest = dynamics.scale, dynamics.tensor_largest
    stored = dynamics.matrix / dynamics.slope
    if scale not in (0, 1):  # A = (1 - s) I + s W
        stored = (stored - (1 - scale) * np.eye(len(stored))) / scale
    found: dict[str, Floats] = {
        dtype: rounded(stored, dtype, largest)
        for dtype in DTYPES
        if not is_stored(dynamics.dtype, dtype)
    }
    if largest is not None and not is_stored(dynamics.dtype, "int8"):
        found[OWN_SCALE] = rounded(stored, "int8")
    return {name: dynamics.slope * scale * (moved - stored) for name, moved in found.items()}


def leaving_disk(recurrence: Recurrence, dynamics: DenseDynamics) -> dict[str, int]:
    """How many eigenvalues of a stable matrix are at |λ| ≥ 1 once it is stored in each type.

    By the names of `matrix_changes`, and the type that it is stored in. The eigenvalues of A + δA
    themselves, where the Bauer-Fike bound κ(P) ‖δA‖ lets one reach the unit circle; 0 beyond
    `LARGEST` units, where they are not taken.
    """
    found: dict[str, int] = dict.fromkeys(DTYPES, 0)
    radius = math.exp(recurrence.eigenbasis.log_radius)
    if recurrence.size > LARGEST or recurrence.stable_by_construction or radius >= 1:
        return found
    for name, change in matrix_changes(dynamics).items():
        size = float(np.linalg.norm(change))
        if math.isfinite(size) and radius + recurrence.eigenbasis.condition * size >= 1:
            moduli = np.abs(np.linalg.eigvals(dynamics.matrix + change))
            found[name] = int(np.count_nonzero(moduli >= 1))
    return found


def _exact_errors(
    recurrence: Recurrence,
    dynamics: DenseDynamics,
    changes: dict[str, Floats],
    settings: Settings,
) -> dict[str, float]:
    """√(E‖h' - h‖² / E‖h‖²) by type; inf where it leaves the range of a float."""
    size = recurrence.size
    readin = np.eye(size) if recurrence.readin is None else recurrence.readin.real
    errors = {}
    for name, change in changes.items():
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            moved, power = matrix_state_change(
                dynamics.matrix,
                change,
                readin,
                settings.autocorrelation,
                settings.horizon,
                settings.state_readout,
            )
            error = np.sqrt(np.float64(moved) / power)
        errors[name] = math.inf if np.isnan(error) else float(error)
    return errors


def _coherent_errors(
    recurrence: Recurrence,
    dynamics: DenseDynamics,
    changes: dict[str, Floats],
    settings: Settings,
) -> dict[str, float]:
    """√(Σ δA ∘ H[δA] / E‖h‖²) by type; empty where H is too large or not to be had."""
    matrix, basis, size = dynamics.matrix, recurrence.eigenbasis, recurrence.size
    states = np.eye(size)
    readin = states if recurrence.readin is None else recurrence.readin.real
    radius = math.exp(recurrence.eigenbasis.log_radius)
    horizon = settings.horizon
    steps = 1 if horizon is None else horizon
    if size > LARGEST or steps * min(readin.shape[1], size) * size**2 > LONGEST:
        return {}
    hessian: HorizonHessian | StationaryHessian
    try:
        with np.errstate(over="ignore", invalid="ignore"):
            if horizon is None:
                usable = basis if basis.is_usable else None
                hessian = StationaryHessian(
                    matrix, usable, readin, states, settings.autocorrelation
                )
            else:
                hessian = HorizonHessian(
                    matrix,
                    readin,
                    states,
                    settings.autocorrelation,
                    horizon,
                    settings.state_readout,
                    radius,
                )
            power = hessian.output_second_moment
            moved = {
                name: float(np.sum(change * hessian.apply(change)))
                for name, change in changes.items()
            }
    except ArithmeticError:  # it leaves the range of a float, or forgets too slowly
        return {}
    if not 0 < power < math.inf or not all(map(math.isfinite, moved.values())):
        return {}
    return {name: math.sqrt(max(square, 0.0) / power) for name, square in moved.items()}
