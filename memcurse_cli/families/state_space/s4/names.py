"""What every version of S4 and S4D stores: the step size and the diagonal of A.

The tensors were renamed in every version of state-spaces/s4, the sign of ``A_imag`` changed with
version 4, and the transforms are constructor arguments that no checkpoint stores.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from memcurse_cli.checkpoints.store import TensorSpec, TensorStore
from memcurse_cli.errors import TensorError, UsageError
from memcurse_cli.families.family import Assumed, Assumption, Match
from memcurse_cli.families.module_names import group_by_module
from memcurse_cli.families.reading import read_pairs, read_real
from memcurse_cli.families.recurrence import Complexes, Floats, Integers
from memcurse_cli.families.state_space.discretization import (
    BILINEAR,
    RELU_OFFSET,
    TRANSFORMS,
    ZERO_ORDER_HOLD,
    Part,
    PositiveParameter,
    apply_transform,
)

BOTH_DIRECTIONS = (
    "the second half of C reads a pass backward in time; its outputs count as separate ones, which"
    " is exact for the eigenvalues at white input"
)

LARGEST_REAL_PART = -1e-4
"""Where The Annotated S4 and S5 hold Re A."""

# sinh and what is computed from it stay finite.
_STEEPEST = 300.0

REAL_TRANSFORM = Assumption(
    key="real-transform",
    default="exp",
    choices=TRANSFORMS,
    meaning="the map from A_real (inv_A_real, inv_w_real) to -Re A",
)
IMAG_TRANSFORM = Assumption(
    key="imag-transform",
    default="none",
    choices=TRANSFORMS,
    meaning="the map from A_imag to |Im A|",
)
STEP_TRANSFORM = Assumption(
    key="dt-transform",
    default="exp",
    choices=TRANSFORMS,
    meaning="the map from inv_dt to the step size Δ",
)
STEP_RESCALE = Assumption(
    key="step-rescale",
    default="1",
    choices=(),
    meaning="the factor on Δ at run time (S4's rate, S5's step_rescale): 0.5 at twice the sampling"
    " rate of training",
)
FAST_STEP = Assumption(
    key="dt-fast",
    default="false",
    choices=("true", "false"),
    meaning="whether inv_dt is the inverse sinh of what its transform is applied to (dt_fast)",
)


@dataclass(frozen=True)
class Version:
    """How one version names and transforms its parameters.

    Attributes:
        step: the tensor that gives Δ.
        real: the tensor that gives -Re A; A itself, in pairs, where it is that of ``imag`` too.
        imag: the tensor that gives Im A.
        sign: of ``imag`` in A.
        transforms: those of the assumptions that are arguments of its constructor; the other
            transforms are written into its code.
        relu_offset: what its rectifier adds.
        kernel: the default of S4D's discretisation.
    """

    step: str
    real: str
    imag: str
    sign: int = 1
    transforms: tuple[Assumption, ...] = ()
    relu_offset: float = RELU_OFFSET
    kernel: str = ZERO_ORDER_HOLD


_EVERY_TRANSFORM = (REAL_TRANSFORM, IMAG_TRANSFORM, STEP_TRANSFORM)
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


def roles_of(versions: tuple[Version, ...], *others: str) -> tuple[str, ...]:
    """Every name of a step size and of a diagonal, and others."""
    own = (role for each in versions for role in (each.step, each.real, each.imag))
    return tuple(dict.fromkeys((*own, *others)))


@dataclass(frozen=True)
class Diagonal:
    """The diagonal of A, one row per independent system.

    Attributes:
        values: (systems, modes).
        parts: what moves it; entries (…, systems, modes) with dA/dω in the place of dz/dω.
        stable: its real part is negative whatever the parameters.
    """

    values: Complexes
    parts: tuple[Part, ...]
    stable: bool

    def of(self, system: Integers) -> Diagonal:
        """That of channels of which each uses one of the rows."""
        parts = (
            replace(each, scalar=each.scalar[..., system, :], z_slope=each.z_slope[..., system, :])
            for each in self.parts
        )
        return Diagonal(self.values[system], tuple(parts), self.stable)


@dataclass(frozen=True)
class Step:
    """The step size of every channel and mode.

    Attributes:
        role: the tensor that holds it.
        parameter: Δ, (channels, 1) where a channel's modes share it, else (channels, modes).
        stored: (channels, 1 or modes) the stored scalars.
        positive: Δ > 0 whatever the parameters.
        rescaled: the factor on Δ that it holds.
    """

    role: str
    parameter: PositiveParameter
    stored: Floats
    positive: bool = True
    rescaled: float = 1.0

    @property
    def channels(self) -> int:
        """The number of channels H."""
        return len(self.stored)

    @property
    def tied(self) -> bool:
        """Whether the modes of a channel share their step size."""
        return self.stored.size == len(self.stored)

    def part(self, rate: Complexes) -> Part:
        """What Δ moves of the modes with these rates (channels, modes)."""
        index = np.arange(self.stored.size).reshape(self.stored.shape)
        slope = rate * self.parameter.slope
        return Part(self.role, self.stored, index, slope, self.parameter.log_slope)

    def parts(self, diagonal: Diagonal) -> tuple[Part, ...]:
        """What moves ``z = Δ A`` of the channels: Δ, and what moves their rows of A."""
        rates = (
            replace(each, z_slope=self.parameter.value * each.z_slope) for each in diagonal.parts
        )
        return (self.part(diagonal.values), *rates)


def read_diagonal(
    store: TensorStore, names: Mapping[str, str], version: Version, assumed: Assumed
) -> Diagonal:
    """``A = -f(real) ± i g(imag)``, with the transforms of the version, or a stored A.

    Raises:
        TensorError: NaN or inf, or real and imaginary parts of different shapes.
    """
    if version.real == version.imag:
        values = read_pairs(store, names[version.real], (None, None))
        both = np.stack([np.ones(values.shape), 1j * np.ones(values.shape)])
        scalar = 2 * np.arange(values.size).reshape(values.shape)
        part = Part(version.real, as_scalars(values), np.stack([scalar, scalar + 1]), both)
        return Diagonal(values, (part,), stable=False)
    stored = read_real(store, names[version.real], (None, None))
    transform = assumed.choose(REAL_TRANSFORM, silent=REAL_TRANSFORM not in version.transforms)
    real = apply_transform(stored, transform, relu_offset=version.relu_offset)
    values = -real.value.astype(np.complex128)
    scalar = np.arange(stored.size).reshape(stored.shape)
    parts = [Part(version.real, stored, scalar, -real.slope)]
    if version.imag in names:
        frequency = read_real(store, names[version.imag], stored.shape)
        silent = IMAG_TRANSFORM not in version.transforms
        imag = apply_transform(frequency, assumed.choose(IMAG_TRANSFORM, silent=silent))
        values = values + 1j * version.sign * imag.value
        parts.append(Part(version.imag, frequency, scalar, 1j * version.sign * imag.slope))
    return Diagonal(values, tuple(parts), transform != "none")


def read_step(
    store: TensorStore, names: Mapping[str, str], version: Version, modes: int, assumed: Assumed
) -> Step:
    """Δ, one per channel or one per mode.

    Raises:
        TensorError: NaN or inf, or another shape than (H,), (H, 1) or (H, modes).
        UsageError: Δ is to be rescaled by a factor that is not positive.
    """
    tensor = names[version.step]
    shape = store.tensors[tensor].shape
    untied = len(shape) == 2 and shape[1] == modes
    wanted = (None,) if len(shape) == 1 else (None, modes if untied else 1)
    stored = read_real(store, tensor, wanted)
    stored = stored.reshape(stored.shape[0], -1)
    transform = assumed.choose(STEP_TRANSFORM, silent=STEP_TRANSFORM not in version.transforms)
    parameter, steepness = stored, np.ones_like(stored)
    if version.step == "inv_dt" and assumed.choose(FAST_STEP, silent=True) == "true":
        bounded = np.clip(stored, -_STEEPEST, _STEEPEST)
        parameter, steepness = np.sinh(bounded), np.cosh(bounded)
    step = apply_transform(parameter, transform)
    step = replace(step, slope=step.slope * steepness, log_slope=step.log_slope * steepness)
    factor = step_factor(assumed)
    return Step(version.step, step.times(factor), stored, transform != "none", factor)


def step_factor(assumed: Assumed) -> float:
    """The factor on Δ that the layer runs with.

    Raises:
        UsageError: the factor is not positive.
    """
    text = assumed.choose(STEP_RESCALE, silent=True)
    factor = float(text)
    if not 0 < factor < math.inf:
        raise UsageError(
            f"{text[:40]} is not a positive number",
            where="--assume step-rescale",
            remedy="give the factor on Δ, e.g. 0.5 at twice the sampling rate",
        )
    return factor


def find_mapped(family: str, tensors: Mapping[str, TensorSpec], *roles: str) -> list[Match]:
    """Flax modules with all roles, whose first is (N, H) and whose step size is (1, H)."""
    matches = []
    for module, names in group_by_module(tensors, (*roles, "log_step")).items():
        shape = tensors[names[roles[0]]].shape if len(names) > len(roles) else ()
        if len(shape) == 2 and tensors[names["log_step"]].shape == (1, shape[1]):
            matches.append(Match(module or family, names))
    return matches


def read_mapped(
    store: TensorStore, names: Mapping[str, str], real: str, imag: str, largest: float = math.inf
) -> tuple[Diagonal, Step]:
    """A (N, H) and log_step (1, H) of The Annotated S4, which maps its layer over the channels.

    Args:
        store: the checkpoint.
        names: the layer's tensors.
        real: the role of Re A.
        imag: the role of Im A.
        largest: where Re A is held below.

    Raises:
        TensorError: NaN or inf, or shapes that do not fit together.
    """
    stored = read_real(store, names[real], (None, None))
    frequency = read_real(store, names[imag], stored.shape)
    logarithm = read_real(store, names["log_step"], (1, stored.shape[1])).T
    scalar = np.arange(stored.size).reshape(stored.shape).T
    free = (stored < largest).T.astype(np.float64)
    diagonal = Diagonal(
        np.ascontiguousarray((np.minimum(stored, largest) + 1j * frequency).T),
        (
            Part(real, stored, scalar, free),
            Part(imag, frequency, scalar, np.full(scalar.shape, 1j)),
        ),
        stable=largest < 0,
    )
    return diagonal, Step("log_step", apply_transform(logarithm, "exp"), logarithm)


def as_scalars(values: Complexes) -> Floats:
    """The real and imaginary parts in the order of a last axis of pairs."""
    return np.stack([values.real, values.imag], axis=-1).ravel()


def system_of_channel(systems: int, channels: int, tensor: str) -> Integers:
    """(channels,) which row of A and B each channel uses: ``h mod systems``.

    Raises:
        TensorError: the systems do not divide the channels.
    """
    if channels % systems:
        raise TensorError(
            f"its {systems} systems do not divide the {channels} channels of the step size",
            where=tensor,
            remedy="check that the layer's tensors belong together",
        )
    return np.arange(channels) % systems


def reads_both_directions(
    store: TensorStore, direct: str | None, readout: Complexes | None
) -> bool:
    """Whether C has twice the outputs of D, so that half of it runs backward."""
    if direct is None or readout is None:
        return False
    shape = store.tensors[direct].shape
    return len(shape) == 2 and len(readout) == 2 * shape[0]
