"""S4 with a diagonal plus low-rank A: Gu, Goel & Ré 2022, arXiv 2111.00396."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from memcurse_cli.checkpoints.store import TensorSpec, TensorStore
from memcurse_cli.recurrences.assumptions import Assumed
from memcurse_cli.recurrences.bounds import require_eigenvalues
from memcurse_cli.recurrences.discretization import (
    BILINEAR,
    METHODS,
    DiscreteModes,
    discretise,
    group_through_z,
)
from memcurse_cli.recurrences.family import Assumption, Match, ReadOptions
from memcurse_cli.recurrences.low_rank import LowRankSpectrum, decompose
from memcurse_cli.recurrences.reading import group_by_module
from memcurse_cli.recurrences.recurrence import (
    Complexes,
    Floats,
    Integers,
    ParameterGroup,
    Recurrence,
)
from memcurse_cli.recurrences.s4 import (
    FAST_STEP,
    IMAG_TRANSFORM,
    REAL_TRANSFORM,
    STEP_RESCALE,
    STEP_TRANSFORM,
    Step,
    Version,
    as_scalars,
    read_diagonal,
    read_pair_diagonal,
    read_pairs,
    read_step,
    system_of_channel,
)
from memcurse_cli.recurrences.s4_first import is_first_version, read_rows, shared_diagonal

DISCRETIZATION = Assumption(
    key="discretization",
    default=BILINEAR,
    choices=METHODS,
    meaning="from continuous time to steps; S4's kernel is bilinear",
)

# Version 2 either stores the diagonal as w and unties Q from P, or keeps it stable (hurwitz).
VERSION_2 = Version("log_dt", "w", "w", +1)
# Version 1 has the names of the former, without P and Q: they are rows of B and C.
VERSION_2_STABLE = Version("log_dt", "log_w_real", "w_imag", +1)
VERSION_3 = Version("log_dt", "inv_w_real", "w_imag", +1, (REAL_TRANSFORM,), relu_offset=0.0)
VERSION_4 = Version(
    "inv_dt", "A_real", "A_imag", -1, (REAL_TRANSFORM, IMAG_TRANSFORM, STEP_TRANSFORM)
)
_VERSIONS = (VERSION_2, VERSION_2_STABLE, VERSION_3, VERSION_4)
_ROLES = tuple(
    dict.fromkeys(
        (
            *(role for each in _VERSIONS for role in (each.step, each.real, each.imag)),
            *("P", "Q", "B", "C"),
        )
    )
)

_EIGENVALUES_ONLY = (
    "sensitivities are those through the eigenvalues: what a parameter does to the eigenvectors of"
    " A is left out, so that no readout is given and no Hessian"
)
_TRAINABLE = "every tensor of A is trained; version 2 keeps them fixed unless told otherwise"


class S4DPLR:
    """``λ`` of the bilinear form of ``A = diag(w) - P Q*`` over a state and its conjugate.

    Per channel, with ``x = [s, s̄]``: ``Ā = (1 - ΔA/2)⁻¹ (1 + ΔA/2)`` has A's eigenvectors, so that
    ``λ = (1 + z/2)/(1 - z/2)`` and ``γ = Δ/(1 - z/2)`` with ``z = Δ a`` for each eigenvalue a of A:
    `SSMKernelDPLR._setup_state` (models/s4/s4.py) in state-spaces/s4. Q is P's conjugate but in
    version 2, and in version 1, where P is ``B[:, 1:]`` and Q the conjugate of ``C[:, 1:]``
    (`SSKernelNPLR`, src/models/sequence/ss/kernel.py). The readin is in the basis of the
    eigenvectors; the stored C is ``C (1 - Ā^L)``, L being the kernel's length.
    """

    name = "s4_dplr"
    title = "S4 (diagonal plus low rank)"
    recognised_by = (
        "P beside A_real, inv_w_real, log_w_real or w, their imag, inv_dt or log_dt; or w, B and C"
        " (H, 1 + rank, N/2, 2) beside log_dt"
    )
    equation = "λ = eigenvalues of (1 + ΔA/2)/(1 - ΔA/2), A = diag(w) - P Q*, conjugates included"
    source = "state-spaces/s4, versions 1 to 4; Gu et al. 2022, arXiv 2111.00396"
    assumptions = (
        DISCRETIZATION,
        REAL_TRANSFORM,
        IMAG_TRANSFORM,
        STEP_TRANSFORM,
        FAST_STEP,
        STEP_RESCALE,
    )

    def find(self, tensors: Mapping[str, TensorSpec]) -> list[Match]:
        """Every diagonal beside a step size and a P, or a B and a C with more rows than one."""
        matches = []
        for module, names in group_by_module(tensors, _ROLES).items():
            if not _versions(names):
                continue
            if "P" in names:
                kept = {role: name for role, name in names.items() if role != "C"}
                matches.append(Match(module or self.name, kept))
            elif is_first_version({role: tensors[name].shape for role, name in names.items()}):
                first = {role: names[role] for role in ("log_dt", "w", "B", "C")}
                matches.append(Match(module or self.name, first))
        return matches

    def read(self, store: TensorStore, match: Match, options: ReadOptions) -> Recurrence:
        """Read Δ, w, P, Q and B, and decompose A.

        Raises:
            TensorError: NaN or inf, shapes that do not fit together, or an A that has no basis of
                eigenvectors.
        """
        names = dict(match.tensors)
        first = "P" not in names
        if first:
            names |= {"P": names["B"], "Q": names.pop("C")}
        version = _versions(names)[0]
        assumed = Assumed(options)
        method = assumed.choose(DISCRETIZATION)
        if first:
            channels = store.tensors[names["log_dt"]].shape[0]
            diagonal = shared_diagonal(read_pair_diagonal(store, names["w"]), channels, names["w"])
        elif version is VERSION_2:
            diagonal = read_pair_diagonal(store, names["w"])
        else:
            diagonal = read_diagonal(store, names, version, assumed)
        systems, modes = diagonal.values.shape
        step = read_step(store, names[version.step], version, modes, assumed)
        require_eigenvalues(2 * step.channels * modes, names[version.step])
        system = system_of_channel(systems, step.channels, names["P"])
        q: Complexes | None
        if first:
            p, q = (read_rows(store, names[role], systems, modes)[1:] for role in ("P", "Q"))
        else:
            p = read_pairs(store, names["P"], (None, systems, modes))
            q = read_pairs(store, names["Q"], p.shape) if "Q" in names else None

        layout = _Layout.of(step, system, systems, modes)
        spectrum = decompose(
            diagonal.values[layout.source],
            p[:, layout.source % p.shape[1]],
            None if q is None else (q.conj() if first else q)[:, layout.source],
            layout.weight,
            options.device,
            names["P"],
        )
        discrete = discretise((layout.scale * spectrum.values[layout.row]).ravel(), method)
        log_step = np.repeat(step.parameter.log, 2 * modes) if step.tied else 0.0

        groups = {
            version.step: (step.stored, [_along_step(step, spectrum, layout)]),
            **{
                role: (
                    stored,
                    [
                        layout.spread(
                            component.scalar[layout.system][:, None],
                            spectrum.along_diagonal(component.slope[layout.source]),
                        )
                        for component in diagonal.components
                        if component.role == role
                    ],
                )
                for role, stored in diagonal.stored.items()
            },
            "P": (as_scalars(p), [layout.spread_low_rank(p, spectrum.along_p())]),
        }
        if q is not None:
            along_q = spectrum.along_q()
            if first:
                along_q[..., 1] *= -1  # of the conjugate
            groups["Q"] = (as_scalars(q), [layout.spread_low_rank(q, along_q)])
        return Recurrence(
            name=match.layer,
            family=self.name,
            tensors=tuple(match.tensors.values()),
            log_eigenvalues=discrete.log_eigenvalue,
            log_gain=discrete.log_gain + log_step,
            parameters=tuple(
                _group(store, names, role, stored, discrete, entries)
                for role, (stored, entries) in groups.items()
            ),
            readin=_read_readin(store, names, spectrum, layout, systems, first=first),
            channel=np.repeat(np.arange(step.channels), 2 * modes),
            stable_by_construction=diagonal.stable and step.positive and q is None,
            assumptions=(
                *assumed.sentences,
                *([_TRAINABLE] if version in (VERSION_2, VERSION_2_STABLE) and not first else []),
                _EIGENVALUES_ONLY,
            ),
        )


@dataclass(frozen=True)
class _Entries:
    """Where and how much: index of the scalar, of the eigenvalue, dz/dω and d log Δ/dω."""

    scalar: Integers
    eigenvalue: Integers
    z_slope: Complexes
    log_step_slope: Floats | float = 0.0


@dataclass(frozen=True)
class _Layout:
    """Which matrix is decomposed for which channel.

    With one Δ per channel A is decomposed once per system and scaled; otherwise ``diag(Δ) A`` is
    decomposed for every channel.

    Attributes:
        system: (channels,) the row of w, P and B that a channel uses.
        source: (rows,) the system of each decomposed matrix.
        row: (channels,) the decomposed matrix of each channel.
        weight: (rows, 1 or modes) what multiplies A from the left.
        scale: (channels, 1) what multiplies its eigenvalues.
        modes: N/2.
    """

    system: Integers
    source: Integers
    row: Integers
    weight: Floats
    scale: Floats
    modes: int

    @classmethod
    def of(cls, step: Step, system: Integers, systems: int, modes: int) -> _Layout:
        """The layout that the step sizes ask for."""
        if step.tied:
            ones = np.ones((systems, 1))
            return cls(system, np.arange(systems), system, ones, step.parameter.value, modes)
        every = np.arange(step.channels)
        ones = np.ones((step.channels, 1))
        return cls(system, system, every, step.parameter.value, ones, modes)

    def eigenvalue(self) -> Integers:
        """(channels, 2 modes, 1) index of every eigenvalue."""
        shape = (self.system.size, 2 * self.modes, 1)
        return np.arange(self.system.size * 2 * self.modes).reshape(shape)

    def spread(self, scalar: Integers, slope: Complexes) -> _Entries:
        """Entries from (channels, 1, modes) scalars and (rows, 2 modes, modes) da/dω."""
        z_slope = self.scale[..., None] * slope[self.row]
        return _Entries(
            np.broadcast_to(scalar, z_slope.shape).ravel(),
            np.broadcast_to(self.eigenvalue(), z_slope.shape).ravel(),
            z_slope.ravel(),
        )

    def spread_low_rank(self, stored: Complexes, slope: Complexes) -> _Entries:
        """Entries from P (rank, systems, modes) and (rank, rows, 2 modes, modes, 2) da/dω."""
        z_slope = self.scale[..., None, None] * slope[:, self.row]
        scalar = np.arange(2 * stored.size).reshape(*stored.shape, 2)
        scalar = scalar[:, self.system % stored.shape[1]][:, :, None]
        return _Entries(
            np.broadcast_to(scalar, z_slope.shape).ravel(),
            np.broadcast_to(self.eigenvalue()[..., None], z_slope.shape).ravel(),
            z_slope.ravel(),
        )


def _along_step(step: Step, spectrum: LowRankSpectrum, layout: _Layout) -> _Entries:
    """One Δ scales all eigenvalues of its channel; one per mode moves each by its share."""
    parameter = step.parameter
    if step.tied:
        eigenvalue = layout.eigenvalue()[..., 0]
        return _Entries(
            np.repeat(np.arange(step.channels), 2 * layout.modes),
            eigenvalue.ravel(),
            (spectrum.values[layout.row] * parameter.slope).ravel(),
            np.repeat(parameter.log_slope, 2 * layout.modes),
        )
    scalar = np.arange(step.stored.size).reshape(parameter.value.shape)
    return layout.spread(scalar[:, None], spectrum.along_weight() * parameter.slope[:, None])


def _group(
    store: TensorStore,
    names: Mapping[str, str],
    role: str,
    values: Floats,
    discrete: DiscreteModes,
    entries: list[_Entries],
) -> ParameterGroup:
    return group_through_z(
        role,
        names[role],
        values,
        store.tensors[names[role]].dtype,
        discrete,
        scalar=np.concatenate([each.scalar for each in entries]),
        eigenvalue=np.concatenate([each.eigenvalue for each in entries]),
        z_slope=np.concatenate([each.z_slope for each in entries]),
        log_step_slope=entries[0].log_step_slope,
    )


def _versions(names: Mapping[str, str]) -> list[Version]:
    """The versions that a module's tensors make complete."""
    return [
        version
        for version in _VERSIONS
        if all(role in names for role in (version.step, version.real, version.imag))
    ]


def _read_readin(
    store: TensorStore,
    names: Mapping[str, str],
    spectrum: LowRankSpectrum,
    layout: _Layout,
    systems: int,
    *,
    first: bool,
) -> Complexes | None:
    """B on the eigenvectors, (n, 1)."""
    if "B" not in names:
        return None
    if first:
        readin = read_rows(store, names["B"], systems, layout.modes)[0]
        readin = np.broadcast_to(readin, (systems, layout.modes))
    else:
        readin = read_pairs(store, names["B"], (1, systems, layout.modes))[0]
    return spectrum.project(readin[layout.source])[layout.row].reshape(-1, 1)
