"""DSS, the diagonal state space of Gupta, Gu & Berant 2022, arXiv 2203.14343, and its GSS form."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from memcurse_cli.checkpoints.store import TensorSpec, TensorStore
from memcurse_cli.recurrences.assumptions import Assumed
from memcurse_cli.recurrences.discretization import (
    ZERO_ORDER_HOLD,
    DiscreteModes,
    discretise,
    group_through_z,
)
from memcurse_cli.recurrences.dss_modes import (
    EXPONENTIAL_FREQUENCY,
    KERNEL_LENGTH,
    Part,
    kernel_length,
    read_flax,
    read_gated,
    read_torch,
    with_softmax,
    without_gain,
)
from memcurse_cli.recurrences.family import Assumption, Match, ReadOptions
from memcurse_cli.recurrences.projections import (
    beside,
    channel_direct_part,
    named_parts,
    stored_parts,
)
from memcurse_cli.recurrences.reading import group_by_module, read_real
from memcurse_cli.recurrences.recurrence import (
    Complexes,
    ParameterGroup,
    ProjectionGroup,
    Recurrence,
)
from memcurse_cli.recurrences.s4 import BOTH_DIRECTIONS, read_pairs, reads_both_directions

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
