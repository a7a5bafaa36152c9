"""What S4D and S4 share: the names of each version, the step size and the diagonal of A.

The tensors were renamed in every version of state-spaces/s4, the sign of ``A_imag`` changed with
version 4, and the transforms are constructor arguments that no checkpoint stores.

The first release of S4, whose B and C hold the low-rank part of A.

`SSKernelNPLR` (src/models/sequence/ss/kernel.py, November 2021) in state-spaces/s4 stacks P under B
and Q under C: ``A = diag(w) - Σ_r B_r C̄_r``, r = 1, …, rank, the input being that of row 0.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from memcurse_cli.checkpoints.store import TensorStore
from memcurse_cli.errors import TensorError, UsageError
from memcurse_cli.families.assumptions import Assumed
from memcurse_cli.families.family import Assumption
from memcurse_cli.families.reading import read_finite, read_real, shown_shape
from memcurse_cli.families.recurrence import Complexes, Floats, Integers
from memcurse_cli.families.state_space.discretization import (
    RELU_OFFSET,
    TRANSFORMS,
    PositiveParameter,
    apply_transform,
)

BOTH_DIRECTIONS = (
    "the second half of C reads a pass backward in time; its outputs count as separate ones, which"
    " is exact for the eigenvalues at white input"
)

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
        real: the tensor that gives -Re A.
        imag: the tensor that gives Im A.
        sign: of ``imag`` in A.
        transforms: those of the assumptions that are arguments of its constructor; the other
            transforms are written into its code.
        relu_offset: what its rectifier adds.
    """

    step: str
    real: str
    imag: str
    sign: int
    transforms: tuple[Assumption, ...] = ()
    relu_offset: float = RELU_OFFSET


@dataclass(frozen=True)
class Component:
    """One real number per mode that moves the diagonal of A.

    Attributes:
        role: the tensor that holds it.
        scalar: (systems, modes) index into the tensor's scalars.
        slope: (systems, modes) dA/dω.
    """

    role: str
    scalar: Integers
    slope: Complexes


@dataclass(frozen=True)
class Diagonal:
    """The diagonal of A, one row per independent system.

    Attributes:
        values: (systems, modes).
        components: what moves it.
        stored: the stored scalars by role, on one axis.
        stable: its real part is negative whatever the parameters.
    """

    values: Complexes
    components: tuple[Component, ...]
    stored: Mapping[str, Floats]
    stable: bool


@dataclass(frozen=True)
class Step:
    """The step size of every channel and mode.

    Attributes:
        parameter: Δ, (channels, 1) where a channel's modes share it, else (channels, modes).
        stored: the stored scalars, on one axis.
        positive: Δ > 0 whatever the parameters.
        rescaled: the factor on Δ that it holds.
    """

    parameter: PositiveParameter
    stored: Floats
    positive: bool
    rescaled: float

    @property
    def channels(self) -> int:
        """The number of channels H."""
        return len(self.parameter.value)

    @property
    def tied(self) -> bool:
        """Whether the modes of a channel share their step size."""
        return self.stored.size == self.channels


def read_diagonal(
    store: TensorStore, names: Mapping[str, str], version: Version, assumed: Assumed
) -> Diagonal:
    """``A = -f(real) ± i g(imag)``, with the transforms of the version.

    Raises:
        TensorError: NaN or inf, or real and imaginary parts of different shapes.
    """
    stored = read_real(store, names[version.real], (None, None))
    transform = assumed.choose(REAL_TRANSFORM, silent=REAL_TRANSFORM not in version.transforms)
    real = apply_transform(stored, transform, relu_offset=version.relu_offset)
    values = -real.value.astype(np.complex128)
    scalar = np.arange(stored.size).reshape(stored.shape)
    components = [Component(version.real, scalar, -real.slope.astype(np.complex128))]
    tensors = {version.real: stored.ravel()}
    if version.imag in names:
        frequency = read_real(store, names[version.imag], stored.shape)
        silent = IMAG_TRANSFORM not in version.transforms
        imag = apply_transform(frequency, assumed.choose(IMAG_TRANSFORM, silent=silent))
        values = values + 1j * version.sign * imag.value
        imag_slope = (1j * version.sign * imag.slope).astype(np.complex128)
        components.append(Component(version.imag, scalar, imag_slope))
        tensors[version.imag] = frequency.ravel()
    return Diagonal(values, tuple(components), tensors, transform != "none")


def read_pair_diagonal(store: TensorStore, tensor: str) -> Diagonal:
    """w of version 2, stored as pairs: both parts of an entry are scalars of one tensor.

    Raises:
        TensorError: NaN or inf, or no matrix of pairs.
    """
    values = read_pairs(store, tensor, (None, None))
    scalar = 2 * np.arange(values.size).reshape(values.shape)
    ones = np.ones(values.shape, dtype=np.complex128)
    return Diagonal(
        values,
        (Component("w", scalar, ones), Component("w", scalar + 1, 1j * ones)),
        {"w": as_scalars(values)},
        stable=False,
    )


def as_scalars(values: Complexes) -> Floats:
    """The real and imaginary parts in the order of a last axis of pairs."""
    return np.stack([values.real, values.imag], axis=-1).ravel()


def read_step(
    store: TensorStore, tensor: str, version: Version, modes: int, assumed: Assumed
) -> Step:
    """Δ, one per channel or one per mode.

    Raises:
        TensorError: NaN or inf, or another shape than (H,), (H, 1) or (H, modes).
        UsageError: Δ is to be rescaled by a factor that is not positive.
    """
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
    return Step(rescale(step, factor), stored.ravel(), transform != "none", factor)


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


def rescale(step: PositiveParameter, factor: float) -> PositiveParameter:
    """Δ times a factor."""
    return PositiveParameter(
        step.value * factor, step.slope * factor, step.log + math.log(factor), step.log_slope
    )


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


def read_pairs(store: TensorStore, tensor: str, shape: tuple[int | None, ...]) -> Complexes:
    """A tensor that is stored complex, or real with a last axis of (real, imaginary).

    Args:
        store: the checkpoint.
        tensor: its name.
        shape: its shape as a complex tensor, where None stands for any size. Leading axes of
            size one may be missing.

    Raises:
        TensorError: NaN or inf, or another shape.
    """
    values = read_finite(store, tensor)
    if np.iscomplexobj(values):
        return with_leading_axes(values, tensor, shape).astype(np.complex128)
    parts = with_leading_axes(values, tensor, (*shape, 2)).astype(np.float64)
    return parts[..., 0] + 1j * parts[..., 1]


def with_leading_axes(
    values: NDArray[np.generic], tensor: str, shape: tuple[int | None, ...]
) -> NDArray[np.generic]:
    """``values`` with the leading axes of size one that are missing from ``shape``.

    Raises:
        TensorError: it does not fit the shape, where None stands for any size.
    """
    padded = values.reshape((1,) * (len(shape) - values.ndim) + values.shape)
    fits = padded.ndim == len(shape) and all(
        wanted in (None, size) for wanted, size in zip(shape, padded.shape, strict=True)
    )
    if not fits:
        shown = ", ".join("any" if size is None else str(size) for size in shape)
        raise TensorError(
            f"its shape {shown_shape(values.shape)} does not fit, ({shown}) is needed",
            where=tensor,
            remedy="check that the layer's tensors belong together",
        )
    return padded


def read_matrices(
    store: TensorStore, names: Mapping[str, str], system: Integers, modes: int, paired: bool
) -> tuple[Complexes, Complexes | None]:
    """B as (n, 1) and C as (outputs of a channel, n), for the n = channels × modes states.

    The minimal S4D has no B, which is one. Nothing is doubled here.

    Raises:
        TensorError: NaN or inf, or a shape that does not fit.
    """
    systems = int(system.max()) + 1
    channels = system.size

    def read(tensor: str, shape: tuple[int | None, ...]) -> Complexes:
        if paired:
            return read_pairs(store, tensor, shape)
        return with_leading_axes(read_finite(store, tensor), tensor, shape).astype(np.complex128)

    readin = np.ones((channels * modes, 1), dtype=np.complex128)
    if "B" in names:
        readin = read(names["B"], (1, systems, modes))[0, system].reshape(-1, 1)
    if "C" not in names:
        return readin, None
    readout = read(names["C"], (None, channels, modes)).reshape(-1, channels * modes)
    return readin, readout


def reads_both_directions(
    store: TensorStore, direct: str | None, readout: Complexes | None
) -> bool:
    """Whether C has twice the outputs of D, so that half of it runs backward."""
    if direct is None or readout is None:
        return False
    shape = store.tensors[direct].shape
    return len(shape) == 2 and len(readout) == 2 * shape[0]


def is_first_version(shapes: Mapping[str, tuple[int, ...]]) -> bool:
    """Whether w, B and C are those of version 1, whose B and C hold P and Q.

    C is (H, 1 + rank, N/2, 2), B too, or without the first axis where it is not trained.
    """
    if not {"log_dt", "w", "B", "C"} <= shapes.keys():
        return False
    w, b, c = shapes["w"], shapes["B"], shapes["C"]
    return (
        len(shapes["log_dt"]) == 1
        and len(c) == 4
        and c[1] >= 2
        and c[3] == 2
        and b in (c, c[1:])
        and w in ((c[0], *c[2:]), (1, *c[2:]), c[2:])
    )


def shared_diagonal(diagonal: Diagonal, channels: int, tensor: str) -> Diagonal:
    """The diagonal of every channel, each scalar of which all channels may share.

    Raises:
        TensorError: the rows of w do not divide the channels.
    """
    row = system_of_channel(len(diagonal.values), channels, tensor)
    components = [
        replace(each, scalar=each.scalar[row], slope=each.slope[row])
        for each in diagonal.components
    ]
    return replace(diagonal, values=diagonal.values[row], components=tuple(components))


def read_rows(store: TensorStore, tensor: str, channels: int, modes: int) -> Complexes:
    """B or C of version 1 as (1 + rank, channels, modes), with one channel where all share it.

    Raises:
        TensorError: NaN or inf.
    """
    shared = len(store.tensors[tensor].shape) == 3
    rows = read_pairs(store, tensor, (1 if shared else channels, None, modes))
    return np.swapaxes(rows, 0, 1)
