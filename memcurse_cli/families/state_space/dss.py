"""DSS, the diagonal state space of Gupta, Gu & Berant 2022, arXiv 2203.14343, and its GSS form."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from memcurse_cli.checkpoints.store import TensorSpec, TensorStore
from memcurse_cli.errors import TensorError, UsageError
from memcurse_cli.families.family import Assumed, Assumption, Match, ReadOptions
from memcurse_cli.families.module_names import group_by_module
from memcurse_cli.families.projections import (
    IMAGINARY,
    REAL,
    beside,
    channel_direct_part,
    named_parts,
    stored_parts,
)
from memcurse_cli.families.reading import (
    read_pairs,
    read_real,
    require_eigenvalues,
    require_shape,
    shown_shape,
)
from memcurse_cli.families.recurrence import Complexes, ProjectionGroup, Recurrence
from memcurse_cli.families.state_space.discretization import (
    ZERO_ORDER_HOLD,
    DiscreteModes,
    Part,
    apply_transform,
    discretise,
)
from memcurse_cli.families.state_space.s4.names import (
    BOTH_DIRECTIONS,
    read_mapped,
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

VERSION = Assumption(
    key="dss-version",
    default="softmax",
    choices=("softmax", "clip", "clip-no-scale", "exp", "exp-no-scale"),
    meaning="DSS's kernel (version): softmax where Lambda is stored, exp where its logarithm is",
)

LARGEST_REAL_PART = 1e-4
"""Where the clip versions hold Re Λ: above zero."""

_SMALLEST = 1e-150

# The tensors of each form: of torch with Λ or its logarithm, of Flax, and of GSS.
_FORMS = (
    ("Lambda_log_neg_re", "Lambda_log_im", "log_dt", "W"),
    ("Lambda_log_neg_re", "Lambda_im", "log_dt", "W"),
    ("Lambda_re", "Lambda_im", "log_step", "W"),
    ("Lambda", "log_dt", "W"),
    ("Lambda_real", "Lambda_imag", "C_real", "C_imag", "param_D"),
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
        for module, names in group_by_module(
            tensors, {role for form in _FORMS for role in form}
        ).items():
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
            modes = _read_gated(store, names, assumed)
        elif "Lambda_re" in names:
            diagonal, step = read_mapped(store, names, "Lambda_re", "Lambda_im")
            z = step.parameter.value * diagonal.values
            along_step, *along_rates = step.parts(diagonal)
            modes = Modes(z, step.parameter.log, (*along_rates, along_step))
        else:
            modes = _read_torch(store, names, clipped=version.startswith("clip"))
        z, log_step, parts = modes.z, modes.log_step, modes.parts
        if version == "softmax":
            discrete = with_softmax(z, kernel_length(assumed))
        else:
            discrete = discretise(z, ZERO_ORDER_HOLD)
        if version.endswith("no-scale"):  # γ = 1, whatever moves the modes
            still = np.zeros(z.shape, dtype=np.complex128)
            discrete, log_step = replace(discrete, log_gain=still, log_gain_slope=still), still
            parts = tuple(replace(part, log_step_slope=0.0) for part in parts)
        channels, size = z.shape
        readout, both, projections = _read_readout(store, names, channels, size)
        return Recurrence(
            name=match.layer,
            family=self.name,
            tensors=tuple(name for role, name in names.items() if role != "param_D"),
            log_eigenvalues=discrete.log_eigenvalue.ravel(),
            log_gain=(discrete.log_gain + log_step).ravel(),
            parameters=tuple(part.group(store, names, discrete) for part in parts),
            readin=np.ones((channels * size, 1), dtype=np.complex128),
            readout=readout,
            channel=np.repeat(np.arange(channels), size),
            stable_by_construction=gated or "Lambda_log_neg_re" in names,
            assumptions=(*assumed.sentences, *([BOTH_DIRECTIONS] if both else [])),
            projections=() if both else projections,
        )


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


def _logarithms(
    store: TensorStore, names: Mapping[str, str], real: str, imag: str, *, exponential: bool
) -> tuple[Complexes, tuple[Part, ...]]:
    """Λ (N) with ``-Re Λ`` stored as a logarithm and perhaps Im Λ too, and dΛ/dω of both."""
    logarithm = read_real(store, names[real], (None,))
    stored = read_real(store, names[imag], logarithm.shape)
    decay = apply_transform(logarithm, "exp")
    frequency = apply_transform(stored, "exp" if exponential else "none")
    every = np.arange(logarithm.size)
    parts = (
        Part(real, logarithm, every, -decay.slope),
        Part(imag, stored, every, 1j * frequency.slope),
    )
    return -decay.value + 1j * frequency.value, parts


def _read_gated(store: TensorStore, names: Mapping[str, str], assumed: Assumed) -> Modes:
    """Λ (N), shared by the channels, at a step size of one.

    Raises:
        TensorError: NaN or inf, or shapes that do not fit together.
    """
    exponential = assumed.choose(EXPONENTIAL_FREQUENCY) == "true"
    rate, parts = _logarithms(store, names, "Lambda_real", "Lambda_imag", exponential=exponential)
    require_shape(store, names["C_real"], (None, rate.size))
    channels = store.tensors[names["C_real"]].shape[0]
    require_eigenvalues(channels * rate.size, names["C_real"])
    z = np.broadcast_to(rate, (channels, rate.size))
    return Modes(z, np.zeros((channels, 1), dtype=np.complex128), parts)


def _read_torch(store: TensorStore, names: Mapping[str, str], *, clipped: bool) -> Modes:
    """Λ (N), shared by the channels, and log_dt (H) or (H, 2): one of Re Λ, one of Im Λ.

    Raises:
        TensorError: NaN or inf, or shapes that do not fit together.
    """
    parts: tuple[Part, ...]
    if "Lambda" in names:
        values = read_pairs(store, names["Lambda"], (None,))
        real, imag, every = values.real.copy(), values.imag.copy(), np.arange(values.size)
        largest = LARGEST_REAL_PART if clipped else math.inf
        free = (real < largest).astype(np.float64)
        rate = np.minimum(real, largest) + 1j * imag
        parts = (
            Part("Lambda", real, every, free, name=f"Lambda[{REAL}]"),
            Part("Lambda", imag, every, 1j * np.ones(imag.size), name=f"Lambda[{IMAGINARY}]"),
        )
    else:
        role = "Lambda_log_im" if "Lambda_log_im" in names else "Lambda_im"
        exponential = role == "Lambda_log_im"
        rate, parts = _logarithms(store, names, "Lambda_log_neg_re", role, exponential=exponential)
    tensor = names["log_dt"]
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
    channel = np.arange(len(stored))[:, None]
    if stored.shape[1] == 1:
        z = step.value * rate
        scaled = (replace(part, z_slope=step.value * part.z_slope) for part in parts)
        return Modes(z, step.log, (*scaled, Part("log_dt", stored, channel, z, 1.0)))
    real_step, imag_step = step.value[:, :1], step.value[:, 1:]
    z = _away_from_zero(real_step * rate.real + 1j * (imag_step * rate.imag))
    rate = _away_from_zero(rate)
    untied = []
    for part in parts:
        slope = np.asarray(part.z_slope, dtype=np.complex128)
        z_slope = real_step * slope.real + 1j * (imag_step * slope.imag)
        untied.append(replace(part, z_slope=z_slope, log_step_slope=z_slope / z - slope / rate))
    for column, (name, share) in enumerate(((REAL, z.real), (IMAGINARY, 1j * z.imag))):
        one = stored[:, column].copy()
        untied.append(Part("log_dt", one, channel, share, share / z, name=f"log_dt[{name}]"))
    return Modes(z, np.log(z / rate), tuple(untied))


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
