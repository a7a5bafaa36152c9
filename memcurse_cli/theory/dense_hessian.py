"""The Hessian of a dense linear recurrence at a perfect fit, without its n²×n² matrix.

``h[t+1] = A h[t] + B x[t+1]``, ``y = C h`` with real A, B and C and isotropic inputs. Of
½ E|y - y*|² at y = y* the Hessian over the entries of A is ``H = E[J Jᵀ]``, J = dy/dA. Its
products H[X] with a change X of A cost a few products of n×n matrices, from which the Lanczos
iteration takes the top of its spectrum; its diagonal ``E‖dy/dA_ij‖²`` has a closed form.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from memcurse_cli.spectra.lanczos import largest_eigenpairs, largest_eigenvalue
from memcurse_cli.theory.autocorrelation import WHITE, Autocorrelation
from memcurse_cli.theory.dense_hessian_horizon import HorizonHessian
from memcurse_cli.theory.dense_hessian_stationary import StationaryHessian
from memcurse_cli.theory.dense_horizon import entries_within_horizon
from memcurse_cli.theory.dense_stationary import (
    remembered_lags,
    sensitivity_by_eigenbasis,
)
from memcurse_cli.theory.dense_without_eigenbasis import sensitivity_without_eigenbasis
from memcurse_cli.theory.diagonality import (
    FLAT,
    TOP,
    DiagonalityScores,
    Eigenpair,
    mean_concentration,
    top_eigenpairs,
)
from memcurse_cli.theory.eigenbasis import Eigenbasis
from memcurse_cli.theory.moments import Readout

Floats = NDArray[np.float64]

LARGEST_EIGENSPACE = 88  # vectors of one that products with H are made for
HESSIAN_CONDITION = 1e6  # products with P and P⁻¹ lose ε κ(P)², and what is squared twice that
FORMED_ORDER = 1024  # up to here ‖H‖_F² costs little from H itself
DEVIATIONS, ROUNDING = 4.0, 1e-6  # within which a diagonality may be outside its bounds
LOST = "its norm is lost in the rounding of products with its ill-conditioned eigenvectors"
PROBES = 16  # random vectors behind an estimated ‖H‖_F²


@dataclass(frozen=True)
class DenseHessian:
    """H over the entries of A, or over those of its diagonal blocks.

    Attributes:
        apply: (n, n) X → (n, n) H[X].
        diagonal: (n, n) H_ij,ij = E‖dy/dA_ij‖².
        output_second_moment: E|y|², the outputs summed.
        squared_norm: ‖H‖_F², or None where no closed form is at hand.
        gram_top: what `top` returns, where the Gram matrix of all responses is small enough.
    """

    apply: Callable[[Floats], Floats]
    diagonal: Floats
    output_second_moment: float
    squared_norm: float | None
    gram_top: Callable[[int], tuple[Floats, Floats]] | None = None

    @property
    def order(self) -> int:
        """N = n²."""
        return self.diagonal.size

    @cached_property
    def trace(self) -> float:
        """tr H."""
        return float(self.diagonal.sum())

    def scaled(self, factor: float) -> DenseHessian:
        """The Hessian over W of ``A = ... + s W``, with factor s²."""
        gram_top = self.gram_top

        def top(count: int) -> tuple[Floats, Floats]:
            assert gram_top is not None
            values, vectors = gram_top(count)
            return factor * values, vectors

        return DenseHessian(
            lambda change: factor * self.apply(change),
            factor * self.diagonal,
            self.output_second_moment,
            None if self.squared_norm is None else factor**2 * self.squared_norm,
            None if gram_top is None else top,
        )

    def to_matrix(self) -> Floats:
        """(n², n²) H itself, for small n."""
        shape = self.diagonal.shape
        units = np.eye(self.order).reshape(-1, *shape)
        matrix = np.stack([self.apply(unit).ravel() for unit in units])
        return np.asarray(0.5 * (matrix + matrix.T))

    def top(self, count: int = TOP) -> tuple[Floats, Floats]:
        """The largest eigenvalues, descending, and their eigenvectors, each a change of A.

        Args:
            count: how many.

        Returns:
            (count,) eigenvalues and (count, n, n) eigenvectors of unit Frobenius norm; fewer
            where H has a lower rank.

        Raises:
            ArithmeticError: the Lanczos iteration has not converged.
        """
        if self.gram_top is not None:
            return self.gram_top(count)
        shape = self.diagonal.shape

        def apply(flat: Floats) -> Floats:
            return self.apply(flat.reshape(shape)).ravel()

        values, vectors = largest_eigenpairs(apply, self.order, count)
        return values, np.ascontiguousarray(vectors.T).reshape(-1, *shape)

    def adam_residual(self) -> float:
        """λ_max(D^-½ H D^-½) with D = diag H, over the entries with H_aa > 0."""
        root = np.sqrt(np.maximum(self.diagonal, 0))
        inverse = np.divide(1.0, root, out=np.zeros_like(root), where=root > 0)

        def apply(flat: Floats) -> Floats:
            return (inverse * self.apply(inverse * flat.reshape(root.shape))).ravel()

        return largest_eigenvalue(apply, self.order)


@dataclass(frozen=True)
class DenseHessianScores:
    """The scores of a dense layer's Hessian, and what they were taken from.

    Attributes:
        scores: as of any Hessian.
        diagonality_error: the standard error of ``scores.diagonality``; 0 where it is exact.
        top: the eigenpairs of the ten largest eigenvalues, descending, vectors as (n², ).
    """

    scores: DiagonalityScores
    diagonality_error: float
    top: list[Eigenpair]


def dense_hessian(
    matrix: Floats,
    basis: Eigenbasis,
    readin: Floats,
    readout: Floats,
    *,
    autocorrelation: Autocorrelation = WHITE,
    horizon: int | None = None,
    read_at: Readout = "every",
) -> DenseHessian:
    """The Hessian over the n² entries of A.

    Args:
        matrix: (n, n) real A, row = target.
        basis: its eigenbasis; past κ(P) = 1e6, where products with P⁻¹ lose four digits, it is
            not used.
        readin: (n, inputs) real B.
        readout: (outputs, n) real C.
        autocorrelation: R(Δ) of each input.
        horizon: T for sequences of T steps from h = 0, exact for every A; None for an infinite
            sequence, which needs all |λ| < 1.
        read_at: ``every`` for a loss that is the mean over the steps, ``last`` for one at step T.

    Raises:
        ValueError: an infinite sequence and |λ| >= 1.
        OverflowError: a figure leaves the range of a float.
        ArithmeticError: an infinite sequence whose memory is too long for so ill-conditioned a P,
            or so far from normal an A that its rounding changes the Hessian.
    """
    radius = math.exp(float(np.max(basis.log_eigenvalues.real)))
    if horizon is None and radius >= 1:
        raise ValueError("the Hessian of an infinite sequence needs |λ| < 1")
    gram_top = None
    with np.errstate(over="ignore", invalid="ignore"):
        if horizon is not None:
            finite = HorizonHessian(
                matrix, readin, readout, autocorrelation, horizon, read_at, radius
            )
            diagonal = entries_within_horizon(
                matrix, readin, autocorrelation, horizon, read_at, readout
            )[1]
            apply, output = finite.apply, finite.output_second_moment
            squared_norm = finite.squared_norm()
            gram_top = None if squared_norm is None else finite.top
        else:
            usable = basis if basis.condition < HESSIAN_CONDITION else None
            endless = StationaryHessian(matrix, usable, readin, readout, autocorrelation)
            diagonal = _stationary_diagonal(matrix, basis, readin, readout, autocorrelation)
            apply, output = endless.apply, endless.output_second_moment
            squared_norm = endless.squared_norm()
    if not np.isfinite(float(np.sum(diagonal**2))):
        raise OverflowError("the squares of a Hessian's elements have no finite sum")
    return DenseHessian(apply, diagonal, output, squared_norm, gram_top)


def _stationary_diagonal(
    matrix: Floats,
    basis: Eigenbasis,
    readin: Floats,
    readout: Floats,
    autocorrelation: Autocorrelation,
) -> Floats:
    if basis.condition < HESSIAN_CONDITION:
        found = sensitivity_by_eigenbasis(basis, readin, autocorrelation, readout)
    else:
        decay = -float(np.max(basis.log_eigenvalues.real, initial=-np.inf))
        memory = remembered_lags(matrix)
        found = sensitivity_without_eigenbasis(
            matrix, readin, autocorrelation, memory, decay, readout
        )
    if found.per_entry is None:
        raise ArithmeticError(found.reason or "the diagonal is not computed")
    return found.per_entry


def dense_hessian_scores(hessian: DenseHessian) -> DenseHessianScores | None:
    """The four scores of `diagonality_scores`, from products with H alone.

    ‖H‖_F² is exact where `DenseHessian.squared_norm` is, and up to 1024 entries of A. Otherwise
    its share outside the span of the top eigenvectors, E‖H z‖² over random signs z there, is
    estimated by its mean over 16 draws (Meyer et al. 2021, Hutch++), with its standard error.

    Args:
        hessian: the operator.

    Returns:
        The scores, or None where H is zero.

    Raises:
        ArithmeticError: the Lanczos iteration has not converged, or rounding has made of ‖H‖_F what
            that of no matrix with this diagonal can be.
    """
    if not hessian.trace > 0:
        return None

    def solve(count: int) -> tuple[Floats, Floats]:
        values, vectors = hessian.top(count)
        return values, vectors.reshape(len(vectors), -1).T

    pairs = top_eigenpairs(solve, hessian.order, most=LARGEST_EIGENSPACE)
    pairs = [pair for pair in pairs if pair.value > FLAT * pairs[0].value]
    squared_norm, error = hessian.squared_norm, 0.0
    if squared_norm is None:
        values = np.array([pair.value for pair in pairs])
        flat = np.array([pair.vector for pair in pairs])
        squared_norm, error = _squared_norm(hessian, values, flat)
    diagonality = float(np.sum(hessian.diagonal**2)) / squared_norm
    within = DEVIATIONS * error / squared_norm + ROUNDING
    if not (1 - within) / hessian.order <= diagonality <= 1 + within:
        raise ArithmeticError(LOST)
    return DenseHessianScores(
        scores=DiagonalityScores(
            order=hessian.order,
            trace=hessian.trace,
            diagonality=min(diagonality, 1.0),
            sharpness=pairs[0].value,
            adam_residual=hessian.adam_residual(),
            concentration=mean_concentration(pairs),
        ),
        diagonality_error=diagonality * error / squared_norm,
        top=pairs,
    )


def _squared_norm(hessian: DenseHessian, values: Floats, flat: Floats) -> tuple[float, float]:
    """‖H‖_F² = Σ μ² over the top + E‖H z‖² off them, and the standard error of the mean."""
    if hessian.order <= FORMED_ORDER:
        return float(np.sum(hessian.to_matrix() ** 2)), 0.0
    generator = np.random.default_rng(0)  # the same report every time
    draws = []
    for _ in range(PROBES):
        probe = generator.choice([-1.0, 1.0], size=hessian.order)
        probe -= flat.T @ (flat @ probe)
        draws.append(float(np.sum(hessian.apply(probe.reshape(hessian.diagonal.shape)) ** 2)))
    rest = float(np.mean(draws))
    error = float(np.std(draws, ddof=1)) / math.sqrt(PROBES)
    return float(np.sum(values**2)) + rest, error
