"""What the eigenvalues of a dense matrix do not tell: its parts, conditions and transients."""

from __future__ import annotations

import math

import numpy as np

from memcurse_cli.diagnosis.quantiles import quantiles
from memcurse_cli.diagnosis.report_dense import DenseStructure
from memcurse_cli.diagnosis.settings import Settings
from memcurse_cli.recurrences.recurrence import DenseDynamics, Recurrence
from memcurse_cli.spectra.eigendecomposition import eigenvalue_conditions
from memcurse_cli.theory.dense import EIGENBASIS_CONDITION, is_undetermined
from memcurse_cli.theory.dense_result import DenseSensitivity
from memcurse_cli.theory.dense_split import SensitivitySplit, sensitivity_split
from memcurse_cli.theory.eigenbasis import Eigenbasis
from memcurse_cli.theory.schur import TOO_UNCERTAIN, schur_form
from memcurse_cli.theory.transients import kreiss_bound, transient_growth

LARGEST = 512  # units up to which a report takes the time
SPLIT_FLOPS = 2e10  # what the moments of every pair of eigenvalues may cost
OPPOSED = 100.0  # times the whole: parts beyond it say nothing of the sum that they leave


def summarise_structure(
    recurrence: Recurrence,
    dynamics: DenseDynamics,
    sensitivity: DenseSensitivity,
    settings: Settings,
) -> DenseStructure:
    """The split of the sensitivity, the condition of every eigenvalue and the transient growth."""
    basis, size = recurrence.eigenbasis, recurrence.size
    if basis.condition < EIGENBASIS_CONDITION:
        each = np.linalg.norm(basis.rows, axis=1) * np.linalg.norm(basis.columns, axis=0)
        conditions = quantiles(np.repeat(each, basis.weight.astype(np.intp)))
    else:
        conditions = quantiles(eigenvalue_conditions(dynamics.matrix))
    if size > LARGEST:
        limit = f"its parts and transients are taken up to {LARGEST} units"
        return DenseStructure(None, None, None, conditions, None, None, None, limit)
    split, reason = _split(recurrence, sensitivity, settings)
    growth, step, kreiss = None, None, None
    if is_undetermined(dynamics.matrix, basis):
        reason = TOO_UNCERTAIN
    elif bool((recurrence.log_eigenvalues.real < 0).all()):
        try:
            growth, step, kreiss = _transients(dynamics, basis)
        except ArithmeticError as error:
            reason = str(error)
    through, around, both = (None, None, None) if split is None else split
    return DenseStructure(
        eigenvalue_part=through,
        eigenvector_part=around,
        cross_part=both,
        eigenvalue_condition=conditions,
        transient_growth=growth,
        transient_step=step,
        kreiss_bound=kreiss,
        reason=reason,
    )


def _transients(dynamics: DenseDynamics, basis: Eigenbasis) -> tuple[float, int, float]:
    """The largest ‖A^k‖₂, its k and the Kreiss bound: by the Schur form past κ(P) = 1e8.

    Raises:
        ArithmeticError: a power leaves the range of a float.
    """
    if basis.condition < EIGENBASIS_CONDITION:
        return *transient_growth(dynamics.matrix), kreiss_bound(dynamics.matrix, basis)
    triangle = schur_form(dynamics.matrix).triangle
    return *transient_growth(triangle), kreiss_bound(triangle, None)


def _split(
    recurrence: Recurrence, sensitivity: DenseSensitivity, settings: Settings
) -> tuple[SensitivitySplit | None, str | None]:
    """The parts as shares of the whole, or why they are missing."""
    total = sensitivity.total
    if total is None or not 0 < total < math.inf:
        return None, sensitivity.reason
    if recurrence.eigenbasis.condition >= EIGENBASIS_CONDITION:
        return None, "its eigenvectors are too ill-conditioned to be told apart"
    horizon = settings.horizon
    if horizon is not None and 32.0 * recurrence.size**2 * horizon > SPLIT_FLOPS:
        return None, f"{horizon} steps are too many for a matrix of this size to be split"
    split = sensitivity_split(
        recurrence.eigenbasis,
        total,
        None if recurrence.readin is None else recurrence.readin.real,
        settings.autocorrelation,
        horizon,
        settings.state_readout,
    )
    if split.eigenvalues > OPPOSED * total:
        return None, "its eigenvalues and eigenvectors undo each other's parts of the sensitivity"
    return SensitivitySplit(*(part / total for part in split)), None
