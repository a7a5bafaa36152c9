"""The sensitivity of a stable dense recurrence as an integral over frequencies.

With ``R = (e^(iθ) - A)⁻¹`` and S the spectral density of an input,

    E h_j²           = 1/2π ∫ S(θ) (R B Bᵀ R*)_jj dθ
    E‖dy/dA_ij‖²     = 1/2π ∫ S(θ) ‖C R e_i‖² (R B Bᵀ R*)_jj dθ

as the derivative of y by an entry is h_j through ``C R e_i`` (Parseval). Nothing in it cancels:
each frequency is as accurate as its resolvent, however far from normal A is, where sums over powers
lose ``ε ‖A^k‖²``. The trapezoidal rule converges like ``ρ^M`` (Trefethen & Weideman 2014), and with
the weights ``Σ_d R(d) e^(iθd) / M`` over lags |d| <= M/2 it is exact in the input, at ρ = 1 too.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from memcurse_cli.theory.autocorrelation import Autocorrelation
from memcurse_cli.theory.dense_result import DenseSensitivity
from memcurse_cli.theory.schur import (
    CHUNK,
    TOO_UNCERTAIN,
    UNCERTAIN,
    largest_norm,
    resolvents,
    rounding_of,
)

Floats = NDArray[np.float64]

FEWEST = 128  # frequencies on the whole circle
PER_DECAY = 8.0  # times the longest time constant, the frequencies of the first try
SETTLED = 1e-9  # a doubling squares the error: what changes so little is exact to rounding
FLOPS = 4e11  # what the resolvents may cost: seconds on two cores
TOO_LONG = "its eigenvectors are too ill-conditioned and its memory is too long"


def sensitivity_by_frequencies(
    matrix: Floats,
    readin: Floats | None,
    autocorrelation: Autocorrelation,
    decay: float,
    readout: Floats | None = None,
) -> DenseSensitivity:
    """E h_i² and E‖dh/dA_ij‖², to 1 % or better, or the reason why not.

    Args:
        matrix: (n, n) A, all |λ| < 1.
        readin: (n, inputs) B, or None for the identity.
        autocorrelation: R(Δ) of each input.
        decay: -log of the largest |λ|.
        readout: (outputs, n) C, or None for the identity.
    """
    points = FEWEST
    while points < PER_DECAY / decay and cost_of_frequencies(len(matrix), points) <= FLOPS:
        points *= 2
    allowed = rounding_of(matrix)
    seen, driven = np.empty((0, len(matrix))), np.empty((0, len(matrix)))
    previous: tuple[Floats, Floats] | None = None
    while cost_of_frequencies(len(matrix), points) <= FLOPS:
        places = np.arange(points // 2 + 1)
        taken = places if previous is None else places[1::2]
        try:
            columns, rows, largest = _responses(matrix, readin, readout, taken / points)
        except ArithmeticError as error:
            return DenseSensitivity(None, None, None, str(error))
        change = allowed * largest
        if not change < UNCERTAIN:
            return DenseSensitivity(None, None, None, TOO_UNCERTAIN)
        if previous is not None:
            columns, rows = _interleaved(seen, columns), _interleaved(driven, rows)
        seen, driven = columns, rows
        weights = _weights(autocorrelation, points)
        with np.errstate(over="ignore", invalid="ignore"):
            found = weights @ driven, (weights[:, None] * seen).T @ driven
        if previous is not None and all(
            _settled(one, other, max(SETTLED, 4 * change))
            for one, other in zip(found, previous, strict=True)
        ):
            return DenseSensitivity.of_entries(*found)
        previous = found
        points *= 2
    return DenseSensitivity(None, None, None, TOO_LONG)


def cost_of_frequencies(size: int, points: float) -> float:
    """How many floating-point operations the resolvents of so many frequencies take."""
    return 16.0 * points * size**3


def _responses(
    matrix: Floats, readin: Floats | None, readout: Floats | None, turns: Floats
) -> tuple[Floats, Floats, float]:
    """(points, n) ``‖C R e_i‖²`` and ``(R B Bᵀ R*)_jj``, and the largest ‖R‖_F."""
    circle = np.exp(2j * np.pi * turns)
    columns, rows, largest = [], [], 0.0
    step = max(1, CHUNK // max(matrix.size, 1))
    for start in range(0, len(circle), step):
        found = resolvents(matrix, circle[start : start + step])
        largest = max(largest, largest_norm(found))
        columns.append(_squared(found if readout is None else readout @ found).sum(axis=1))
        rows.append(_squared(found if readin is None else found @ readin).sum(axis=2))
    return np.concatenate(columns), np.concatenate(rows), largest


def _squared(values: NDArray[np.complex128]) -> Floats:
    with np.errstate(over="ignore"):
        return np.asarray(values.real**2 + values.imag**2)


def _interleaved(even: Floats, odd: Floats) -> Floats:
    whole = np.empty((len(even) + len(odd), even.shape[1]))
    whole[::2], whole[1::2] = even, odd
    return whole


def _weights(autocorrelation: Autocorrelation, points: int) -> Floats:
    """(points / 2 + 1,) what each frequency of the upper half circle counts for.

    The integral of S times a trigonometric polynomial of degree below M/2, whose coefficient d has
    the weight R(d), from its M samples.
    """
    lags = np.arange(points // 2 + 1, dtype=np.float64)
    covariance = np.zeros(len(lags))
    for part in autocorrelation.parts:
        covariance += part.weight * part.powers(lags).real
    weights = np.fft.hfft(covariance, points)[: len(lags)] / points
    weights[1:-1] *= 2
    return np.asarray(weights)


def _settled(one: Floats, other: Floats, tolerance: float) -> bool:
    return bool(np.max(np.abs(one - other), initial=0) <= tolerance * np.max(one, initial=0))
