"""How much a real parameter moves the state: E|dh/dω|², alone and relative to E|h|²."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from memcurse_cli.theory.hessian.jacobian import ParameterJacobian
from memcurse_cli.theory.moments.moments import Moments

Floats = NDArray[np.float64]
Complexes = NDArray[np.complex128]

ROUNDING = 4 * float(np.finfo(np.float64).eps)


class GroupSensitivity(NamedTuple):
    """The sensitivities of one parameter group, one per scalar.

    Attributes:
        sensitivity: (size,) Σ_i w_i E|dh_i/dω|² over the eigenvalues that the scalar moves.
        relative_sensitivity: (size,) κ(ω) = Σ_i w_i E|dh_i/dω|² / Σ_i w_i E|h_i|².
    """

    sensitivity: Floats
    relative_sensitivity: Floats


def state_second_moment(moments: Moments, log_gain: Complexes) -> Floats:
    """E|h|² of states that are driven through the gain γ.

    Args:
        moments: the moments of each eigenvalue at γ = 1.
        log_gain: log γ; a state whose γ is 0 receives nothing and is 0, whatever its λ.

    Returns:
        One value per eigenvalue; inf where it diverges.
    """
    with np.errstate(over="ignore"):
        squared = np.exp(2 * log_gain.real)
        driven = np.where(squared > 0, moments.second_moment, 0.0)
        return np.asarray(squared * driven)


def parameter_sensitivity(
    moments: Moments,
    log_gain: Complexes,
    eigenvalue_derivative: Complexes,
    log_gain_derivative: Complexes | None = None,
) -> Floats:
    """E|dh/dω|² of a real parameter ω of λ and γ.

    ``dh/dω = γ (λ' s + η h)`` with λ' = dλ/dω and η = d log γ/dω, so that

        E|dh/dω|² = |γ|² (|λ'|² E|s|² + 2 Re[λ' η̄ E[s h̄]] + |η|² E|h|²)

    There is no factor from Wirtinger calculus: ω is real (Zucchet & Orvieto 2024, eq. 56-60,
    corrected).

    Args:
        moments: the moments of each eigenvalue at γ = 1.
        log_gain: log γ; -inf for γ = 0.
        eigenvalue_derivative: λ'.
        log_gain_derivative: η, or None where γ does not depend on ω.

    Returns:
        One value per eigenvalue; inf where E|s|² diverges.
    """
    moved = _without_gain(moments, eigenvalue_derivative, log_gain_derivative)
    return _with_gain(moments, log_gain, moved)


def relative_sensitivity(
    moments: Moments,
    eigenvalue_derivative: Complexes,
    log_gain_derivative: Complexes | None = None,
) -> Floats:
    """κ(ω) = E|dh/dω|² / E|h|² of a parameter that moves one eigenvalue.

    γ cancels, so it need not be known: κ has its limit even at γ = 0. The arguments are those of
    `parameter_sensitivity`.

    Returns:
        One value per eigenvalue; inf where E|s|² diverges.
    """
    return _relative(moments, _without_gain(moments, eigenvalue_derivative, log_gain_derivative))


def group_sensitivity(
    moments: Moments,
    log_gain: Complexes,
    jacobian: ParameterJacobian,
    weight: Floats | None = None,
) -> GroupSensitivity:
    """The sensitivities of every scalar of a parameter group.

    A tied scalar moves several eigenvalues. Their states are different coordinates, so their
    squares add, in the numerator of κ as in its denominator.

    Args:
        moments: the moments of the layer's n eigenvalues at γ = 1.
        log_gain: (n,) log γ.
        jacobian: what the scalars move; an eigenvalue stands at most once under each scalar.
        weight: (n,) the variance ‖b_i‖² of each state's drive; None for 1.

    Returns:
        Two values per scalar: inf where one of its eigenvalues diverges, and 0 where it moves
        no state that is driven.
    """
    eigenvalue = jacobian.eigenvalue
    if not _is_range(eigenvalue, log_gain.size):
        moments = Moments(*(moment[eigenvalue] for moment in moments))
        log_gain = log_gain[eigenvalue]
        weight = None if weight is None else weight[eigenvalue]
    derivatives = (jacobian.eigenvalue_derivative, jacobian.log_gain_derivative)

    if _is_range(jacobian.scalar, jacobian.size):
        moved = _without_gain(moments, *derivatives)
        sensitivity, relative = _with_gain(moments, log_gain, moved), _relative(moments, moved)
        if weight is not None:
            driven = weight > 0
            with np.errstate(over="ignore"):
                sensitivity = np.where(driven, sensitivity, 0.0) * weight
            relative = np.where(driven, relative, 0.0)
        return GroupSensitivity(sensitivity, relative)

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
    return GroupSensitivity(
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


def _with_gain(moments: Moments, log_gain: Complexes, moved: Floats) -> Floats:
    with np.errstate(over="ignore", invalid="ignore"):
        sensitivity = np.exp(2 * log_gain.real) * moved
    return np.where(np.isfinite(moments.sensitivity), _in_range(sensitivity), np.inf)


def _relative(moments: Moments, moved: Floats) -> Floats:
    relative = _ratio(moved, _finite(moments.second_moment))
    return np.where(np.isfinite(moments.sensitivity), relative, np.inf)


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


def _is_range(index: NDArray[np.intp], size: int) -> bool:
    return index.size == size and bool(np.array_equal(index, np.arange(size)))
