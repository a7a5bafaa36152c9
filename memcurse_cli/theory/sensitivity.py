"""What a step on a real parameter moves: the state, the eigenvalues, and what Adam makes of it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np
from msgspec import Struct

from memcurse_cli.theory.linalg import Complexes, Floats, Integers
from memcurse_cli.theory.moments import Moments

if TYPE_CHECKING:
    from memcurse_cli.theory.dense.bases import Eigenbasis


ROUNDING = 4 * float(np.finfo(np.float64).eps)
FEWEST = 8  # elements below which a correlation says nothing


class SparseJacobian(Struct, frozen=True):
    """What real scalars move: entry ``e`` says what one unit of ``scalar[e]`` does.

    A tied scalar (Mamba's ``dt_bias``, S4's ``log_dt``) has several entries.
    """

    size: int  # the number of scalars
    scalar: Integers  # (entries,) which


class ParameterJacobian(SparseJacobian, frozen=True):
    """How the scalars move a diagonal recurrence: an eigenvalue, and log γ, of each entry."""

    eigenvalue: Integers  # (entries,) which
    eigenvalue_derivative: Complexes  # (entries,) dλ/dω
    log_gain_derivative: Complexes | None = None  # (entries,) d log γ/dω; None where there is none


class ProjectionJacobian(SparseJacobian, frozen=True):
    """What the scalars of a part of B, C or D move: an element of the matrix of each entry."""

    # B (n, inputs), C (outputs, n), or D (outputs, inputs), a column per single-input channel
    matrix: Literal["B", "C", "D"]
    row: Integers  # (entries,) of the matrix
    column: Integers  # (entries,) of the matrix
    derivative: Complexes  # (entries,) 1 for a real part, i for an imaginary one


class Sensitivity(NamedTuple):
    """The sensitivities of some scalars, one of each; inf where E|s|² diverges."""

    sensitivity: Floats  # (size,) Σ_i w_i E|dh_i/dω|² over the eigenvalues that the scalar moves
    relative_sensitivity: Floats  # (size,) κ(ω) = Σ_i w_i E|dh_i/dω|² / Σ_i w_i E|h_i|²


def state_second_moment(moments: Moments, log_gain: Complexes) -> Floats:
    """(n,) E|h|² from log γ and the moments at γ = 1: inf where it diverges, 0 where γ is."""
    with np.errstate(over="ignore"):
        squared = np.exp(2 * log_gain.real)
        driven = np.where(squared > 0, moments.second_moment, 0.0)
        return np.asarray(squared * driven)


def parameter_sensitivity(
    moments: Moments,
    log_gain: Complexes,
    eigenvalue_derivative: Complexes,
    log_gain_derivative: Complexes | None = None,
) -> Sensitivity:
    """E|dh/dω|² and κ of a real parameter ω of one eigenvalue λ and its γ.

    ``dh/dω = γ (λ' s + η h)`` with λ' = dλ/dω and η = d log γ/dω, None where γ does not depend on
    ω:

        E|dh/dω|² = |γ|² (|λ'|² E|s|² + 2 Re[λ' η̄ E[s h̄]] + |η|² E|h|²)

    ω is real: no factor from Wirtinger calculus (Zucchet & Orvieto 2024, eq. 56-60, corrected). The
    moments are those of each eigenvalue at γ = 1; log γ is -inf for γ = 0, which κ does not see.
    """
    moved = _without_gain(moments, eigenvalue_derivative, log_gain_derivative)
    with np.errstate(over="ignore", invalid="ignore"):
        sensitivity = _in_range(np.exp(2 * log_gain.real) * moved)
    relative = _ratio(moved, _finite(moments.second_moment))
    known = np.isfinite(moments.sensitivity)
    return Sensitivity(np.where(known, sensitivity, np.inf), np.where(known, relative, np.inf))


def group_sensitivity(
    moments: Moments, log_gain: Complexes, jacobian: ParameterJacobian, weight: Floats | None = None
) -> Sensitivity:
    """The sensitivities of every scalar of a parameter group, of drives of variance ``weight``.

    The squares of what a tied scalar moves add, in both parts of κ: inf where an eigenvalue
    diverges, and 0 where no state is driven.
    """
    eigenvalue = jacobian.eigenvalue
    if not _is_range(eigenvalue, log_gain.size):
        moments = Moments(*(moment[eigenvalue] for moment in moments))
        log_gain = log_gain[eigenvalue]
        weight = None if weight is None else weight[eigenvalue]
    derivatives = (jacobian.eigenvalue_derivative, jacobian.log_gain_derivative)

    if weight is None and _is_range(jacobian.scalar, jacobian.size):
        return parameter_sensitivity(moments, log_gain, *derivatives)

    weight = np.ones(eigenvalue.shape) if weight is None else weight
    driven = weight > 0
    divergent = driven & ~np.isfinite(moments.sensitivity)

    def total(values: Floats) -> Floats:
        return np.bincount(jacobian.scalar, values, jacobian.size).astype(np.float64)

    with np.errstate(over="ignore", invalid="ignore"):
        drive = np.where(driven & ~divergent, weight * np.exp(2 * log_gain.real), 0.0)
        # Without the unit of the input, in which the ratio may not be a float's.
        unit = drive.max(initial=0.0) or 1.0
        share = drive / unit
        moved = total(_in_range(share * _without_gain(moments, *derivatives)))
        held = total(_in_range(share * _finite(moments.second_moment)))
        sensitivity = unit * moved
    relative = _ratio(moved, held)
    infinite = total(divergent.astype(np.float64)) > 0
    return Sensitivity(
        np.where(infinite, np.inf, sensitivity), np.where(infinite, np.inf, relative)
    )


def _without_gain(
    moments: Moments, eigenvalue_derivative: Complexes, log_gain_derivative: Complexes | None
) -> Floats:
    """E|λ' s + η h|², with the moments that diverge taken as 0."""
    with np.errstate(over="ignore", invalid="ignore"):
        moved = _squared(eigenvalue_derivative) * _finite(moments.sensitivity)
        if log_gain_derivative is None:
            return moved
        mixed = eigenvalue_derivative * log_gain_derivative.conj() * moments.cross_moment
        scale = moved + _squared(log_gain_derivative) * _finite(moments.second_moment)
        moved = scale + 2 * mixed.real
    # Where λ' s and η h cancel, only rounding is left.
    cancelled = np.isfinite(scale) & (moved <= ROUNDING * scale)
    return np.where(cancelled, 0.0, _in_range(moved))


def _in_range(values: Floats) -> Floats:
    """inf for what has left the range of a float, on the way to a difference too."""
    return np.where(np.isnan(values), np.inf, values)


def _ratio(moved: Floats, held: Floats) -> Floats:
    """moved / held, where a state of 0 that is moved is infinitely sensitive."""
    alive = held > 0
    return np.where(alive, moved / np.where(alive, held, 1.0), np.where(moved > 0, np.inf, 0.0))


def _squared(z: Complexes) -> Floats:
    return z.real**2 + z.imag**2


def _finite(moment: Floats) -> Floats:
    return np.where(np.isfinite(moment), moment, 0.0)


def _is_range(index: Integers, size: int) -> bool:
    return index.size == size and bool(np.array_equal(index, np.arange(size)))


class EigenvalueShift(NamedTuple):
    """How far one optimizer step on every scalar at once moves each eigenvalue, per unit of it.

    A step changes every scalar ω_e by ±lr: with independent signs an eigenvalue moves by
    ``lr √Σ|dλ/dω_e|²`` in the root mean square, with concerted ones by at most ``lr Σ|dλ/dω_e|``.
    """

    independent: Floats  # (n,) with independent signs
    concerted: Floats  # (n,) with signs that all pull the same way

    def aligned(self, alignment: float) -> Floats:
        """(n,) between the two: ``independent^(1-a) concerted^a`` for an alignment a in [0, 1]."""
        return self.independent ** (1 - alignment) * self.concerted**alignment


def diagonal_shift(size: int, groups: Sequence[ParameterJacobian]) -> EigenvalueShift:
    """The shift of ``size`` eigenvalues by a step on every scalar of some groups."""
    squared, summed = np.zeros(size), np.zeros(size)
    for group in groups:
        magnitude = np.abs(group.eigenvalue_derivative)
        np.add.at(squared, group.eigenvalue, magnitude**2)
        np.add.at(summed, group.eigenvalue, magnitude)
    return EigenvalueShift(np.sqrt(squared), summed)


def dense_shift(basis: Eigenbasis) -> EigenvalueShift:
    """The shift of each eigenvalue of `Eigenbasis.half` by a step on every entry of the matrix.

    ``dλ/dA_jk = q̄_j p_k / (q* p)`` (Wilkinson 1965, chapter 2) makes it ``‖q‖₂‖p‖₂/|q* p|`` and
    ``‖q‖₁‖p‖₁/|q* p|``; inf where A has no basis of eigenvectors.
    """
    columns, rows = basis.columns, basis.rows  # q* p = 1: rows of P⁻¹ against columns of P
    with np.errstate(invalid="ignore", over="ignore"):
        independent = np.linalg.norm(rows, axis=1) * np.linalg.norm(columns, axis=0)
        concerted = np.abs(rows).sum(axis=1) * np.abs(columns).sum(axis=0)
    lost = ~np.isfinite(independent) | ~np.isfinite(concerted)
    return EigenvalueShift(np.where(lost, np.inf, independent), np.where(lost, np.inf, concerted))


class Compensation(NamedTuple):
    """How far effective steps follow a sensitivity."""

    correlation: float  # of their logarithms: -1 where Adam's steps fall as the sensitivity grows
    # the standard deviation, in decades, of √sensitivity: that of the effects of equal steps
    spread_before: float
    spread_after: float  # that of the effective step times this square root: what Adam leaves


def effective_steps(
    second_moment: Floats,
    learning_rate: float,
    step: float | None = None,
    beta2: float = 0.999,
    epsilon: float = 1e-8,
) -> Floats:
    """Adam's ``lr / (√v̂ + ε)`` with ``v̂ = v / (1 - β₂ᵗ)``, or v without a step t, per unit of g.

    v̂ is the running mean of g² (Zucchet & Orvieto 2024, figure 4C-D); at a perfect fit with
    residual noise σ², ``E g² = σ² H_ωω``.
    """
    correction = 1.0
    if step is not None and step > 0 and 0 < beta2 < 1:
        correction = -math.expm1(step * math.log(beta2))
    return np.asarray(learning_rate / (np.sqrt(second_moment / correction) + epsilon))


def compensation(steps: Floats, sensitivity: Floats) -> Compensation | None:
    """How far effective steps follow a sensitivity (κ, or a diagonal of the Hessian).

    Those of 0 or infinity are passed over. None for fewer than `FEWEST`, or all alike.
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
