"""S4D, the diagonal S4 of Gu et al. 2022, arXiv 2206.11893, also as The Annotated S4 writes it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from memcurse_cli.checkpoints.store import TensorSpec, TensorStore
from memcurse_cli.errors import UsageError
from memcurse_cli.families.family import Assumed, Assumption, Match, ReadOptions
from memcurse_cli.families.module_names import group_by_module
from memcurse_cli.families.projections import beside, channel_direct_part, stored_parts
from memcurse_cli.families.reading import read_pairs, require_eigenvalues
from memcurse_cli.families.recurrence import Floats, Integers, ProjectionGroup, Recurrence
from memcurse_cli.families.state_space.discretization import METHODS, ZERO_ORDER_HOLD, discretise
from memcurse_cli.families.state_space.dss import KERNEL_LENGTH, kernel_length, with_softmax
from memcurse_cli.families.state_space.s4.names import (
    BOTH_DIRECTIONS,
    FAST_STEP,
    IMAG_TRANSFORM,
    LARGEST_REAL_PART,
    REAL_TRANSFORM,
    S4D_2_DSS,
    S4D_4,
    S4D_MINIMAL,
    S4D_VERSIONS,
    STEP_RESCALE,
    STEP_TRANSFORM,
    Version,
    find_mapped,
    read_diagonal,
    read_mapped,
    read_step,
    reads_both_directions,
    roles_of,
    system_of_channel,
)

DISCRETIZATION = Assumption(
    key="discretization",
    default=ZERO_ORDER_HOLD,
    choices=(*METHODS, "dss"),
    meaning="from continuous time to steps; S4D's default is zoh, but bilinear in version 3 and"
    " dss where w is stored",
)
BAND_LIMIT = Assumption(
    key="bandlimit",
    default="inf",
    choices=(),
    meaning="the frequency Δ |Im A|/π from which S4D leaves a mode out of its output (bandlimit)",
)


class S4D:
    """``λ = exp(Δ A)`` or its bilinear form, with ``A = -f(A_real) ± i A_imag``.

    One input, N/2 stored modes and ``y = 2 Re[C h]`` per channel: `SSMKernelDiag` (models/s4/s4.py)
    and `S4DKernel` (models/s4/s4d.py) in state-spaces/s4. Channel h uses row ``h mod n_ssm`` of A
    and B. One Δ per channel moves λ and γ of all its modes.
    """

    name = "s4d"
    title = "S4D (diagonal S4)"
    recognised_by = (
        "A_real with inv_dt, or log_A_real or inv_A_real with A_imag and log_dt, or log_w_real and"
        " w_imag or w with log_dt; no P"
    )
    equation = "λ = exp(Δ A) or (1 + Δ A/2)/(1 - Δ A/2), A = -f(A_real) ± i A_imag, Δ = g(inv_dt)"
    source = "state-spaces/s4, versions 2 to 4 and minimal; Gu et al. 2022, arXiv 2206.11893"
    assumptions = (
        DISCRETIZATION,
        REAL_TRANSFORM,
        IMAG_TRANSFORM,
        STEP_TRANSFORM,
        FAST_STEP,
        STEP_RESCALE,
        BAND_LIMIT,
        KERNEL_LENGTH,
    )

    def find(self, tensors: Mapping[str, TensorSpec]) -> list[Match]:
        """Every diagonal A beside a step size; version 4 may be real, without ``A_imag``."""
        return [
            Match(module or self.name, names)
            for module, names in group_by_module(
                tensors, roles_of(S4D_VERSIONS, "B", "C", "P")
            ).items()
            if _version(names) and "P" not in names
        ]

    def read(self, store: TensorStore, match: Match, options: ReadOptions) -> Recurrence:
        """Read Δ, A, B and C.

        Raises:
            TensorError: NaN or inf, or shapes that do not fit together.
            UsageError: a number that was assumed is out of its range.
        """
        names = match.tensors
        version = _version(names)
        assert version is not None
        assumed = Assumed(options)
        method = assumed.choose(
            DISCRETIZATION, default=version.kernel, silent=version is S4D_MINIMAL
        )
        diagonal = read_diagonal(store, names, version, assumed)
        systems, modes = diagonal.values.shape
        step = read_step(store, names, version, modes, assumed)
        require_eigenvalues(step.channels * modes, names[version.step])
        system = system_of_channel(systems, step.channels, names[version.real])
        diagonal = diagonal.of(system)
        z = step.parameter.value * diagonal.values
        if method == "dss":
            discrete = with_softmax(z, kernel_length(assumed))
        else:
            discrete = discretise(z, method)
        # Every kernel but the softmax's is doubled, and the real one's too.
        pairs, doubled = version.imag in names, method != "dss"
        factor = 2.0 if doubled and not pairs else 1.0
        readin = np.ones((z.size, 1), dtype=np.complex128)
        if "B" in names:
            rows = read_pairs(store, names["B"], (1, systems, modes), paired=pairs)
            readin = rows[0, system].reshape(-1, 1)
        readout, both = None, False
        projections: tuple[ProjectionGroup, ...] = ()
        heard = factor * _within_band(z.imag.ravel() / step.rescaled, assumed)
        if "C" in names:
            stored = read_pairs(store, names["C"], (None, step.channels, modes), paired=pairs)
            readout = stored.reshape(-1, z.size)
            # D is that of the block around the kernel, which version 3 wraps once more.
            above = (beside(store, names["C"], "D", above=level) for level in (1, 2))
            direct = next(filter(None, above), None)
            both = reads_both_directions(store, direct, readout)
            if not both:
                projections = (
                    *_projections(store, names, pairs, system, readout.shape, heard),
                    *channel_direct_part(store, direct, len(readout), system.size),
                )
            readout = readout * heard
        stored_roles = (version.step, *(part.role for part in diagonal.parts), "B", "C")
        return Recurrence(
            name=match.layer,
            family=self.name,
            tensors=tuple(names[role] for role in stored_roles if role in names),
            log_eigenvalues=discrete.log_eigenvalue.ravel(),
            log_gain=(discrete.log_gain + step.parameter.log).ravel(),
            parameters=tuple(part.group(store, names, discrete) for part in step.parts(diagonal)),
            readin=readin,
            readout=readout,
            projections=projections,
            channel=np.repeat(np.arange(step.channels), modes),
            conjugate_pairs=doubled and pairs,
            stable_by_construction=diagonal.stable and step.positive,
            assumptions=(*assumed.sentences, *([BOTH_DIRECTIONS] if both else [])),
        )


def _version(names: Mapping[str, str]) -> Version | None:
    """The first version that a module's tensors make complete."""
    for version in S4D_VERSIONS:
        whole = version.real in names and version.step in names
        # w alone is the name of many things; beside a B it is that of the first S4, whose low-rank
        # part is in B and C.
        alone = version is not S4D_2_DSS or ("C" in names and "B" not in names)
        if whole and alone and (version.imag in names or version is S4D_4):
            return version
    return None


def _within_band(angle: Floats, assumed: Assumed) -> Floats:
    """(n,) 1 for the modes that the output hears, 0 for those past the limit.

    Masked modes have ``Δ |Im A|/(2π) ≥ bandlimit/2``, Δ being that of training.

    Args:
        angle: (n,) Δ Im A.
        assumed: the user's choices.

    Raises:
        UsageError: the limit is not positive.
    """
    text = assumed.choose(BAND_LIMIT, silent=True)
    limit = float(text)
    if not limit > 0:
        raise UsageError(
            f"{text[:40]} is not a positive number",
            where="--assume bandlimit",
            remedy="give S4's bandlimit, e.g. 0.5, or inf",
        )
    return (np.abs(angle) < limit * np.pi).astype(np.float64)


def _projections(
    store: TensorStore,
    names: Mapping[str, str],
    pairs: bool,
    system: Integers,
    shape: tuple[int, ...],
    factor: Floats,
) -> tuple[ProjectionGroup, ...]:
    """B, which the channels of a system share, and C (outputs, n), ``factor`` times the stored."""
    groups: tuple[ProjectionGroup, ...] = ()
    if "B" in names:
        modes = shape[1] // system.size
        scalar = (system[:, None] * modes + np.arange(modes)).ravel()
        groups = stored_parts(store, names["B"], "B", (scalar.size, 1), pairs=pairs, scalar=scalar)
    readout = stored_parts(store, names["C"], "C", shape, pairs=pairs)
    return (
        *groups,
        *(replace(each, derivative=each.derivative * factor[each.column]) for each in readout),
    )


class AnnotatedS4D:
    """``λ = e^{ΔA}``, ``A = min(A_re, -1e-4) + i A_im``, ``γ = (e^{ΔA} - 1)/A``, ``y = Re[C h]``.

    `S4DLayer` (s4/s4d.py), mapped over the channels along the second axis. Its kernel has no B:
    B_re and B_im are stored and never used.
    """

    name = "annotated_s4d"
    title = "S4D of The Annotated S4 (Flax)"
    recognised_by = "A_re and A_im (N, H), C (N, H, 2) and log_step (1, H)"
    equation = "λ = exp(Δ A), A = min(A_re, -1e-4) + i A_im, Δ = exp(log_step)"
    source = "srush/annotated-s4; Gu et al. 2022, arXiv 2206.11893"
    assumptions: tuple[Assumption, ...] = ()

    def find(self, tensors: Mapping[str, TensorSpec]) -> list[Match]:
        """Every diagonal of two axes with a step size and a C."""
        return find_mapped(self.name, tensors, "A_re", "A_im", "C")

    def read(self, store: TensorStore, match: Match, options: ReadOptions) -> Recurrence:
        """Read A, Δ and C.

        Raises:
            TensorError: NaN or inf, or shapes that do not fit together.
        """
        names = match.tensors
        diagonal, step = read_mapped(store, names, "A_re", "A_im", LARGEST_REAL_PART)
        channels, modes = diagonal.values.shape
        discrete = discretise(step.parameter.value * diagonal.values, ZERO_ORDER_HOLD)
        readout = read_pairs(store, names["C"], (modes, channels)).T.reshape(1, -1)
        along_step, *along_rates = step.parts(diagonal)
        scalar = diagonal.parts[0].scalar.ravel()
        return Recurrence(
            name=match.layer,
            family=self.name,
            tensors=tuple(names.values()),
            log_eigenvalues=discrete.log_eigenvalue.ravel(),
            log_gain=(discrete.log_gain + step.parameter.log).ravel(),
            parameters=tuple(
                part.group(store, names, discrete) for part in (*along_rates, along_step)
            ),
            readin=np.ones((scalar.size, 1), dtype=np.complex128),
            readout=readout,
            channel=np.repeat(np.arange(channels), modes),
            stable_by_construction=True,
            projections=(
                *stored_parts(store, names["C"], "C", readout.shape, pairs=True, scalar=scalar),
                *channel_direct_part(store, beside(store, names["C"], "D"), 1, channels),
            ),
        )
