"""How far a recurrence whose parameters have moved parts from the one before, on the same input.

First order, ``E|h' - h|² = κ δω² E|h|²``, no longer holds once δω changes a memory, or takes an
eigenvalue past 1, where the true change grows as |λ'|^T. Nothing here is of first order.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from memcurse_cli.theory.autocorrelation.mixture import Autocorrelation
from memcurse_cli.theory.moments.moments import Readout, bilinear, one_minus_exp

Floats = NDArray[np.float64]
Complexes = NDArray[np.complex128]

ROUNDING = 1e-18
"""The share of a sum of squares below which a further half of an infinite one adds nothing."""
MOST_DOUBLINGS = 48
SMALLEST_LOG = 700.0
"""-log|λ'| of a λ' that is 0."""


def state_change(
    log_eigenvalues: Complexes,
    log_moved: Complexes,
    log_gain_ratio: Complexes,
    autocorrelation: Autocorrelation,
    horizon: int | None,
    readout: Readout,
) -> Floats:
    """E|h' - h|² / |γ|² of ``h = λ h + γ x`` and ``h' = λ' h' + γ' x``.

    With F(α, β) = E[h_α h̄_β] at γ = 1 and g = γ'/γ it is ``|g|² F(λ', λ') + F(λ, λ) -
    2 Re g F(λ', λ)``. The terms cancel to the square of the relative change, so that one of 1e-3
    has ten digits left.

    Args:
        log_eigenvalues: (n,) log λ.
        log_moved: (n,) log λ'.
        log_gain_ratio: (n,) log g.
        autocorrelation: R(Δ) of the input.
        horizon: T, or None for an infinite sequence.
        readout: at the last step, or the mean over every one.

    Returns:
        (n,) the mean square; inf where a state diverges or leaves the range of a float.
    """
    if not (log_eigenvalues.imag.any() or log_moved.imag.any() or log_gain_ratio.imag.any()):
        log_eigenvalues, log_moved = log_eigenvalues.real, log_moved.real  # type: ignore[assignment]
        log_gain_ratio = log_gain_ratio.real  # type: ignore[assignment]

    def joint(one: Complexes, other: Complexes) -> Complexes:
        return _joint_moment(one, other, autocorrelation, horizon, readout)

    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        ratio = np.exp(log_gain_ratio)
        change = (
            np.abs(ratio) ** 2 * joint(log_moved, log_moved).real
            + joint(log_eigenvalues, log_eigenvalues).real
            - 2 * (ratio * joint(log_moved, log_eigenvalues)).real
        )
    if horizon is None:
        change = np.where((log_eigenvalues.real < 0) & (log_moved.real < 0), change, np.inf)
    return np.where(np.isfinite(change), np.maximum(change, 0.0), np.inf)


def moved_logs(
    log_eigenvalues: Complexes, derivative: Complexes, steps: Floats, *, bounded: bool
) -> Complexes:
    """log λ' of eigenvalues whose parameters move by δω, whatever its size.

    Args:
        log_eigenvalues: (n,) log λ.
        derivative: (n,) dλ/dω.
        steps: (n,) δω.
        bounded: the parameter cannot change the sign of log|λ|, and moves the decay in proportion,
            as exponentials do and a sigmoid near 1; the angle too where its rate is itself.
            Otherwise λ' = λ + δω dλ/dω, exact for a λ that is stored as it is.
    """
    decay, angle = log_eigenvalues.real, log_eigenvalues.imag
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        rate = derivative / np.exp(log_eigenvalues)
        share = steps * rate  # δ log λ to first order
        if bounded:
            grown = np.clip(np.where(decay == 0, 0.0, share.real / decay), -700, 700)
            logarithm = np.abs(rate.imag - angle) <= 1e-9 * np.abs(angle)
            turned = np.where(logarithm, angle * np.exp(steps), angle + share.imag)
            return np.asarray(decay * np.exp(grown) + 1j * turned)
        small = np.abs(share) < 0.5
        growth = share.real * (2 + share.real) + share.imag**2  # |1 + δλ/λ|² - 1
        near = 0.5 * np.log1p(np.where(small, growth, 0.0)) + 1j * np.angle(1 + share)
        far = np.log(np.where(small, 1.0, np.exp(log_eigenvalues) + steps * derivative))
    far = np.where(np.isfinite(far), far, -SMALLEST_LOG)
    return np.where(small, log_eigenvalues + near, far)


def _joint_moment(
    log_alpha: Complexes,
    log_beta: Complexes,
    autocorrelation: Autocorrelation,
    horizon: int | None,
    readout: Readout,
) -> Complexes:
    """F(α, β) = Σ_nm α^n β̄^m R(n-m), over the steps that are read."""
    total = 0.0
    for part in autocorrelation.parts:
        if part.weight == 0:
            continue
        if horizon is None:
            moment = bilinear(log_alpha, log_beta.conj(), part.rho, part.frequency).value
        elif part.rho == 0 and readout == "last":
            exponent = log_alpha + log_beta.conj()
            unmoved = exponent == 0
            base = np.where(unmoved, -1.0, exponent)
            moment = one_minus_exp(horizon * base) / one_minus_exp(base)
            moment = np.where(unmoved, horizon, moment)
        elif part.rho == 0 or part.frequency == 0:
            moment = _finite_moment(log_alpha, log_beta, part.rho, horizon, readout)
        else:  # the mean of two decays on λ turned forth and back
            turn = 1j * part.frequency
            moment = sum(
                _finite_moment(log_alpha + by, log_beta + by, part.rho, horizon, readout) / 2
                for by in (turn, -turn)
            )
        total = total + part.weight * moment
    return np.asarray(total)


def _finite_moment(
    log_alpha: Complexes, log_beta: Complexes, rho: float, horizon: int, readout: Readout
) -> Complexes:
    """F(α, β) for R(Δ) = ρ^|Δ| on T steps.

    With y(k) = (ρ^k, a_k, b_k), what two states hold of an innovation k steps ago, it is the last
    entry of the sums of y y† that `theory.horizon` has of (ρ^k, h, s), doubled as there.
    """
    alpha, beta = np.exp(log_alpha), np.exp(log_beta)
    steps, decay = 1, rho  # k and ρ^k
    a, b = alpha, beta  # α^k and β^k
    a_carried, b_carried = rho * np.ones_like(alpha), rho * np.ones_like(beta)

    def products() -> tuple[Any, ...]:
        first, second = a + a_carried, b + b_carried
        return decay**2, decay * first, decay * second, first * second.conj()

    def applied(sums: tuple[Any, ...]) -> tuple[Any, ...]:
        rr, ar, br, ab = sums
        first = a_carried * rr + a * ar
        second = b_carried * rr + b * br
        both = (a * b.conj()) * ab + first * b_carried.conj() + a_carried * (b * br).conj()
        return decay**2 * rr, decay * first, decay * second, both

    w: tuple[Any, ...] = (1.0, np.ones_like(alpha), np.ones_like(beta), np.ones_like(alpha * beta))
    v = w
    last = readout == "last"
    count = horizon - 1 if last else horizon
    for bit in bin(count)[3:]:
        if not last:
            v = tuple(x + steps * y + z for x, y, z in zip(v, w, applied(v), strict=True))
        w = tuple(x + y for x, y in zip(w, applied(w), strict=True))
        a_carried, b_carried = (a + decay) * a_carried, (b + decay) * b_carried
        steps, a, b = 2 * steps, np.exp(2 * steps * log_alpha), np.exp(2 * steps * log_beta)
        decay = rho**steps
        if bit == "1":
            w = tuple(x + y for x, y in zip(w, products(), strict=True))
            v = tuple(x + y for x, y in zip(v, w, strict=True))
            steps, decay = steps + 1, rho ** (steps + 1)
            a_carried, b_carried = alpha * a_carried + decay, beta * b_carried + decay
            a, b = np.exp(steps * log_alpha), np.exp(steps * log_beta)
    later = (1 - rho) * (1 + rho)
    if not last:
        return np.asarray((later * v[3] + rho**2 * w[3]) / horizon)
    return np.asarray(w[3] if count == 0 else products()[3] + later * w[3])


def matrix_state_change(
    matrix: Floats,
    change: Floats,
    readin: Floats,
    autocorrelation: Autocorrelation,
    horizon: int | None,
    readout: Readout,
) -> tuple[float, float]:
    """E‖h' - h‖² and E‖h‖² of ``h = A h + B x`` and ``h' = (A + δA) h' + B x``.

    The difference d obeys ``d = (A + δA) d + δA h``, so that nothing cancels.

    Args:
        matrix: (n, n) A.
        change: (n, n) δA.
        readin: (n, inputs) B.
        autocorrelation: R(Δ) of each input.
        horizon: T, or None for an infinite sequence, of matrices with every |λ| < 1.
        readout: at the last step, or the mean over every one.
    """
    size, inputs = readin.shape
    moved = powers = 0.0
    for part in autocorrelation.parts:
        if part.weight == 0:
            continue
        pole = part.pole * np.eye(inputs)
        transition = np.block(
            [
                [pole, np.zeros((inputs, 2 * size))],
                [readin @ pole, matrix, np.zeros((size, size))],
                [np.zeros((size, inputs)), change, matrix + change],
            ]
        )
        start = np.concatenate([np.eye(inputs), readin, np.zeros_like(readin)])
        kept = slice(inputs if part.rho == 0 else 0, None)
        transition, start = transition[kept, kept], start[kept]
        products = _answers(transition, start, part.rho, horizon, readout)
        squares = np.diagonal(products).real
        powers += part.weight * float(np.sum(squares[-2 * size : -size]))
        moved += part.weight * float(np.sum(squares[-size:]))
    return moved, powers


def _answers(
    transition: Floats, start: Floats, rho: float, horizon: int | None, readout: Readout
) -> Floats:
    """The sums of y y† of `_finite_moment` for a matrix M and y(0); doubled until M^k is gone."""
    power, answer = transition, start @ start.conj().T
    w = v = answer
    last = readout == "last" or horizon is None
    # An infinite sequence ends where a further doubling adds nothing.
    bits = bin(2**MOST_DOUBLINGS if horizon is None else horizon - last)[3:]
    steps = 1
    for bit in bits:
        turned = power.conj().T
        if not last:
            v = v + steps * w + power @ v @ turned
        added = power @ w @ turned
        w = w + added
        power, steps = power @ power, 2 * steps
        if bit == "1":
            seen = power @ start
            w = w + seen @ seen.conj().T
            v = v + w
            power, steps = power @ transition, steps + 1
        if horizon is None and np.linalg.norm(added) <= ROUNDING * np.linalg.norm(w):
            break
    later = (1 - rho) * (1 + rho)
    if not last and horizon is not None:
        return (later * v + rho**2 * w) / horizon
    seen = power @ start
    return w if horizon == 1 else seen @ seen.conj().T + later * w
