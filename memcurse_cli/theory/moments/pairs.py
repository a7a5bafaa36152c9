"""E[z_i z_j] of the states and their derivatives, for every pair of eigenvalues of a block.

A block is a set of m eigenvalues; ``z = (h, s)`` with ``h[t+1] = λ h[t] + x[t+1]`` and
``s = dh/dλ``. The tables are what a Hessian at optimality is summed from.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from memcurse_cli.theory.autocorrelation.mixture import Autocorrelation, Decay
from memcurse_cli.theory.moments.moments import Readout, bilinear

Complexes = NDArray[np.complex128]
Integers = NDArray[np.intp]
NEGLIGIBLE = 1e-20  # an impulse response that has fallen so far adds nothing more
CHUNK = 2**20  # impulse-response samples held at once
MOST_LAGS = 2**21  # beyond which a sum over lags takes minutes


class PairMoments(NamedTuple):
    """Second moments of every pair, (..., m, m) each.

    Attributes:
        ss: E[s_i s_j].
        sh: E[s_i h_j].
        hs: E[h_i s_j].
        hh: E[h_i h_j].
    """

    ss: Complexes
    sh: Complexes
    hs: Complexes
    hh: Complexes


def stationary_pairs(
    log_eigenvalues: Complexes,
    autocorrelation: Autocorrelation,
    *,
    conjugate: bool,
    columns: Integers | None = None,
) -> PairMoments:
    """The tables of an infinite sequence, from `bilinear`: |λ| < 1 throughout.

    Args:
        log_eigenvalues: (..., m) log λ.
        autocorrelation: R(Δ) of the input.
        conjugate: whether the second of a pair stands conjugated.
        columns: (c,) the eigenvalues that come second, instead of all.
    """
    second = log_eigenvalues if columns is None else log_eigenvalues[..., columns]
    log_alpha = log_eigenvalues[..., :, None]
    log_beta = second[..., None, :]
    if conjugate:
        log_beta = log_beta.conj()
    shape = np.broadcast_shapes(log_alpha.shape, log_beta.shape)
    tables = PairMoments(*(np.zeros(shape, np.complex128) for _ in range(4)))
    for weight, rho, frequency in autocorrelation.parts:
        pair = bilinear(log_alpha, log_beta, rho, frequency)
        for table, part in zip(
            tables,
            (pair.mixed_derivative, pair.derivative_alpha, pair.derivative_beta, pair.value),
            strict=True,
        ):
            table += weight * part
    return tables


def lags_within(log_eigenvalues: Complexes, autocorrelation: Autocorrelation, horizon: int) -> int:
    """About how many lags `finite_pairs` sums: at most T, fewer where every response dies out."""
    longest = max(part.rho for part in autocorrelation.parts if part.weight > 0)
    slowest = float(np.max(log_eigenvalues.real, initial=-np.inf))
    slowest = max(slowest, np.log(longest) if longest > 0 else -np.inf)
    if slowest >= 0:
        return horizon
    # Twice the decay of λ^k alone, as k λ^(k-1) falls later.
    return min(horizon, int(min(2 * np.log(NEGLIGIBLE) / slowest, float(horizon))) + 1)


def finite_pairs(
    log_eigenvalues: Complexes,
    autocorrelation: Autocorrelation,
    horizon: int,
    readout: Readout = "every",
    columns: Integers | None = None,
) -> tuple[PairMoments, PairMoments]:
    """The tables averaged over every step t = 1..T from h = s = 0, exact for any |λ|.

    This is what a loss summed over a sequence sees; one at the last step sees every lag once. The
    input starts stationary, so that it is a first innovation of variance 1 and later ones of
    variance 1-ρ²; a lag of k steps is seen by T-k of the T outputs, one of them from the first
    innovation:

        Σ_k z_i(k) z_j(k) [ (1-ρ²)(T-1-k) + 1 ] / T

    with z(k) the responses to an innovation, through the input's AR(1) filter; a damped cosine has
    two such filters.

    Args:
        log_eigenvalues: (..., m) log λ.
        autocorrelation: R(Δ) of the input.
        horizon: T ≥ 1.
        readout: ``every`` for the mean over the steps, ``last`` for step T alone.
        columns: (c,) the eigenvalues that come second, instead of all.

    Returns:
        The tables without and with the second of each pair conjugated.
    """
    batch, size = log_eigenvalues.shape[:-1], log_eigenvalues.shape[-1]
    width = size if columns is None else columns.size
    seconds = None
    if columns is not None:
        seconds = (columns + size * np.arange(4)[:, None]).ravel()
    products = np.zeros((*batch, 4 * size, 4 * width))
    eigenvalue = np.exp(log_eigenvalues)
    chunk = min(horizon, max(64, CHUNK // max(1, 4 * log_eigenvalues.size)))
    for part, of in _innovations(autocorrelation):
        weight, rho = part.weight, part.rho
        state = np.zeros_like(eigenvalue)
        derivative = np.zeros_like(eigenvalue)
        for start in range(0, horizon, chunk):
            lags = np.arange(start, min(start + chunk, horizon))
            response = np.empty((lags.size, *batch, 4 * size))
            echo = part.quadratures(lags.astype(np.float64))[of]
            for place in range(lags.size):
                derivative = eigenvalue * derivative + state
                state = eigenvalue * state + echo[place]
                response[place] = np.concatenate(
                    [derivative.real, state.real, derivative.imag, state.imag], axis=-1
                )
            if readout == "every":
                share = weight * ((1 - rho) * (1 + rho) * (horizon - 1 - lags) + 1) / horizon
            else:
                share = weight * np.where(lags == horizon - 1, 1.0, (1 - rho) * (1 + rho))
            response = np.ascontiguousarray(np.moveaxis(response, 0, -1))
            second = response if seconds is None else response[..., seconds, :]
            products += (response * share) @ np.swapaxes(second, -1, -2)
            if np.all(np.abs(response[..., -1]) < NEGLIGIBLE):
                break
    upper, lower = products[..., : 2 * size, :], products[..., 2 * size :, :]
    both, mixed = upper[..., : 2 * width], upper[..., 2 * width :]
    across, turned = lower[..., : 2 * width], lower[..., 2 * width :]
    return (
        _split((both - turned) + 1j * (mixed + across), size, width),
        _split((both + turned) + 1j * (across - mixed), size, width),
    )


def _innovations(autocorrelation: Autocorrelation) -> Iterator[tuple[Decay, int]]:
    """Every part, and which of its quadratures: one for each process of innovations."""
    for part in autocorrelation.parts:
        for of in range(len(part.quadratures(np.zeros(1)))):
            yield part, of


def _split(table: Complexes, size: int, width: int) -> PairMoments:
    s, h = table[..., :size, :], table[..., size:, :]
    return PairMoments(s[..., :width], s[..., width:], h[..., :width], h[..., width:])
