"""DSS, the diagonal state space of Gupta, Gu & Berant 2022, arXiv 2203.14343, and its GSS form.

What DSS's tensors make of a mode: Λ, the exponent of λ, the gain, and what moves them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from memcurse_cli.checkpoints.store import TensorSpec, TensorStore
from memcurse_cli.errors import TensorError, UsageError
from memcurse_cli.families.assumptions import Assumed
from memcurse_cli.families.bounds import require_eigenvalues
from memcurse_cli.families.family import Assumption, Match, ReadOptions
from memcurse_cli.families.module_names import group_by_module
from memcurse_cli.families.projections import (
    IMAGINARY,
    REAL,
    beside,
    channel_direct_part,
    named_parts,
    stored_parts,
)
from memcurse_cli.families.reading import read_real, require_shape, shown_shape
from memcurse_cli.families.recurrence import (
    Complexes,
    Floats,
    Integers,
    ParameterGroup,
    ProjectionGroup,
    Recurrence,
)
from memcurse_cli.families.state_space.discretization import (
    ZERO_ORDER_HOLD,
    DiscreteModes,
    apply_transform,
    discretise,
    group_through_z,
)
from memcurse_cli.families.state_space.s4.names import (
    BOTH_DIRECTIONS,
    read_pairs,
    reads_both_directions,
)

KERNEL_LENGTH = Assumption(
    key="kernel-length",
    default="inf",
    choices=(),
    meaning="the length L of DSS's softmax, which divides each mode's gain by e^(Λ Δ L) - 1;"
    " inf leaves that out, as for modes that decay within the sequence",
)
EXPONENTIAL_FREQUENCY = Assumption(
    key="imag-exp",
    default="true",
    choices=("true", "false"),
    meaning="whether GSS takes Im Λ as the exponential of Lambda_imag",
)

LARGEST_REAL_PART = 1e-4
"""Where the clip versions hold Re Λ: above zero."""

_SMALLEST = 1e-150


@dataclass(frozen=True)
class Part:
    """Scalars of a tensor, and what they move: all (channels, modes), or broadcast to it.

    Attributes:
        role: the tensor's role.
        name: the group's name, where the tensor holds several.
        stored: the scalars, on one axis.
        scalar: the scalar of each mode.
        z_slope: dz/dω.
        log_step_slope: d log(z/Λ)/dω.
    """

    role: str
    name: str
    stored: Floats
    scalar: Integers
    z_slope: Complexes
    log_step_slope: Complexes | float = 0.0


@dataclass(frozen=True)
class Modes:
    """The exponents of λ and what moves them.

    Attributes:
        z: (channels, modes) ``Δ_re Re Λ + i Δ_im Im Λ``.
        log_step: (channels, 1 or modes) log(z/Λ), which is log Δ where there is one Δ.
        parts: what moves them.
    """

    z: Complexes
    log_step: Complexes
    parts: tuple[Part, ...]


def read_torch(store: TensorStore, names: Mapping[str, str], *, clipped: bool) -> Modes:
    """Λ (N), shared by the channels, and log_dt (H) or (H, 2).

    Raises:
        TensorError: NaN or inf, or shapes that do not fit together.
    """
    if "Lambda" in names:
        values = read_pairs(store, names["Lambda"], (None,))
        real, imag = values.real.copy(), values.imag.copy()
        free = np.ones(real.size)
        bounded = real
        if clipped:
            free = (real < LARGEST_REAL_PART).astype(np.float64)
            bounded = np.minimum(real, LARGEST_REAL_PART)
        parts = [
            ("Lambda", f"Lambda[{REAL}]", real, _complex(free, 0)),
            ("Lambda", f"Lambda[{IMAGINARY}]", imag, _complex(0, np.ones(imag.size))),
        ]
        return _with_steps(store, names["log_dt"], _complex(bounded, imag), parts)
    role = "Lambda_log_im" if "Lambda_log_im" in names else "Lambda_im"
    logarithm = read_real(store, names["Lambda_log_neg_re"], (None,))
    stored = read_real(store, names[role], logarithm.shape)
    decay = apply_transform(logarithm, "exp")
    frequency = apply_transform(stored, "exp" if role == "Lambda_log_im" else "none")
    parts = [
        ("Lambda_log_neg_re", "Lambda_log_neg_re", logarithm, _complex(-decay.slope, 0)),
        (role, role, stored, _complex(0, frequency.slope)),
    ]
    return _with_steps(store, names["log_dt"], _complex(-decay.value, frequency.value), parts)


def _with_steps(
    store: TensorStore,
    tensor: str,
    rate: Complexes,
    parts: list[tuple[str, str, Floats, Complexes]],
) -> Modes:
    """z of every channel, where Re Λ and Im Λ may have a step size each."""
    shape = store.tensors[tensor].shape
    if len(shape) not in (1, 2) or (len(shape) == 2 and shape[1] != 2):
        raise TensorError(
            f"its shape {shown_shape(shape)} is neither (channels) nor (channels, 2)",
            where=tensor,
            remedy="name the right family with --family, or export the layer again",
        )
    require_eigenvalues(shape[0] * rate.size, tensor)
    stored = read_real(store, tensor, shape).reshape(shape[0], -1)
    step = apply_transform(stored, "exp")
    real, imag = step.value[:, :1], step.value[:, -1:]
    scalar = np.arange(len(stored))[:, None]
    z = _complex(real * rate.real, imag * rate.imag)
    if stored.shape[1] == 1:
        found = [
            Part(role, name, values, np.arange(rate.size), real * slope)
            for role, name, values, slope in parts
        ]
        return Modes(
            z, step.log, (*found, Part("log_dt", "log_dt", stored.ravel(), scalar, z, 1.0))
        )
    rate, z = _away_from_zero(rate), _away_from_zero(z)
    untied = []
    for role, name, values, slope in parts:
        z_slope = _complex(real * slope.real, imag * slope.imag)
        along = np.asarray(z_slope / z - slope / rate, dtype=np.complex128)
        untied.append(Part(role, name, values, np.arange(rate.size), z_slope, along))
    shares = {REAL: _complex(z.real, 0), IMAGINARY: _complex(0, z.imag)}
    for column, (part, share) in enumerate(shares.items()):
        values = stored[:, column].copy()
        untied.append(Part("log_dt", f"log_dt[{part}]", values, scalar, share, share / z))
    return Modes(z, np.log(z / rate), tuple(untied))


def read_flax(store: TensorStore, names: Mapping[str, str]) -> Modes:
    """Λ (N, H) and log_step (1, H): every channel is a layer, mapped along the second axis.

    Raises:
        TensorError: NaN or inf, or shapes that do not fit together.
    """
    real = read_real(store, names["Lambda_re"], (None, None))
    imag = read_real(store, names["Lambda_im"], real.shape)
    logarithm = read_real(store, names["log_step"], (1, real.shape[1])).T
    step = apply_transform(logarithm, "exp")
    z = step.value * _complex(real, imag).T
    modes = np.arange(real.size).reshape(real.shape).T
    channels = np.arange(len(logarithm))[:, None]
    ones = np.ones(z.shape)
    parts = (
        Part("Lambda_re", "Lambda_re", real.ravel(), modes, _complex(step.value * ones, 0)),
        Part("Lambda_im", "Lambda_im", imag.ravel(), modes, _complex(0, step.value * ones)),
        Part("log_step", "log_step", logarithm.ravel(), channels, z, 1.0),
    )
    return Modes(z, step.log, parts)


def read_gated(store: TensorStore, names: Mapping[str, str], assumed: Assumed) -> Modes:
    """Λ (N), shared by the channels, at a step size of one.

    Raises:
        TensorError: NaN or inf, or shapes that do not fit together.
    """
    logarithm = read_real(store, names["Lambda_real"], (None,))
    stored = read_real(store, names["Lambda_imag"], logarithm.shape)
    exponential = assumed.choose(EXPONENTIAL_FREQUENCY) == "true"
    decay = apply_transform(logarithm, "exp")
    frequency = apply_transform(stored, "exp" if exponential else "none")
    size = logarithm.size
    require_shape(store, names["C_real"], (None, size))
    channels = store.tensors[names["C_real"]].shape[0]
    require_eigenvalues(channels * size, names["C_real"])
    slopes = (_complex(-decay.slope, 0), _complex(0, frequency.slope))
    parts = tuple(
        Part(role, role, values, np.arange(size), slope)
        for role, values, slope in zip(
            ("Lambda_real", "Lambda_imag"), (logarithm, stored), slopes, strict=True
        )
    )
    z = np.broadcast_to(_complex(-decay.value, frequency.value), (channels, size))
    return Modes(z, np.zeros((channels, 1), dtype=np.complex128), parts)


def without_gain(modes: Modes) -> tuple[DiscreteModes, Modes]:
    """λ alone, with γ = 1 whatever moves the modes."""
    still = np.zeros(modes.z.size, dtype=np.complex128)
    held = discretise(modes.z.ravel(), ZERO_ORDER_HOLD)
    parts = tuple(replace(part, log_step_slope=0.0) for part in modes.parts)
    return (
        replace(held, log_gain=still, log_gain_slope=still),
        replace(modes, log_step=still.reshape(modes.z.shape), parts=parts),
    )


def with_softmax(z: Complexes, length: float) -> DiscreteModes:
    """λ, and γΛ/z of the softmax over a kernel of L steps.

    With ``g(z) = (e^z - 1)/z``: ``γ Λ/z = g(z)/(L z g(L z))``, and ``-g(z)`` for an endless one.

    Args:
        z: the exponents of λ, any shape.
        length: L, or infinity.
    """
    held = discretise(z, ZERO_ORDER_HOLD)
    if not math.isfinite(length):
        return replace(held, log_gain=held.log_gain + 1j * np.pi)
    z = _away_from_zero(z)
    whole = discretise(np.asarray(length * z), ZERO_ORDER_HOLD)
    return replace(
        held,
        log_gain=held.log_gain - whole.log_gain - np.log(length * z),
        log_gain_slope=held.log_gain_slope - length * whole.log_gain_slope - 1 / z,
    )


def kernel_length(assumed: Assumed) -> float:
    """The length of the softmax, at least one step.

    Raises:
        UsageError: it is less.
    """
    text = assumed.choose(KERNEL_LENGTH)
    length = float(text)
    if not length >= 1:
        raise UsageError(
            f"{text[:40]} is not a number of steps",
            where="--assume kernel-length",
            remedy="give the length of the sequences, or inf",
        )
    return length


def _away_from_zero(values: Complexes) -> Complexes:
    return np.where(np.abs(values) < _SMALLEST, _SMALLEST, values).astype(np.complex128)


def _complex(real: Floats | float, imag: Floats | float) -> Complexes:
    return np.asarray(real + 1j * np.asarray(imag), dtype=np.complex128)


VERSION = Assumption(
    key="dss-version",
    default="softmax",
    choices=("softmax", "clip", "clip-no-scale", "exp", "exp-no-scale"),
    meaning="DSS's kernel (version): softmax where Lambda is stored, exp where its logarithm is",
)

_ROLES = (
    *("Lambda", "Lambda_log_neg_re", "Lambda_im", "Lambda_log_im", "W", "log_dt"),
    *("Lambda_real", "Lambda_imag", "C_real", "C_imag", "param_D"),
    *("Lambda_re", "log_step"),
)


class DSS:
    """``λ = e^z``, ``z = Δ Λ``, one Λ for all channels; ``y = Re[W h]`` without a B.

    `DSSKernel` of ag1988/dss (src/models/sequence/ss/standalone/dss.py) and `DSSLayer` of
    srush/annotated-s4 (s4/dss.py), where every channel has a Λ of its own. Where log_dt is (H, 2),
    Re Λ and Im Λ have a step size each. Version exp: ``γ = (e^z - 1)/Λ``. Softmax:
    ``γ = (e^z - 1)/(Λ (e^{zL} - 1))``, also where Re Λ > 0; the 1e-7 beside the reciprocals is
    left out. `DSS` of gated-state-spaces-pytorch has Δ = 1.
    """

    name = "dss"
    title = "DSS (diagonal state space; GSS)"
    recognised_by = (
        "Lambda or Lambda_log_neg_re beside log_dt and W; Lambda_re, Lambda_im, log_step and W;"
        " Lambda_real, Lambda_imag and param_D"
    )
    equation = "λ = exp(Δ Λ), Λ as stored or -e^Lambda_log_neg_re + i Lambda_im, Δ = exp(log_dt)"
    source = "ag1988/dss, annotated-s4, gated-state-spaces-pytorch; Gupta et al., arXiv 2203.14343"
    assumptions = (VERSION, KERNEL_LENGTH, EXPONENTIAL_FREQUENCY)

    def find(self, tensors: Mapping[str, TensorSpec]) -> list[Match]:
        """Every Λ in one of the three forms, with the matrix that reads it out."""
        matches = []
        for module, names in group_by_module(tensors, _ROLES).items():
            roles = next((roles for roles in _FORMS if names.keys() >= set(roles)), None)
            if roles is not None:
                kept = {role: names[role] for role in roles}
                matches.append(Match(module or self.name, kept))
        return matches

    def read(self, store: TensorStore, match: Match, options: ReadOptions) -> Recurrence:
        """Read Λ, Δ and W.

        Raises:
            TensorError: NaN or inf, or shapes that do not fit together.
            UsageError: a kernel length that is no number of steps.
        """
        names = match.tensors
        assumed = Assumed(options)
        gated = "param_D" in names
        version = "exp"
        if not gated:
            default = "exp" if "Lambda_log_neg_re" in names else "softmax"
            version = assumed.choose(VERSION, default=default, silent="Lambda_re" in names)
        if gated:
            modes = read_gated(store, names, assumed)
        elif "Lambda_re" in names:
            modes = read_flax(store, names)
        else:
            modes = read_torch(store, names, clipped=version.startswith("clip"))
        if version == "softmax":
            discrete = with_softmax(modes.z.ravel(), kernel_length(assumed))
        elif version.endswith("no-scale"):
            discrete, modes = without_gain(modes)
        else:
            discrete = discretise(modes.z.ravel(), ZERO_ORDER_HOLD)
        channels, size = modes.z.shape
        readout, both, projections = _read_readout(store, names, channels, size)
        return Recurrence(
            name=match.layer,
            family=self.name,
            tensors=tuple(name for role, name in names.items() if role != "param_D"),
            log_eigenvalues=discrete.log_eigenvalue,
            log_gain=discrete.log_gain + np.broadcast_to(modes.log_step, modes.z.shape).ravel(),
            parameters=tuple(
                _group(store, names, part, modes.z.shape, discrete) for part in modes.parts
            ),
            readin=np.ones((channels * size, 1), dtype=np.complex128),
            readout=readout,
            channel=np.repeat(np.arange(channels), size),
            stable_by_construction=gated or "Lambda_log_neg_re" in names,
            assumptions=(*assumed.sentences, *([BOTH_DIRECTIONS] if both else [])),
            projections=() if both else projections,
        )


_FORMS = (
    ("Lambda_log_neg_re", "Lambda_log_im", "log_dt", "W"),
    ("Lambda_log_neg_re", "Lambda_im", "log_dt", "W"),
    ("Lambda_re", "Lambda_im", "log_step", "W"),
    ("Lambda", "log_dt", "W"),
    ("Lambda_real", "Lambda_imag", "C_real", "C_imag", "param_D"),
)


def _group(
    store: TensorStore,
    names: Mapping[str, str],
    part: Part,
    shape: tuple[int, ...],
    discrete: DiscreteModes,
) -> ParameterGroup:
    """The group of one part; real and imaginary parts of a tensor are groups of their own."""
    return group_through_z(
        part.name,
        names[part.role],
        part.stored,
        store.tensors[names[part.role]].dtype,
        discrete,
        scalar=np.broadcast_to(part.scalar, shape).ravel(),
        eigenvalue=np.arange(discrete.log_eigenvalue.size),
        z_slope=np.broadcast_to(part.z_slope, shape).ravel(),
        log_step_slope=np.broadcast_to(part.log_step_slope, shape).ravel(),
    )


def _read_readout(
    store: TensorStore, names: Mapping[str, str], channels: int, size: int
) -> tuple[Complexes, bool, tuple[ProjectionGroup, ...]]:
    """W as (outputs, channels × modes), whether half of it reads backward, and what moves it."""
    if "W" in names:
        readout = read_pairs(store, names["W"], (None, channels, size))
        readout = readout.reshape(-1, channels * size)
        groups = stored_parts(store, names["W"], "C", readout.shape, pairs=True)
        above = 0 if "log_step" in names else 1
        direct = beside(store, names["W"], "D", above=above)
    else:
        parts = (
            read_real(store, names[f"C_{part}"], (channels, size)) for part in ("real", "imag")
        )
        real, imag = parts
        readout = (real + 1j * imag).reshape(1, -1)
        groups = named_parts(store, names, "C", readout)
        direct = names["param_D"]
    both = reads_both_directions(store, direct, readout)
    return readout, both, (*groups, *channel_direct_part(store, direct, len(readout), channels))
