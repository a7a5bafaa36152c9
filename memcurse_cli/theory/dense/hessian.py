"""The Hessian of a dense linear recurrence at a perfect fit, by products: docs/theory/dense.md."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from memcurse_cli.theory.dense.bases import Eigenbasis, stein_solver
from memcurse_cli.theory.dense.sensitivity import (
    TOO_LONG,
    DenseSystem,
    driven,
    entries_within_horizon,
    powers,
    sensitivity_by_eigenbasis,
    sensitivity_without_eigenbasis,
)
from memcurse_cli.theory.diagonality import (
    FLAT,
    DiagonalityScores,
    Eigenpair,
    inverse_root,
    mean_concentration,
    top_eigenpairs,
)
from memcurse_cli.theory.linalg import Complexes, Floats, largest_eigenpairs, largest_eigenvalue
from memcurse_cli.theory.moments import one_minus_exp

HESSIAN_CONDITION = 1e6  # products with P and P⁻¹ lose ε κ(P)², and what is squared twice that
NORM_CONDITION = 1e4  # κ(P) up to which ‖H‖_F² in closed form keeps six digits
GRAM_ORDER = 1000  # impulse-response samples up to which their Gram matrix is formed
LARGEST_EIGENSPACE = 88  # vectors of one that products with H are made for
FORMED_ORDER = 1024  # up to here ‖H‖_F² is taken from H itself, where
FORMED_FLOPS = 2e10  # is enough for all its columns: seconds
STEIN_PRODUCTS = 24  # n×n products in two Stein equations
PROBES = 16  # random vectors behind an estimated ‖H‖_F²
DEVIATIONS, ROUNDING = 4.0, 1e-6  # within which a diagonality may be outside its bounds
LOST = "its norm is lost in the rounding of products with its ill-conditioned eigenvectors"


class StationaryHessian:
    """H of all |λ| < 1 at T → ∞, by the eigenbasis, if any; ArithmeticError: A^k do not vanish."""

    def __init__(self, system: DenseSystem, basis: Eigenbasis | None) -> None:
        matrix, readin, readout = system.matrix, system.inputs, system.outputs
        self._matrix, self._basis, self._readin = matrix, basis, readin
        self._stein = stein_solver(matrix, basis)
        drive, self._coloured = driven(system)
        self._weight = self._stein.adjoint(readout.T @ readout)
        self._covariance = self._stein.forward(drive)
        self._source = matrix @ self._covariance
        for weight, rho, _, answer in self._coloured:
            self._source += (weight * rho * readin @ answer.T).real
        #: E|y|², the outputs summed.
        self.output_second_moment = float(np.sum((readout @ self._covariance) * readout))
        #: About the floating-point operations of `apply`.
        self.cost = STEIN_PRODUCTS * 2.0 * matrix.size * len(matrix)

    def apply(self, change: Floats) -> Floats:
        """(n, n) H[X] of an (n, n) X."""
        weighted = self._weight @ change
        back = self._stein.adjoint(self._matrix.T @ weighted)
        source = change @ self._source.T  # X (Σ Aᵀ + ρ N Bᵀ)
        result = np.zeros_like(change)
        for weight, rho, resolvent, answer in self._coloured:
            moved = self._matrix @ (resolvent @ (change @ answer))
            source += (weight * rho**2 * moved @ self._readin.T).real
            returned = resolvent.T @ (self._matrix.T @ (back @ self._readin))
            result += (weight * rho**2 * returned @ answer.T).real
        joint = self._stein.forward(source)
        result += back @ self._source
        result += self._weight @ (self._matrix @ joint) + weighted @ self._covariance
        return result

    def squared_norm(self) -> float | None:
        """‖H‖_F² for white noise and a well-conditioned eigenbasis, else None.

        H is ``𝒜 + 𝒜ᵀ - W ⊗ Σ`` with ``𝒜[X] = Σ_ab K_ab q_aᵀ (p_aᵀW X p_b) q_bΣ`` and
        ``K = 1/(1 - λ_a λ_b)``: traces of 𝒜𝒜ᵀ and 𝒜² are ``Σ (KᵀMK) ∘ N`` of Gram matrices.
        """
        if self._basis is None or self._coloured or self._basis.condition > NORM_CONDITION:
            return None
        logs, vectors = self._basis.log_eigenvalues, self._basis.vectors
        inverse = self._basis.inverse
        kernel = 1 / one_minus_exp(logs[:, None] + logs[None, :])
        alpha, beta = inverse, vectors.T @ self._weight  # rows
        gamma, delta = vectors.T, inverse @ self._covariance

        def trace(left: Complexes, right: Complexes) -> float:
            return float(np.sum((kernel.T @ left @ kernel) * right).real)

        crossed, crossed_right = alpha @ beta.T, gamma @ delta.T
        squared = trace((alpha @ alpha.T) * (beta @ beta.T), (gamma @ gamma.T) * (delta @ delta.T))
        product = trace(crossed * crossed.T, crossed_right * crossed_right.T)
        along = np.sum((alpha @ self._weight) * beta, axis=1)
        across = np.sum((gamma @ self._covariance) * delta, axis=1)
        mixed = float((along @ kernel @ across).real)
        both = float(np.sum(self._weight**2) * np.sum(self._covariance**2))
        return 2 * (squared + product) + both - 4 * mixed


class HorizonHessian:
    """H of any A over T ≥ 1 steps; OverflowError where responses leave the range of a float."""

    def __init__(self, system: DenseSystem) -> None:
        matrix, readin, readout = system.matrix, system.inputs, system.outputs
        # The side with fewer channels meets X; the other one is only convolved.
        self._transposed = readin.shape[1] < len(readout)
        if self._transposed:
            matrix, readin, readout = matrix.T, readout.T, readin.T
        self._autocorrelation = system.autocorrelation
        horizon = system.steps
        self._steps = horizon - 1
        lags = np.arange(horizon)
        every = system.read_at == "every"
        self._weight = (horizon - lags) / horizon if every else np.ones(horizon)
        # Responses that grow are divided by r^m, which passes through a convolution: early ones
        # would otherwise lose their digits to late ones in the transform.
        rate = math.exp(max(system.basis.log_radius, 0.0))
        tilted = matrix / rate
        right = powers(tilted, readin, horizon)
        with np.errstate(over="ignore", invalid="ignore"):
            self._growth = rate ** lags.astype(np.float64)[:, None, None]
            seen = self._growth * (readout @ right)
            #: E|y|², the outputs summed.
            self.output_second_moment = float(np.sum(seen * self._covariance_of(seen)))
            largest = self._growth[-1, 0, 0] ** 2
        if not np.isfinite(self.output_second_moment * largest):
            raise OverflowError("the state leaves the range of a float")
        from scipy.fft import next_fast_len

        self._length = next_fast_len(max(2 * horizon - 3, 1), real=True)
        self._left = powers(tilted.T, readout.T, self._steps).transpose(0, 2, 1).copy()
        self._right = right[: self._steps]
        self._spectrum = np.fft.rfft(self._right, self._length, axis=0)
        size, inputs = readin.shape
        #: About the floating-point operations of `apply`, most of them in complex products.
        self.cost = 4.0 * horizon * len(readout) * size * (size + 4 * inputs)

    def apply(self, change: Floats) -> Floats:
        """(n, n) H[X] of an (n, n) X."""
        if self._steps == 0:
            return np.zeros_like(change)
        if self._transposed:
            change = change.T
        size = len(change)
        moved = (self._left.reshape(-1, size) @ change).reshape(self._left.shape)
        transformed = np.fft.rfft(moved, self._length, axis=0) @ self._spectrum
        response = np.fft.irfft(transformed, self._length, axis=0)[: self._steps]
        return self._returned(self._tilted_covariance_of(response))

    def _returned(self, seen: Floats) -> Floats:
        """(n, n) Σ_m L_mᵀ Σ_m' M(m+m'+1) Z_m'ᵀ of (T-1, outputs, inputs) responses M."""
        size = self._left.shape[2]
        transformed = np.fft.rfft(seen, self._length, axis=0)
        transformed = transformed @ self._spectrum.conj().transpose(0, 2, 1)
        returned = np.fft.irfft(transformed, self._length, axis=0)[: self._steps]
        result = self._left.reshape(-1, size).T @ returned.reshape(-1, size)
        return np.asarray(result.T if self._transposed else result)

    def squared_norm(self) -> float | None:
        """‖H‖_F² = Σ μ², or None where JᵀJ is too large to be formed."""
        pairs = self._gram_pairs
        return None if pairs is None else float(np.sum(pairs[0] ** 2))

    def top(self, count: int) -> tuple[Floats, Floats]:
        """(k,) largest eigenvalues, descending, and (n², k) unit eigenvectors, from JᵀJ."""
        pairs = self._gram_pairs
        assert pairs is not None
        values, coefficients, root = pairs
        kept = np.flatnonzero(values[:count] > 0)
        vectors = []
        for weights in coefficients[:, kept].T:
            seen = (root.T @ weights.reshape(len(root), -1)).reshape(self._steps, *self._channels)
            vector = self._returned(seen).ravel()
            vectors.append(vector / np.linalg.norm(vector))
        return values[kept], np.array(vectors).T

    @property
    def _channels(self) -> tuple[int, int]:
        return self._left.shape[1], self._right.shape[2]

    @cached_property
    def _gram_pairs(self) -> tuple[Floats, Floats, Floats] | None:
        """Eigenvalues of R JᵀJ Rᵀ, ``G = RᵀR``, descending, its eigenvectors w, and R.

        ``H = J G Jᵀ`` has the eigenvectors ``J Rᵀ w``; JᵀJ convolves ``L_m L_pᵀ``, ``Z_m'ᵀ Z_p'``.
        """
        steps, (outputs, inputs) = self._steps, self._channels
        order = steps * outputs * inputs
        if order > GRAM_ORDER:
            return None
        shape = (self._length, self._length)
        left = np.einsum("moi,pqi->oqmp", self._left, self._left, optimize=True)
        right = np.einsum("miu,piv->uvmp", self._right, self._right, optimize=True)
        spectra = [np.fft.rfft2(table, shape) for table in (left, right)]
        gram = np.empty((outputs, inputs, outputs, inputs, steps, steps))
        for o, q, u, v in np.ndindex(outputs, outputs, inputs, inputs):
            product = np.fft.irfft2(spectra[0][o, q] * spectra[1][u, v], shape)
            gram[o, u, q, v] = product[:steps, :steps]
        variances, axes = np.linalg.eigh(self._tilted_covariance_of(np.eye(steps)))
        root = np.sqrt(np.maximum(variances, 0))[:, None] * axes.T
        gram = (root @ gram @ root.T).transpose(4, 0, 1, 5, 2, 3).reshape(order, order)
        values, coefficients = np.linalg.eigh(gram)
        return np.maximum(values[::-1], 0), coefficients[:, ::-1], root

    def _tilted_covariance_of(self, response: Floats) -> Floats:
        """G K of responses from lag 1 on, both divided by their growth."""
        growth = self._growth[: self._steps].reshape(-1, *[1] * (response.ndim - 1))
        whole = np.concatenate([np.zeros_like(response[:1]), growth * response])
        return np.asarray(growth * self._covariance_of(whole)[1:])

    def _covariance_of(self, response: Floats) -> Floats:
        """(T, ...) G K: the later of two lags says how many steps see both."""
        weight = self._weight.reshape(-1, *[1] * (response.ndim - 1))
        weighted = weight * response
        result = np.zeros_like(response)
        for part in self._autocorrelation.parts:
            if part.rho == 0:
                result += part.weight * weighted
                continue
            from scipy.signal import lfilter

            recursion = [1.0, -part.pole]
            before = lfilter([1.0], recursion, response, axis=0).real
            after = lfilter([1.0], recursion, weighted[::-1], axis=0)[::-1].real
            result += part.weight * (weight * before + after - weighted)
        return result


class DenseHessian(Struct, frozen=True, dict=True):
    """H over the entries of A, or over those of its diagonal blocks."""

    operator: StationaryHessian | HorizonHessian
    diagonal: Floats  # (n, n) H_ij,ij = E‖dy/dA_ij‖²
    output_second_moment: float  # E|y|², the outputs summed
    squared_norm: float | None  # ‖H‖_F², or None where no closed form is at hand

    def apply(self, change: Floats) -> Floats:
        """(n, n) H[X] of an (n, n) X."""
        return self.operator.apply(change)

    @property
    def order(self) -> int:
        """N = n²."""
        return self.diagonal.size

    @cached_property
    def trace(self) -> float:
        """tr H."""
        return float(self.diagonal.sum())

    def to_matrix(self) -> Floats:
        """(n², n²) H itself, for small n."""
        matrix = np.stack([self._applied(unit) for unit in np.eye(self.order)])
        return np.asarray(0.5 * (matrix + matrix.T))

    def top(self, count: int) -> tuple[Floats, Floats]:
        """The largest eigenvalues, descending, and (n², count) unit eigenvectors, or fewer.

        Raises ArithmeticError: the Lanczos iteration has not converged.
        """
        if self.squared_norm is not None and isinstance(self.operator, HorizonHessian):
            return self.operator.top(count)
        return largest_eigenpairs(self._applied, self.order, count)

    def _applied(self, flat: Floats) -> Floats:
        return self.apply(flat.reshape(self.diagonal.shape)).ravel()

    def adam_residual(self) -> float:
        """λ_max(D^-½ H D^-½) with D = diag H, over the entries with H_aa > 0."""
        inverse = inverse_root(self.diagonal).ravel()
        return largest_eigenvalue(lambda flat: inverse * self._applied(inverse * flat), self.order)


def dense_hessian(system: DenseSystem, scale: float = 1.0) -> DenseHessian:
    """The Hessian over the n² entries of A, or over those of W with ``A = … + s W``, s the scale.

    Raises ValueError: an infinite sequence and |λ| >= 1; OverflowError: a figure leaves the range
    of a float; ArithmeticError: the memory of an infinite sequence is too long for so
    ill-conditioned a P, or rounding A changes the Hessian.
    """
    basis = system.basis
    if system.horizon is None and basis.log_radius >= 0:
        raise ValueError("the Hessian of an infinite sequence needs |λ| < 1")
    # W moves y by s times as much: a C that is so much larger does the same.
    system = replace(system, readout=scale * system.outputs)
    operator: StationaryHessian | HorizonHessian
    diagonal: Floats | None
    with np.errstate(over="ignore", invalid="ignore"):
        if system.horizon is not None:
            operator = HorizonHessian(system)
            _, diagonal = entries_within_horizon(system)
        elif basis.condition < HESSIAN_CONDITION:
            operator = StationaryHessian(system, basis)
            _, diagonal = sensitivity_by_eigenbasis(system)
        else:
            operator = StationaryHessian(system, None)
            _, diagonal = sensitivity_without_eigenbasis(system)
        squared_norm = operator.squared_norm()
    if diagonal is None:
        raise ArithmeticError(TOO_LONG)
    if not np.isfinite(float(np.sum(diagonal**2))):
        raise OverflowError("the squares of a Hessian's elements have no finite sum")
    return DenseHessian(
        operator, diagonal, operator.output_second_moment / scale**2 if scale else 0.0, squared_norm
    )


def dense_hessian_scores(hessian: DenseHessian) -> tuple[DiagonalityScores, list[Eigenpair]] | None:
    """The scores, from products with H alone, and the eigenpairs of the ten largest eigenvalues.

    None where H is zero.
    Raises ArithmeticError: the Lanczos iteration has not converged, or ‖H‖_F is lost in rounding.
    """
    if not hessian.trace > 0:
        return None
    pairs = top_eigenpairs(hessian.top, hessian.order, most=LARGEST_EIGENSPACE)
    pairs = [pair for pair in pairs if pair.value > FLAT * pairs[0].value]
    squared_norm, error = hessian.squared_norm, 0.0
    if squared_norm is None:
        squared_norm, error = _squared_norm(hessian, pairs)
    diagonality = float(np.sum(hessian.diagonal**2)) / squared_norm
    within = DEVIATIONS * error / squared_norm + ROUNDING
    if not (1 - within) / hessian.order <= diagonality <= 1 + within:
        raise ArithmeticError(LOST)
    scores = DiagonalityScores(
        order=hessian.order,
        trace=hessian.trace,
        diagonality=min(diagonality, 1.0),
        sharpness=pairs[0].value,
        adam_residual=hessian.adam_residual(),
        concentration=mean_concentration(pairs),
        diagonality_error=diagonality * error / squared_norm,
    )
    return scores, pairs


def _squared_norm(hessian: DenseHessian, top: Sequence[Eigenpair]) -> tuple[float, float]:
    """‖H‖_F² = Σ μ² over the top + E‖H z‖² off them, and the standard error of the mean.

    From H itself where that is small, else over random signs z (Meyer et al. 2021, Hutch++).
    """
    order, cost = hessian.order, hessian.operator.cost
    if order <= FORMED_ORDER and order * cost <= FORMED_FLOPS:
        return float(np.sum(hessian.to_matrix() ** 2)), 0.0
    generator = np.random.default_rng(0)  # the same report every time
    vectors, draws = np.array([pair.vector for pair in top]), []
    for _ in range(PROBES):
        probe = generator.choice([-1.0, 1.0], size=hessian.order)
        probe -= vectors.T @ (vectors @ probe)
        draws.append(float(np.sum(hessian.apply(probe.reshape(hessian.diagonal.shape)) ** 2)))
    rest = float(np.mean(draws))
    error = float(np.std(draws, ddof=1)) / math.sqrt(PROBES)
    return sum(pair.value**2 for pair in top) + rest, error
