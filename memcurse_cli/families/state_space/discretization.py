"""From continuous to discrete time, and the transforms that keep a parameter positive.

A continuous mode ``dh/dt = a h + b x`` at step Δ becomes ``h[t+1] = λ h[t] + γ b x[t+1]``, where λ
and γ/Δ depend on ``z = Δ a`` alone. Everything is returned in the log domain, so that a decay of
1e-12 per step keeps its full precision.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from memcurse_cli.checkpoints.store import TensorStore
from memcurse_cli.families.reading import LARGEST_DECAY
from memcurse_cli.families.recurrence import Complexes, Floats, Integers, ParameterGroup

ZERO_ORDER_HOLD = "zoh"
BILINEAR = "bilinear"
METHODS = (ZERO_ORDER_HOLD, BILINEAR)

TRANSFORMS = ("exp", "softplus", "sigmoid", "relu", "none")
RELU_OFFSET = 1e-4

# Past these a mode is dead or overflows whatever the network does; products of two stay finite.
_LARGEST_EXPONENT = 150.0
_SMALLEST = 1e-150

# B_2k / (2k)!, the Taylor coefficients of 1/(1 - e^-z) - 1/z after the constant 1/2.
_BERNOULLI = (1 / 12, -1 / 720, 1 / 30240, -1 / 1209600, 1 / 47900160, -691 / 1307674368000)
_TAYLOR_RADIUS = 0.5


@dataclass(frozen=True)
class DiscreteModes:
    """λ and g = γ/Δ as functions of ``z = Δ a``.

    Attributes:
        log_eigenvalue: log λ.
        eigenvalue_slope: dλ/dz.
        log_gain: log g.
        log_gain_slope: d log g/dz.
    """

    log_eigenvalue: Complexes
    eigenvalue_slope: Complexes
    log_gain: Complexes
    log_gain_slope: Complexes


def discretise(z: Complexes, method: str) -> DiscreteModes:
    """Discretise continuous modes.

    Zero-order hold: ``λ = e^z``, ``g = (e^z - 1)/z``. Bilinear: ``λ = (1 + z/2)/(1 - z/2)``,
    ``g = 1/(1 - z/2)``. Gu et al. 2022, arXiv 2206.11893, equations 3 and 4.

    Args:
        z: Δ a, any shape.
        method: ``zoh`` or ``bilinear``.
    """
    z = np.asarray(z, dtype=np.complex128)
    return _bilinear(z) if method == BILINEAR else _zero_order_hold(z)


def _zero_order_hold(z: Complexes) -> DiscreteModes:
    # g(z) = e^z g(-z), so the exponential is only taken where it cannot overflow.
    growing = z.real > 0
    y = np.where(growing, -z, z)
    origin = y == 0
    safe = np.where(origin, 1.0, y)
    log_gain = np.log(np.where(origin, 1.0, np.expm1(safe) / safe))
    slope = np.empty_like(y)
    near = np.abs(y) < _TAYLOR_RADIUS
    square = y[near] ** 2
    series = np.zeros_like(square)
    for coefficient in reversed(_BERNOULLI):
        series = series * square + coefficient
    slope[near] = 0.5 + y[near] * series
    far = y[~near]
    slope[~near] = np.exp(far) / np.expm1(far) - 1 / far
    return DiscreteModes(
        log_eigenvalue=np.maximum(z.real, -LARGEST_DECAY) + 1j * z.imag,
        eigenvalue_slope=np.exp(np.minimum(z.real, _LARGEST_EXPONENT) + 1j * z.imag),
        log_gain=np.where(growing, log_gain + z, log_gain),
        log_gain_slope=np.where(growing, 1 - slope, slope),
    )


def _bilinear(z: Complexes) -> DiscreteModes:
    x, y = z.real, z.imag
    denominator = 1 - z / 2
    denominator = np.where(np.abs(denominator) < _SMALLEST, _SMALLEST, denominator)
    # |1 + z/2|² = |1 - z/2|² + 2x: the ratio itself would lose a small decay to rounding.
    growth = 2 * x / np.abs(denominator) ** 2
    modulus = np.maximum(np.abs(1 + z / 2), _SMALLEST) / np.abs(denominator)
    log_modulus = np.where(growth > -0.5, np.log1p(np.maximum(growth, -0.5)) / 2, np.log(modulus))
    angle = np.arctan2(y, 1 - (x**2 + y**2) / 4)
    return DiscreteModes(
        log_eigenvalue=log_modulus + 1j * angle,
        eigenvalue_slope=1 / denominator**2,
        log_gain=-np.log(denominator),
        log_gain_slope=0.5 / denominator,
    )


@dataclass(frozen=True)
class Part:
    """Scalars of one tensor that move ``z = Δ a``, and with it λ and ``γ = Δ g(z)``.

    The last four arrays are those of entries, and broadcast against each other.

    Attributes:
        role: the tensor's role.
        stored: the scalars, in any shape.
        scalar: index of the scalar in the flattened ones.
        z_slope: dz/dω.
        log_step_slope: d log(γ/g)/dω, as of the step size itself.
        mode: index of the mode that an entry moves; None where each moves the mode of its place.
        name: the group's name, where a tensor holds several; else the role.
    """

    role: str
    stored: Floats
    scalar: Integers
    z_slope: NDArray[Any]
    log_step_slope: NDArray[Any] | float = 0.0
    mode: Integers | None = None
    name: str = ""

    def group(
        self, store: TensorStore, names: Mapping[str, str], modes: DiscreteModes
    ) -> ParameterGroup:
        """How the scalars move the discrete modes, whose shape is that of the entries' places."""
        eigenvalue_slope = modes.eigenvalue_slope
        place = np.arange(eigenvalue_slope.size).reshape(eigenvalue_slope.shape)
        scalar, mode, z_slope, log_step_slope = (
            each.ravel()
            for each in np.broadcast_arrays(
                self.scalar,
                place if self.mode is None else self.mode,
                np.asarray(self.z_slope, dtype=np.complex128),
                self.log_step_slope,
            )
        )
        return ParameterGroup(
            name=self.name or self.role,
            tensor=names[self.role],
            values=self.stored.ravel(),
            dtype=store.tensors[names[self.role]].dtype,
            scalar=scalar,
            eigenvalue=mode,
            eigenvalue_derivative=eigenvalue_slope.ravel()[mode] * z_slope,
            log_gain_derivative=modes.log_gain_slope.ravel()[mode] * z_slope + log_step_slope,
            keeps_stable=not np.any(z_slope.real),  # |λ| < 1 where Re z < 0
        )


@dataclass(frozen=True)
class PositiveParameter:
    """A stored parameter p and the quantity f(p) that the layer computes with.

    Attributes:
        value: f(p).
        slope: df/dp.
        log: log f(p); complex, since ``none`` lets a step size be negative.
        log_slope: d log f/dp.
    """

    value: Floats
    slope: Floats
    log: Complexes
    log_slope: Floats

    def times(self, factor: float) -> PositiveParameter:
        """The same of ``factor f(p)``, for a positive factor."""
        log = self.log + math.log(factor)
        return PositiveParameter(self.value * factor, self.slope * factor, log, self.log_slope)


def apply_transform(
    parameter: Floats, transform: str, *, relu_offset: float = RELU_OFFSET
) -> PositiveParameter:
    """``f(p)`` of one of the transforms that S4 knows: ``param_transform`` in its models/s4/s4.py.

    Args:
        parameter: the stored values.
        transform: ``exp``, ``softplus``, ``sigmoid``, ``relu`` (plus an offset) or ``none``.
        relu_offset: what is added after the rectifier.
    """
    p = np.asarray(parameter, dtype=np.float64)
    if transform == "exp":
        p = np.minimum(p, _LARGEST_EXPONENT)
        value = np.exp(p)
        return PositiveParameter(value, value, p.astype(np.complex128), np.ones_like(p))
    if transform == "softplus":
        value, slope = np.logaddexp(0.0, p), np.exp(-np.logaddexp(0.0, -p))
        # softplus(p) = e^p (1 - e^p/2 + …): below -40 the correction is under half an ulp.
        tail = p < -40
        safe = np.where(tail, 1.0, value)
        log = np.where(tail, p, np.log(safe)).astype(np.complex128)
        return PositiveParameter(value, slope, log, np.where(tail, 1.0, slope / safe))
    if transform == "sigmoid":
        log = -np.logaddexp(0.0, -p)
        value, complement = np.exp(log), np.exp(-np.logaddexp(0.0, p))
        return PositiveParameter(value, value * complement, log.astype(np.complex128), complement)
    if transform == "relu":
        slope = (p > 0).astype(np.float64)
        value = np.maximum(p, 0.0) + relu_offset
    else:
        slope, value = np.ones_like(p), p
    floored = np.where(np.abs(value) < _SMALLEST, _SMALLEST, value)
    return PositiveParameter(value, slope, np.log(floored.astype(np.complex128)), slope / floored)
