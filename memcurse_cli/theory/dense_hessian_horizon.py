"""The Hessian of a dense recurrence on T steps from zero, as an operator: exact for every A.

With L_m = C A^m and Z_m = A^m B, a change X of A moves the output by the impulse response

    K(k) = Σ_{m+m'=k-1} L_m X Z_m'

a convolution in time, and with ``M = G K``, G the covariance of the input over the steps that are
read, ``H[X] = Σ_m L_mᵀ (Σ_m' M(m+m'+1) Z_m'ᵀ)``. Both sums over m' are products of Fourier
transforms; the rest is one product with X and one with L. For the mean over every step

    G(k, l) = R(k-l) (T - max(k, l)) / T

and without the last factor for the last step alone.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from memcurse_cli.theory.autocorrelation import Autocorrelation
from memcurse_cli.theory.moments import Readout

Floats = NDArray[np.float64]

GRAM_ORDER = 1000  # impulse-response samples up to which their Gram matrix is formed


class HorizonHessian:
    """H over the entries of A, on sequences of T steps.

    Args:
        matrix: (n, n) real A.
        readin: (n, inputs) B.
        readout: (outputs, n) C.
        autocorrelation: R(Δ) of each input.
        horizon: T ≥ 1.
        read_at: at the last step, or the mean over every one.
        radius: the largest |λ|.

    Raises:
        OverflowError: the responses leave the range of a float.
    """

    def __init__(
        self,
        matrix: Floats,
        readin: Floats,
        readout: Floats,
        autocorrelation: Autocorrelation,
        horizon: int,
        read_at: Readout,
        radius: float,
    ) -> None:
        # The side with fewer channels meets X; the other one is only convolved.
        self._transposed = readin.shape[1] < len(readout)
        if self._transposed:
            matrix, readin, readout = matrix.T, readout.T, readin.T
        self._autocorrelation = autocorrelation
        self._steps = horizon - 1
        lags = np.arange(horizon)
        self._weight = (horizon - lags) / horizon if read_at == "every" else np.ones(horizon)
        # Responses that grow are divided by r^m, which passes through a convolution: early ones
        # would otherwise lose their digits to late ones in the transform.
        rate = max(radius, 1.0)
        tilted = matrix / rate
        right = _powers(tilted, readin, horizon)
        with np.errstate(over="ignore", invalid="ignore"):
            self._growth = rate ** lags.astype(np.float64)[:, None, None]
            seen = self._growth * (readout @ right)
            #: E|y|², the outputs summed.
            self.output_second_moment = float(np.sum(seen * self._covariance_of(seen)))
            largest = self._growth[-1, 0, 0] ** 2
        if not np.isfinite(self.output_second_moment * largest):
            raise OverflowError("the state leaves the range of a float")
        from scipy import fft

        self._length = fft.next_fast_len(max(2 * horizon - 3, 1), real=True)
        self._left = _powers(tilted.T, readout.T, self._steps).transpose(0, 2, 1).copy()
        self._right = right[: self._steps]
        self._spectrum = fft.rfft(self._right, self._length, axis=0)

    def apply(self, change: Floats) -> Floats:
        """(n, n) H[X] of an (n, n) X."""
        if self._steps == 0:
            return np.zeros_like(change)
        if self._transposed:
            change = change.T
        from scipy import fft

        size = len(change)
        moved = (self._left.reshape(-1, size) @ change).reshape(self._left.shape)
        transformed = fft.rfft(moved, self._length, axis=0) @ self._spectrum
        response = fft.irfft(transformed, self._length, axis=0)[: self._steps]
        return self._returned(self._tilted_covariance_of(response))

    def _returned(self, seen: Floats) -> Floats:
        """(n, n) Σ_m L_mᵀ Σ_m' M(m+m'+1) Z_m'ᵀ of (T-1, outputs, inputs) responses M."""
        from scipy import fft

        size = self._left.shape[2]
        transformed = fft.rfft(seen, self._length, axis=0)
        transformed = transformed @ self._spectrum.conj().transpose(0, 2, 1)
        returned = fft.irfft(transformed, self._length, axis=0)[: self._steps]
        result = self._left.reshape(-1, size).T @ returned.reshape(-1, size)
        return np.asarray(result.T if self._transposed else result)

    def squared_norm(self) -> float | None:
        """‖H‖_F² = Σ μ², or None where JᵀJ is too large to be formed."""
        pairs = self._gram_pairs
        return None if pairs is None else float(np.sum(pairs[0] ** 2))

    def top(self, count: int) -> tuple[Floats, Floats]:
        """(k,) largest eigenvalues and (k, n, n) eigenvectors, from JᵀJ."""
        pairs = self._gram_pairs
        assert pairs is not None
        values, coefficients, root = pairs
        kept = [place for place in range(min(count, values.size)) if values[place] > 0]
        vectors = []
        for place in kept:
            weights = coefficients[:, place].reshape(len(root), -1)
            seen = (root.T @ weights).reshape(self._steps, *self._channels)
            vector = self._returned(seen)
            vectors.append(vector / np.linalg.norm(vector))
        size = self._left.shape[2]
        return values[kept], np.array(vectors).reshape(-1, size, size)

    @property
    def _channels(self) -> tuple[int, int]:
        return self._left.shape[1], self._right.shape[2]

    @cached_property
    def _gram_pairs(self) -> tuple[Floats, Floats, Floats] | None:
        """Eigenvalues and eigenvectors w of R JᵀJ Rᵀ, descending, and R with ``G = RᵀR``.

        They are those of ``H = J G Jᵀ``, whose eigenvectors are ``J Rᵀ w``. JᵀJ over pairs of
        lags is the two-dimensional convolution of ``L_m L_pᵀ`` and ``Z_m'ᵀ Z_p'``, so that no
        n²×n² matrix takes part.
        """
        steps, (outputs, inputs) = self._steps, self._channels
        order = steps * outputs * inputs
        if order > GRAM_ORDER:
            return None
        from scipy import fft

        shape = (self._length, self._length)
        left = np.einsum("moi,pqi->oqmp", self._left, self._left, optimize=True)
        right = np.einsum("miu,piv->uvmp", self._right, self._right, optimize=True)
        spectra = [fft.rfft2(table, shape) for table in (left, right)]
        gram = np.empty((outputs, inputs, outputs, inputs, steps, steps))
        for o, q, u, v in np.ndindex(outputs, outputs, inputs, inputs):
            product = fft.irfft2(spectra[0][o, q] * spectra[1][u, v], shape)
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


def _powers(matrix: Floats, start: Floats, count: int) -> Floats:
    """(count, n, channels) M^m V."""
    powers = np.empty((count, *start.shape))
    for step in range(count):
        powers[step] = start if step == 0 else matrix @ powers[step - 1]
    return powers
