"""Layers of a continuous time: the step size Δ and the diagonal of A, discretised.

A continuous mode ``dh/dt = a h + b x`` at step Δ becomes ``h[t+1] = λ h[t] + γ b x[t+1]``, where λ
and γ/Δ depend on ``z = Δ a`` alone. In the log domain a decay of 1e-12 keeps its full precision.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.polynomial.polynomial import polyval
from numpy.typing import NDArray

from memcurse_cli.families.family import Assumption, Layer, Shapes
from memcurse_cli.families.reading import LARGEST_DECAY, misfit, require_eigenvalues
from memcurse_cli.families.recurrence import (
    Complexes,
    Floats,
    Integers,
    ParameterGroup,
    ProjectionGroup,
    Recurrence,
)
from memcurse_cli.theory.gates.laws import LOGISTIC, softplus

ZERO_ORDER_HOLD = "zoh"
BILINEAR = "bilinear"
METHODS = (ZERO_ORDER_HOLD, BILINEAR)

TRANSFORMS = ("exp", "softplus", "sigmoid", "relu", "none")
RELU_OFFSET = 1e-4

# Past these a mode is dead or overflows whatever the network does; products of two stay finite.
_LARGEST_EXPONENT = 150.0
SMALLEST = 1e-150

# B_2k / (2k)!, the Taylor coefficients of 1/(1 - e^-z) - 1/z after the constant 1/2.
_BERNOULLI = (1 / 12, -1 / 720, 1 / 30240, -1 / 1209600, 1 / 47900160, -691 / 1307674368000)
_TAYLOR_RADIUS = 0.5


class DiscreteModes(Struct, frozen=True):
    """λ and g = γ/Δ as functions of ``z = Δ a``."""

    log_eigenvalue: Complexes  # log λ
    eigenvalue_slope: Complexes  # dλ/dz
    log_gain: Complexes  # log g
    log_gain_slope: Complexes  # d log g/dz


def discretise(z: Complexes, method: str) -> DiscreteModes:
    """Continuous modes of any shape, by one of `METHODS`.

    Zero-order hold: ``λ = e^z``, ``g = (e^z - 1)/z``. Bilinear: ``λ = (1 + z/2)/(1 - z/2)``,
    ``g = 1/(1 - z/2)``. Gu et al. 2022, arXiv 2206.11893, equations 3 and 4.
    """
    z = np.asarray(z, dtype=np.complex128)
    return _bilinear(z) if method == BILINEAR else _zero_order_hold(z)


def _zero_order_hold(z: Complexes) -> DiscreteModes:
    # g(z) = e^z g(-z), so the exponential is only taken where it cannot overflow.
    growing = z.real > 0
    y = np.where(growing, -z, z)
    safe = np.where(y == 0, 1.0, y)
    log_gain = np.log(np.where(y == 0, 1.0, np.expm1(safe) / safe))
    near = np.abs(y) < _TAYLOR_RADIUS
    close, far = np.where(near, y, 0.0), np.where(near, 1.0, y)
    series = 0.5 + close * polyval(close**2, _BERNOULLI)
    slope = np.where(near, series, np.exp(far) / np.expm1(far) - 1 / far)
    return DiscreteModes(
        log_eigenvalue=np.maximum(z.real, -LARGEST_DECAY) + 1j * z.imag,
        eigenvalue_slope=np.exp(np.minimum(z.real, _LARGEST_EXPONENT) + 1j * z.imag),
        log_gain=np.where(growing, log_gain + z, log_gain),
        log_gain_slope=np.where(growing, 1 - slope, slope),
    )


def _bilinear(z: Complexes) -> DiscreteModes:
    denominator = 1 - z / 2
    denominator = np.where(np.abs(denominator) < SMALLEST, SMALLEST, denominator)
    with np.errstate(divide="ignore"):
        half = np.arctanh(z / 2)  # of log λ, with a small decay that the ratio would round
    largest = -math.log(SMALLEST)
    return DiscreteModes(
        log_eigenvalue=np.clip(2 * half.real, -largest, largest) + 2j * half.imag,
        eigenvalue_slope=1 / denominator**2,
        log_gain=-np.log(denominator),
        log_gain_slope=0.5 / denominator,
    )


class Part(Struct, frozen=True):
    """Scalars of one tensor that move ``z = Δ a``, and with it λ and ``γ = Δ g(z)``.

    The arrays of entries broadcast against each other and the modes, to which axes may be added.
    """

    role: str
    stored: Floats  # the scalars, in any shape
    scalar: Integers  # index of the scalar in the flattened ones
    z_slope: NDArray[Any]  # dz/dω
    log_step_slope: NDArray[Any] | float = 0.0  # d log(γ/g)/dω, as of the step size itself
    name: str = ""  # the group's, where a tensor holds several; else the role
    keeps_stable: bool = False  # as of `ParameterGroup`, also where it moves Re z

    def group(self, layer: Layer, modes: DiscreteModes) -> ParameterGroup:
        """How the scalars move the discrete modes."""
        return layer.group(
            self.role,
            self.stored,
            modes.eigenvalue_slope * self.z_slope,
            modes.log_gain_slope * self.z_slope + self.log_step_slope,
            name=self.name,
            scalar=self.scalar,
            eigenvalue=np.arange(modes.log_gain.size).reshape(modes.log_gain.shape),
            # |λ| < 1 where Re z < 0.
            keeps_stable=self.keeps_stable or not np.any(self.z_slope.real),
        )


class PositiveParameter(Struct, frozen=True):
    """A stored parameter p and the quantity f(p) that the layer computes with."""

    value: Floats  # f(p)
    slope: Floats  # df/dp
    log: Complexes  # log f(p); complex, since ``none`` lets a step size be negative
    log_slope: Floats  # d log f/dp


def apply_transform(
    p: Floats, transform: str, *, relu_offset: float = RELU_OFFSET, factor: float = 1.0
) -> PositiveParameter:
    """``factor f(p)`` of one of `TRANSFORMS`, as ``param_transform`` in S4's models/s4/s4.py."""
    if transform == "exp":
        value = slope = np.exp(np.minimum(p, _LARGEST_EXPONENT))
    elif transform == "softplus":
        value, slope = softplus(p), LOGISTIC(p).value
    elif transform == "sigmoid":
        value, _, slope = LOGISTIC(p)
    elif transform == "relu":
        value, slope = np.maximum(p, 0.0) + relu_offset, (p > 0).astype(np.float64)
    else:
        value, slope = p, np.ones_like(p)
    value, slope = factor * value, factor * slope
    floored = np.where(np.abs(value) < SMALLEST, SMALLEST, value).astype(np.complex128)
    return PositiveParameter(value, slope, np.log(floored), slope / floored.real)


BOTH_DIRECTIONS = (
    "the second half of C reads a pass backward in time; its outputs count as separate ones, which"
    " is exact for the eigenvalues at white input"
)

LARGEST_REAL_PART = -1e-4
"""Where The Annotated S4 and S5 hold Re A."""

# sinh and what is computed from it stay finite.
_STEEPEST = 300.0

REAL_TRANSFORM = Assumption(
    "real-transform", "exp", TRANSFORMS, "the map from A_real (inv_A_real, inv_w_real) to -Re A"
)
IMAG_TRANSFORM = Assumption("imag-transform", "none", TRANSFORMS, "the map from A_imag to |Im A|")
STEP_TRANSFORM = Assumption(
    "dt-transform", "exp", TRANSFORMS, "the map from inv_dt to the step size Δ"
)
STEP_RESCALE = Assumption(
    key="step-rescale",
    default="1",
    meaning="the factor on Δ at run time (S4's rate, S5's step_rescale): 0.5 at twice the sampling"
    " rate of training",
)
FAST_STEP = Assumption(
    key="dt-fast",
    default="false",
    choices=("true", "false"),
    meaning="whether inv_dt is the inverse sinh of what its transform is applied to (dt_fast)",
)
_EVERY_TRANSFORM = (REAL_TRANSFORM, IMAG_TRANSFORM, STEP_TRANSFORM)
OF_THE_KERNEL = (*_EVERY_TRANSFORM, FAST_STEP, STEP_RESCALE)
"""What no version of state-spaces/s4 stores beside its A and Δ."""


class Version(Struct, frozen=True):
    """How one version names and transforms its parameters."""

    step: str  # the tensor that gives Δ
    real: str  # that gives -Re A; A itself, in pairs, where it is that of ``imag`` too
    imag: str  # that gives Im A
    sign: int = 1  # of ``imag`` in A
    # Those that are arguments of its constructor; the others are written into its code.
    transforms: tuple[Assumption, ...] = ()
    relu_offset: float = RELU_OFFSET  # what its rectifier adds
    kernel: str = ZERO_ORDER_HOLD  # the default of S4D's discretisation


S4D_MINIMAL = Version("log_dt", "log_A_real", "A_imag")
S4D_4 = Version("inv_dt", "A_real", "A_imag", -1, _EVERY_TRANSFORM)
S4D_2_DSS = Version("log_dt", "w", "w", kernel="dss")
S4D_VERSIONS = (
    S4D_MINIMAL,
    Version("log_dt", "log_w_real", "w_imag"),  # 2
    S4D_2_DSS,
    Version("log_dt", "inv_A_real", "A_imag", 1, (REAL_TRANSFORM,), kernel=BILINEAR),  # 3
    S4D_4,
)
# Version 1 of S4 has the names of the first, without P and Q: they are rows of B and C.
S4_VERSIONS = (
    Version("log_dt", "w", "w"),  # 2, with a Q of its own
    Version("log_dt", "log_w_real", "w_imag"),  # 2, kept stable (hurwitz)
    Version("log_dt", "inv_w_real", "w_imag", 1, (REAL_TRANSFORM,), relu_offset=0.0),  # 3
    S4D_4,
)


class Modes(NamedTuple):
    """The continuous modes of a layer, or the diagonal of its A, as modes of a step size of one."""

    z: Complexes  # Δ a, (channels, modes) or (modes,) where every mode sees every input
    parts: Sequence[Part]  # what moves them
    stable: bool  # Re z < 0 whatever the parameters
    log_step: Complexes | float = 0.0  # log(z/a), (channels, 1 or modes)

    def rearranged(self, arrange: Callable[[NDArray[Any]], NDArray[Any]]) -> Modes:
        """The same in other axes, or that of channels of which each uses one of the rows."""
        parts = [
            replace(each, scalar=arrange(each.scalar), z_slope=arrange(each.z_slope))
            for each in self.parts
        ]
        return self._replace(z=arrange(self.z), parts=parts)

    def recurrence(self, layer: Layer, discrete: DiscreteModes, **fields: Any) -> Recurrence:
        """The layer of its discrete modes, with further fields of `Layer.recurrence`."""
        return layer.recurrence(
            discrete.log_eigenvalue,
            [part.group(layer, discrete) for part in self.parts],
            log_gain=discrete.log_gain + self.log_step,
            channels=len(self.z) if self.z.ndim > 1 else None,
            stable_by_construction=self.stable,
            **fields,
        )

    def kernel(
        self,
        layer: Layer,
        discrete: DiscreteModes,
        readout: Complexes,
        direct: str | None,
        along: Sequence[ProjectionGroup],
        **fields: Any,
    ) -> Recurrence:
        """The same of single-input channels with C (outputs, channels × modes).

        ``direct`` is the tensor of D, and ``along`` moves B and C. A C of twice the outputs of D
        has a second half that runs backward.
        """
        outputs = len(readout)
        shape = () if direct is None else layer.store.tensors[direct].shape
        both = len(shape) == 2 and outputs == 2 * shape[0]
        own = layer.direct(direct, outputs, len(self.z), channels=True)
        return self.recurrence(
            layer,
            discrete,
            readout=readout,
            projections=() if both else (*along, *own),
            also=(BOTH_DIRECTIONS,) if both else (),
            **fields,
        )


class Step(Struct, frozen=True):
    """The step size of every channel and mode."""

    role: str
    parameter: PositiveParameter  # Δ, (channels, 1) where a channel's modes share it, or as stored
    stored: Floats  # (channels, 1 or modes)
    positive: bool = True  # Δ > 0 whatever the parameters
    rescaled: float = 1.0  # the factor on Δ that it holds

    def modes(self, diagonal: Modes, *, first: bool = False) -> Modes:
        """Those of the channels' rows of A, of which what moves Δ comes last or first."""
        delta, rate = self.parameter.value, diagonal.z
        index = np.arange(self.stored.size).reshape(self.stored.shape)
        slope = rate * self.parameter.slope
        own = [Part(self.role, self.stored, index, slope, self.parameter.log_slope)]
        scaled = [replace(each, z_slope=delta * each.z_slope) for each in diagonal.parts]
        parts, stable = own + scaled if first else scaled + own, diagonal.stable and self.positive
        return Modes(delta * rate, parts, stable, self.parameter.log)


def read_diagonal(
    layer: Layer,
    roles: tuple[str, str],
    shape: tuple[int | None, ...],
    transforms: Sequence[str] = ("none", "none"),
    *,
    signs: tuple[float, complex] = (1, 1j),
    largest: float = math.inf,
    relu_offset: float = RELU_OFFSET,
    names: tuple[str, str] = ("", ""),
) -> Modes:
    """``A = ± f(real) ± i g(imag)``, with Re A held at ``largest`` where it is beyond.

    Two ``roles``, of which the second may be missing, or twice that of one complex tensor.
    """
    if roles[0] == roles[1]:
        both = layer.pairs(roles[0], shape)
        stored = [both.real.copy(), both.imag.copy()]
    else:
        stored = [layer.real(roles[0], shape)]
        stored += [layer.real(role, stored[0].shape) for role in roles[1:] if role in layer.names]
    scalar = np.arange(stored[0].size).reshape(stored[0].shape)
    values, parts = np.zeros(scalar.shape, dtype=np.complex128), []
    offsets = (relu_offset, RELU_OFFSET)
    for each, role, transform, sign, offset, name in zip(
        stored, roles, transforms, signs, offsets, names, strict=False
    ):
        moved = apply_transform(each, transform, relu_offset=offset)
        values += sign * moved.value
        parts.append(Part(role, each, scalar, sign * moved.slope, name=name))
    parts[0] = replace(parts[0], z_slope=parts[0].z_slope * (values.real < largest))
    values.real = np.minimum(values.real, largest)
    stable = largest < 0 or (signs[0] < 0 and transforms[0] != "none")
    return Modes(values, parts, stable)


def read_kernel(
    layer: Layer, version: Version, role: str, states: int = 1
) -> tuple[Modes, Step, int]:
    """The diagonal of A and the step size of every channel, and how many systems they share.

    Channel h uses row ``h mod systems`` of a ``role``, as of what is read of A, where each mode
    has so many ``states``. Raises a TensorError: these do not divide, or are too many.
    """
    diagonal = _read_version(layer, version)
    systems, modes = diagonal.z.shape
    step = _read_step(layer, version, modes)
    channels = len(step.stored)
    require_eigenvalues(states * channels * modes, layer.names[version.step])
    if channels % systems:
        what = f"its {systems} systems do not divide the {channels} channels of the step size"
        remedy = "check that the layer's tensors belong together"
        raise misfit(what, layer.names[role], remedy)
    system = np.arange(channels) % systems
    return diagonal.rearranged(lambda rows: rows[..., system, :]), step, systems


def _read_version(layer: Layer, version: Version) -> Modes:
    """``A = -f(real) ± i g(imag)``, with the transforms of the version, or a stored A."""
    if version.real == version.imag:
        values = layer.pairs(version.real, (None, None))
        both = np.stack([np.ones(values.shape), 1j * np.ones(values.shape)])
        scalar = 2 * np.arange(values.size).reshape(values.shape)
        part = Part(version.real, as_scalars(values), np.stack([scalar, scalar + 1]), both)
        return Modes(values, (part,), stable=False)
    roles = version.real, version.imag
    transforms = [
        layer.choose(each, silent=each not in version.transforms)
        for role, each in zip(roles, (REAL_TRANSFORM, IMAG_TRANSFORM), strict=True)
        if role in layer.names
    ]
    signs, offset = (-1, 1j * version.sign), version.relu_offset
    return read_diagonal(layer, roles, (None, None), transforms, signs=signs, relu_offset=offset)


def _read_step(layer: Layer, version: Version, modes: int) -> Step:
    """Δ of shape (H,), (H, 1) or (H, modes)."""
    shape = layer.shape(version.step)
    untied = len(shape) == 2 and shape[1] == modes
    wanted = (None,) if len(shape) == 1 else (None, modes if untied else 1)
    stored = layer.real(version.step, wanted)
    stored = stored.reshape(stored.shape[0], -1)
    silent = STEP_TRANSFORM not in version.transforms
    transform = layer.choose(STEP_TRANSFORM, silent=silent)
    parameter, steepness = stored, np.ones_like(stored)
    if version.step == "inv_dt" and layer.choose(FAST_STEP, silent=True) == "true":
        bounded = np.clip(stored, -_STEEPEST, _STEEPEST)
        parameter, steepness = np.sinh(bounded), np.cosh(bounded)
    factor = step_factor(layer)
    step = apply_transform(parameter, transform, factor=factor)
    step = replace(step, slope=step.slope * steepness, log_slope=step.log_slope * steepness)
    return Step(version.step, step, stored, transform != "none", factor)


def step_factor(layer: Layer) -> float:
    """The factor on Δ that the layer runs with."""
    remedy = "give the factor on Δ, e.g. 0.5 at twice the sampling rate"
    return layer.number(STEP_RESCALE, lambda factor: 0 < factor < math.inf, remedy)


def mapped(shapes: Shapes) -> bool:
    """Whether a Flax module's step size is (1, H) and everything else of two axes is (N, H)."""
    axes = [shape for role, shape in shapes.items() if role.endswith("_re")]
    return all(len(each) == 2 and shapes["log_step"] == (1, each[1]) for each in axes)


def read_mapped(
    layer: Layer, real: str, imag: str, largest: float = math.inf
) -> tuple[Modes, Step]:
    """A (N, H), by the roles of its parts, and log_step (1, H) of a layer mapped over channels."""
    diagonal = read_diagonal(layer, (real, imag), (None, None), largest=largest)
    diagonal = diagonal.rearranged(np.transpose)
    logarithm = layer.real("log_step", (1, len(diagonal.z))).T
    return diagonal, Step("log_step", apply_transform(logarithm, "exp"), logarithm)


def as_scalars(values: Complexes) -> Floats:
    """The real and imaginary parts in the order of a last axis of pairs."""
    return np.stack([values.real, values.imag], axis=-1).ravel()
