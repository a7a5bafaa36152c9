"""What a dense layer has beside its spectrum: its matrix as one group, its parts and transients."""

from __future__ import annotations

import math

import numpy as np
from msgspec.structs import replace

from memcurse_cli.diagnosis.diagonal import DTYPES, UNKNOWN, is_stored
from memcurse_cli.diagnosis.settings import Settings
from memcurse_cli.diagnosis.verdicts import step_effect
from memcurse_cli.families.reading import time_constants
from memcurse_cli.families.recurrence import DenseDynamics, Recurrence
from memcurse_cli.schema.figures import ParameterSummary, Rounding, StateSummary, quantiles
from memcurse_cli.schema.layer import DenseStructure, DenseSummary, OperatingPoint
from memcurse_cli.schema.report import finite
from memcurse_cli.theory.dense.bases import (
    TOO_UNCERTAIN,
    henrici_departure,
    is_undetermined,
    kreiss_bound,
    memory,
    schur_form,
    transient_growth,
    within_rounding,
)
from memcurse_cli.theory.dense.hessian import HorizonHessian, StationaryHessian
from memcurse_cli.theory.dense.sensitivity import (
    DenseSensitivity,
    DenseSystem,
    SensitivitySplit,
    dense_sensitivity,
    sensitivity_split,
)
from memcurse_cli.theory.linalg import Floats, eigenvalue_conditions
from memcurse_cli.theory.rounding import (
    matrix_state_change,
    rounded,
    rounding_error,
    rounding_steps,
)

# The units up to which a report takes the time for structure, for errors of rounding that are added
# with their signs or larger than `LARGE`, and for the eigenvalues after rounding.
LARGEST = 512
SPLIT_FLOPS = 2e10  # what the moments of every pair of eigenvalues may cost
OPPOSED = 100.0  # times the whole: parts beyond it say nothing of the sum that they leave
EXACT = 256  # the units up to which the state of the rounded matrix itself is taken
LARGE = 0.1  # relative error of the state above which first order is not told as the change
LONGEST = 2e9  # steps × inputs × units² up to which the Hessian of a horizon adds errors up
OWN_SCALE = "int8_own_scale"  # int8 with a scale of the matrix's own, a part of a larger tensor


def diagnose_dense(
    recurrence: Recurrence,
    dynamics: DenseDynamics,
    settings: Settings,
    point: OperatingPoint | None,
    withheld: str | None,
) -> tuple[StateSummary, tuple[ParameterSummary, ...], DenseSummary]:
    """The state, the matrix as one parameter group, and how far from normal it is.

    Of what `linearised_at_work` gives: the layer, its point or None, and why no figure holds.
    """
    basis, system = recurrence.eigenbasis, dense_system(recurrence, dynamics, settings)
    sensitivity = linear = DenseSensitivity(None, None, None, withheld)
    if withheld is None:
        sensitivity = linear = dense_sensitivity(system)
        if point is not None:
            sensitivity = _of_size(linear, recurrence.size * point.second_moment)
    state = UNKNOWN
    # At its operating point a state is not linear in the drive, and known as a mean over units.
    if sensitivity.second_moment is not None and point is None:
        state = quantiles(sensitivity.second_moment)
    group = _matrix_group(recurrence, dynamics, system, sensitivity, settings)
    summary = DenseSummary(
        eigenvector_condition=finite(basis.condition),
        henrici_departure=henrici_departure(dynamics.matrix, np.exp(recurrence.log_eigenvalues)),
        sensitivity=_stored(dynamics, sensitivity.total),
        relative_sensitivity=_stored(dynamics, sensitivity.relative),
        memory=_memory(recurrence, dynamics),
        activation=dynamics.activation,
        reason=sensitivity.reason,
        structure=_structure(recurrence, system, linear),
        radius_within_rounding=within_rounding(dynamics.matrix, basis),
        operating_point=point,
    )
    return StateSummary(state), (group,), summary


def dense_system(
    recurrence: Recurrence, dynamics: DenseDynamics, settings: Settings
) -> DenseSystem:
    """A dense layer whose state is seen as it is."""
    readin = None if recurrence.readin is None else recurrence.readin.real
    return DenseSystem(dynamics.matrix, recurrence.eigenbasis, readin, None, *settings.of_states)


def _of_size(sensitivity: DenseSensitivity, size: float) -> DenseSensitivity:
    """The same relative to the state, whose E‖h‖² is that of mean field theory."""
    moment, total, entries = sensitivity.second_moment, sensitivity.total, sensitivity.per_entry
    state = 0.0 if moment is None else float(moment.sum())
    if moment is None or not 0 < state < math.inf:
        return sensitivity
    ratio = size / state
    return replace(
        sensitivity,
        second_moment=ratio * moment,
        total=None if total is None else ratio * total,
        per_entry=None if entries is None else ratio * entries,
    )


def _stored(dynamics: DenseDynamics, total: float | None) -> float | None:
    """A total over the entries of A as one over those of the stored matrix."""
    factor = (dynamics.slope * dynamics.scale) ** 2
    return None if total is None or math.isinf(total) else factor * total


def _memory(recurrence: Recurrence, dynamics: DenseDynamics) -> float | None:
    """How many steps the layer remembers, or None where it does not forget or is not known to."""
    longest = finite(np.max(time_constants(recurrence.log_eigenvalues.real), initial=0.0))
    if longest is None:
        return None
    basis = recurrence.eigenbasis
    try:
        return memory(dynamics.matrix, basis if basis.is_usable else None, longest)
    except ArithmeticError:
        return None


def _structure(
    recurrence: Recurrence, system: DenseSystem, sensitivity: DenseSensitivity
) -> DenseStructure:
    """The split of the sensitivity, the condition of every eigenvalue and the transient growth."""
    matrix, basis = system.matrix, system.basis
    if basis.is_usable:
        each = np.linalg.norm(basis.rows, axis=1) * np.linalg.norm(basis.columns, axis=0)
        conditions = quantiles(np.repeat(each, basis.weight.astype(np.intp)))
    else:
        conditions = quantiles(eigenvalue_conditions(matrix))
    if len(matrix) > LARGEST:
        limit = f"its parts and transients are taken up to {LARGEST} units"
        return DenseStructure(None, None, None, conditions, None, None, None, limit)
    split, reason = _split(system, sensitivity)
    growth, step, kreiss = None, None, None
    if is_undetermined(matrix, basis):
        reason = TOO_UNCERTAIN
    elif bool((recurrence.log_eigenvalues.real < 0).all()):
        try:
            # Past κ(P) = 1e8 by the Schur form, whose powers have the same norms.
            powers = matrix if basis.is_usable else schur_form(matrix).triangle
            growth, step = transient_growth(powers)
            kreiss = kreiss_bound(powers, basis if basis.is_usable else None)
        except ArithmeticError as error:  # a power leaves the range of a float
            growth, step, reason = None, None, str(error)
    parts: tuple[float | None, float | None, float | None] = split or (None, None, None)
    return DenseStructure(*parts, conditions, growth, step, kreiss, reason)


def _split(
    system: DenseSystem, sensitivity: DenseSensitivity
) -> tuple[SensitivitySplit | None, str | None]:
    """The parts as shares of the whole, or why they are missing."""
    total, horizon = sensitivity.total, system.horizon
    if total is None or not 0 < total < math.inf:
        return None, sensitivity.reason
    if not system.basis.is_usable:
        return None, "its eigenvectors are too ill-conditioned to be told apart"
    if horizon is not None and 32.0 * system.matrix.size * horizon > SPLIT_FLOPS:
        return None, f"{horizon} steps are too many for a matrix of this size to be split"
    split = sensitivity_split(system, total)
    if split.eigenvalues > OPPOSED * total:
        return None, "its eigenvalues and eigenvectors undo each other's parts of the sensitivity"
    return SensitivitySplit(*(part / total for part in split)), None


def _matrix_group(
    recurrence: Recurrence,
    dynamics: DenseDynamics,
    system: DenseSystem,
    sensitivity: DenseSensitivity,
    settings: Settings,
) -> ParameterSummary:
    """Every entry of the matrix moved at once: the whole of it decides, not one element."""
    diverges, size = sensitivity.relative == math.inf, dynamics.matrix.size
    rate = settings.rate_of(dynamics.tensor)
    unknown = replace(UNKNOWN, divergent=size if diverges else 0)
    entries, relative_entries = unknown, unknown
    rounding, own_scale = Rounding(None, None, None), None
    if sensitivity.per_entry is not None and sensitivity.second_moment is not None:
        state = float(sensitivity.second_moment.sum())
        per_entry = (dynamics.slope * dynamics.scale) ** 2 * sensitivity.per_entry
        entries = quantiles(per_entry)
        if not diverges and 0 < state < math.inf:
            relative_entries = quantiles(per_entry / state)
            rounding, own_scale = _rounding(recurrence, dynamics, system, per_entry / state)
    return ParameterSummary(
        name=_name(recurrence, dynamics.tensor),
        tensor=dynamics.tensor,
        size=size,
        dtype=dynamics.dtype,
        sensitivity=entries,
        relative_sensitivity=relative_entries,
        step_effect=step_effect(_stored(dynamics, sensitivity.relative), rate),
        learning_rate=rate,
        # An orthogonal matrix stays one: a step turns the state and takes no |λ| past 1.
        direction="decorrelating" if recurrence.stable_by_construction else "destabilising",
        rounding=rounding,
        int8_own_scale=own_scale,
    )


def _name(recurrence: Recurrence, tensor: str) -> str:
    """A tensor within its layer; Keras 3 stores the recurrent kernel as the second of ``vars``."""
    if tensor.endswith("vars/1"):
        return "recurrent_kernel"
    inside = tensor.removeprefix(recurrence.name)
    return inside.strip("./") if inside[:1] in ("/", ".") else tensor.rpartition(".")[2]


def _rounding(
    recurrence: Recurrence, dynamics: DenseDynamics, system: DenseSystem, relative: Floats
) -> tuple[Rounding, float | None]:
    """√(E‖h' - h‖² / E‖h‖²) when the matrix is stored in each type, and in int8 by itself.

    h' is the state of the rounded matrix. Beyond `EXACT` units it is taken to first order, up to
    `LARGEST` only while that is at most `LARGE`: equal entries have equal errors, which add up
    rather than average out, so that the sum is taken with its signs, as the quadratic form of the
    Hessian whose outputs are the states. Where that is too large or not to be had, the squares of
    the errors add, as if they were independent. The type that the matrix is stored in, or that
    holds it exactly, keeps its expected error. ``relative`` (n, n) is κ of every entry.
    """
    stored, largest = _stored_matrix(dynamics), dynamics.tensor_largest
    errors: dict[str, float | None] = {}
    exact = set()
    for dtype in DTYPES:
        steps = rounding_steps(stored, dtype, largest=largest)
        if not steps.any():
            steps = rounding_steps(stored, dtype, stored=True, largest=largest)
            exact |= set() if is_stored(dynamics.dtype, dtype) else {dtype}
        errors[dtype] = finite(math.sqrt(float(np.sum(rounding_error(relative, steps) ** 2))))
    if all(error is None for error in errors.values()):
        return Rounding(**errors), None
    if largest is not None:
        errors[OWN_SCALE] = errors["int8"]
    changes = matrix_changes(dynamics) if recurrence.size <= LARGEST else {}
    known = {name: change for name, change in changes.items() if np.isfinite(change).all()}
    crossing = leaving_disk(recurrence, dynamics) if system.horizon is None else {}
    gone = {name for name, count in crossing.items() if count}
    if recurrence.size > EXACT:
        errors |= _coherent_errors(system, known)
    for name, change in known.items():
        large = recurrence.size <= EXACT or (errors[name] or math.inf) > LARGE
        if large and name not in gone:
            with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
                moved, power = matrix_state_change(system, change)
                error = float(np.sqrt(np.float64(moved) / power))
            errors[name] = math.inf if math.isnan(error) else error
    errors |= dict.fromkeys(exact, 0.0)
    # A saturating activation keeps the state finite where its linearisation explodes.
    if dynamics.activation == "linear":
        errors |= dict.fromkeys(gone, math.inf)
    figures = {name: finite(error) for name, error in errors.items()}
    own_scale = figures.pop(OWN_SCALE, None)
    return Rounding(**figures), own_scale


def matrix_changes(dynamics: DenseDynamics) -> dict[str, Floats]:
    """(n, n) δA by type, of the types that the matrix is not stored in; inf where it overflows.

    Of a matrix that is a part of a tensor, `OWN_SCALE` is int8 with a scale of the part's own.
    """
    stored, largest = _stored_matrix(dynamics), dynamics.tensor_largest
    found: dict[str, Floats] = {
        dtype: rounded(stored, dtype, largest)
        for dtype in DTYPES
        if not is_stored(dynamics.dtype, dtype)
    }
    if largest is not None and not is_stored(dynamics.dtype, "int8"):
        found[OWN_SCALE] = rounded(stored, "int8")
    factor = dynamics.slope * dynamics.scale
    return {name: factor * (moved - stored) for name, moved in found.items()}


def _stored_matrix(dynamics: DenseDynamics) -> Floats:
    """W of ``A = s ((1 - α) I + α W)`` with a slope s and a leak α."""
    stored, scale = dynamics.matrix / dynamics.slope, dynamics.scale
    return stored if scale in (0, 1) else (stored - (1 - scale) * np.eye(len(stored))) / scale


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


def _coherent_errors(system: DenseSystem, changes: dict[str, Floats]) -> dict[str, float]:
    """√(Σ δA ∘ H[δA] / E‖h‖²) by type; empty where H is too large or not to be had."""
    size, inputs = system.inputs.shape
    steps = 1 if system.horizon is None else system.horizon
    if size > LARGEST or steps * min(inputs, size) * size**2 > LONGEST:
        return {}
    hessian: HorizonHessian | StationaryHessian
    try:
        with np.errstate(over="ignore", invalid="ignore"):
            if system.horizon is None:
                usable = system.basis if system.basis.is_usable else None
                hessian = StationaryHessian(system, usable)
            else:
                hessian = HorizonHessian(system)
            moved = [float(np.sum(one * hessian.apply(one))) for one in changes.values()]
    except ArithmeticError:  # it leaves the range of a float, or forgets too slowly
        return {}
    power = hessian.output_second_moment
    if not 0 < power < math.inf or not all(map(math.isfinite, moved)):
        return {}
    errors = (math.sqrt(max(square, 0.0) / power) for square in moved)
    return dict(zip(changes, errors, strict=True))
