"""S4D, the diagonal S4 of Gu et al. 2022, arXiv 2206.11893."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from memcurse_cli.checkpoints.store import TensorSpec, TensorStore
from memcurse_cli.errors import UsageError
from memcurse_cli.families.assumptions import Assumed
from memcurse_cli.families.bounds import require_eigenvalues
from memcurse_cli.families.family import Assumption, Match, ReadOptions
from memcurse_cli.families.module_names import group_by_module
from memcurse_cli.families.projections import beside, channel_direct_part, stored_parts
from memcurse_cli.families.recurrence import (
    Complexes,
    Floats,
    Integers,
    ParameterGroup,
    ProjectionGroup,
    Recurrence,
)
from memcurse_cli.families.state_space.discretization import (
    BILINEAR,
    METHODS,
    ZERO_ORDER_HOLD,
    DiscreteModes,
    discretise,
    group_through_z,
)
from memcurse_cli.families.state_space.dss import KERNEL_LENGTH, kernel_length, with_softmax
from memcurse_cli.families.state_space.s4.names import (
    BOTH_DIRECTIONS,
    FAST_STEP,
    IMAG_TRANSFORM,
    REAL_TRANSFORM,
    STEP_RESCALE,
    STEP_TRANSFORM,
    Diagonal,
    Step,
    Version,
    read_diagonal,
    read_matrices,
    read_pair_diagonal,
    read_step,
    reads_both_directions,
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

MINIMAL = Version("log_dt", "log_A_real", "A_imag", +1)
# Version 2 stores the diagonal as w where its kernel is that of DSS.
VERSION_2 = Version("log_dt", "log_w_real", "w_imag", +1)
VERSION_2_DSS = Version("log_dt", "w", "w", +1)
VERSION_3 = Version("log_dt", "inv_A_real", "A_imag", +1, (REAL_TRANSFORM,))
VERSION_4 = Version(
    "inv_dt", "A_real", "A_imag", -1, (REAL_TRANSFORM, IMAG_TRANSFORM, STEP_TRANSFORM)
)
_VERSIONS = (MINIMAL, VERSION_2, VERSION_2_DSS, VERSION_3, VERSION_4)
_DEFAULTS = {VERSION_2_DSS: "dss", VERSION_3: BILINEAR}
_ROLES = tuple(
    dict.fromkeys(
        (
            *(role for each in _VERSIONS for role in (each.step, each.real, each.imag)),
            *("B", "C", "P"),
        )
    )
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
        matches = []
        for module, names in group_by_module(tensors, _ROLES).items():
            if _versions(names) and "P" not in names:
                matches.append(Match(module or self.name, names))
        return matches

    def read(self, store: TensorStore, match: Match, options: ReadOptions) -> Recurrence:
        """Read Δ, A, B and C.

        Raises:
            TensorError: NaN or inf, or shapes that do not fit together.
            UsageError: a number that was assumed is out of its range.
        """
        names = match.tensors
        version = _versions(names)[0]
        assumed = Assumed(options)
        method = assumed.choose(
            DISCRETIZATION,
            default=_DEFAULTS.get(version, ZERO_ORDER_HOLD),
            silent=version is MINIMAL,
        )
        if version is VERSION_2_DSS:
            diagonal = read_pair_diagonal(store, names["w"])
        else:
            diagonal = read_diagonal(store, names, version, assumed)
        systems, modes = diagonal.values.shape
        step = read_step(store, names[version.step], version, modes, assumed)
        require_eigenvalues(step.channels * modes, names[version.step])
        system = system_of_channel(systems, step.channels, names[version.real])
        z = (step.parameter.value * diagonal.values[system]).ravel()
        if method == "dss":
            discrete = with_softmax(z, kernel_length(assumed))
        else:
            discrete = discretise(z, method)
        pairs = version.imag in names
        readin, readout = read_matrices(store, names, system, modes, pairs)
        # Every kernel but the softmax's is doubled, and the real one's too.
        doubled = method != "dss"
        factor = 2.0 if doubled and not pairs else 1.0
        heard = _within_band(z.imag / step.rescaled, assumed)
        direct = _direct(store, names)
        both = reads_both_directions(store, direct, readout)
        log_step = np.broadcast_to(step.parameter.log, (step.channels, modes)).ravel()
        return Recurrence(
            name=match.layer,
            family=self.name,
            tensors=tuple(
                names[role] for role in (version.step, *diagonal.stored, "B", "C") if role in names
            ),
            log_eigenvalues=discrete.log_eigenvalue,
            log_gain=discrete.log_gain + log_step,
            parameters=(
                _step_group(store, names, version, step, diagonal.values[system], discrete),
                *_diagonal_groups(store, names, step, diagonal, system, discrete),
            ),
            readin=readin,
            readout=None if readout is None else factor * readout * heard,
            projections=()
            if readout is None or both
            else _projections(store, names, pairs, system, readout.shape, factor * heard, direct),
            channel=np.repeat(np.arange(step.channels), modes),
            conjugate_pairs=doubled and pairs,
            stable_by_construction=diagonal.stable and step.positive,
            assumptions=(*assumed.sentences, *([BOTH_DIRECTIONS] if both else [])),
        )


def _versions(names: Mapping[str, str]) -> list[Version]:
    """The versions that a module's tensors make complete."""
    return [
        version
        for version in _VERSIONS
        if version.real in names
        and version.step in names
        and (version.imag in names or version is VERSION_4)
        # w alone is the name of many things; beside a B it is that of the first S4, whose low-rank
        # part is in B and C.
        and (version is not VERSION_2_DSS or ("C" in names and "B" not in names))
    ]


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


def _direct(store: TensorStore, names: Mapping[str, str]) -> str | None:
    """D of the block around the kernel; version 3 wraps the kernel once more."""
    if "C" not in names:
        return None
    return beside(store, names["C"], "D", above=1) or beside(store, names["C"], "D", above=2)


def _projections(
    store: TensorStore,
    names: Mapping[str, str],
    pairs: bool,
    system: Integers,
    shape: tuple[int, ...],
    factor: Floats,
    direct: str | None,
) -> tuple[ProjectionGroup, ...]:
    """B, which the channels of a system share, C, and the D of the block around the kernel.

    Args:
        store: the checkpoint.
        names: the layer's tensors.
        pairs: B and C are stored as real and imaginary parts.
        system: (channels,) the row of B that each uses.
        shape: (outputs, n), that of C.
        factor: (n,) C over what is stored.
        direct: the tensor of D.
    """
    groups: list[ProjectionGroup] = []
    if "B" in names:
        modes = shape[1] // system.size
        scalar = (system[:, None] * modes + np.arange(modes)).ravel()
        groups += stored_parts(store, names["B"], "B", (scalar.size, 1), pairs=pairs, scalar=scalar)
    groups += [
        replace(group, derivative=group.derivative * factor[group.column])
        for group in stored_parts(store, names["C"], "C", shape, pairs=pairs)
    ]
    return (*groups, *channel_direct_part(store, direct, shape[0], system.size))


def _step_group(
    store: TensorStore,
    names: Mapping[str, str],
    version: Version,
    step: Step,
    rate: Complexes,
    discrete: DiscreteModes,
) -> ParameterGroup:
    """One step size moves all modes of its channel where they share it."""
    parameter = step.parameter
    scalar = np.arange(step.stored.size).reshape(parameter.value.shape)
    return group_through_z(
        version.step,
        names[version.step],
        step.stored,
        store.tensors[names[version.step]].dtype,
        discrete,
        scalar=np.broadcast_to(scalar, rate.shape).ravel(),
        eigenvalue=np.arange(rate.size),
        z_slope=(rate * parameter.slope).ravel(),
        log_step_slope=np.broadcast_to(parameter.log_slope, rate.shape).ravel(),
    )


def _diagonal_groups(
    store: TensorStore,
    names: Mapping[str, str],
    step: Step,
    diagonal: Diagonal,
    system: Integers,
    discrete: DiscreteModes,
) -> list[ParameterGroup]:
    """One entry of A moves a mode of every channel that uses its row."""
    groups = []
    for role, stored in diagonal.stored.items():
        moved_by = [each for each in diagonal.components if each.role == role]
        slopes = [step.parameter.value * each.slope[system] for each in moved_by]
        groups.append(
            group_through_z(
                role,
                names[role],
                stored,
                store.tensors[names[role]].dtype,
                discrete,
                scalar=np.concatenate([each.scalar[system].ravel() for each in moved_by]),
                eigenvalue=np.tile(np.arange(slopes[0].size), len(moved_by)),
                z_slope=np.concatenate([slope.ravel() for slope in slopes]),
            )
        )
    return groups
