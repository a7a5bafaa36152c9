"""S4 with a diagonal plus low-rank A: Gu, Goel & Ré 2022, arXiv 2111.00396.

The eigenvalues of a diagonal plus low-rank state matrix, and how each parameter moves them.

A state s and its conjugate obey ``s' = w s - P (Qᵀs + Q̄ᵀs̄)``. On ``x = [Re s, Im s]`` that is the
real matrix ``A = W - 2 p qᵀ`` with ``W = [[Re w, -Im w], [Im w, Re w]]``, ``p = [Re P, Im P]`` and
``q = [Re Q, -Im Q]``, whose eigenvalues come in exact conjugate pairs and cost a quarter of the
complex form's. An eigenvalue a with left and right eigenvectors l, r (``l r = 1``) moves by
``l dA r``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from memcurse_cli.checkpoints.store import TensorSpec, TensorStore
from memcurse_cli.errors import TensorError
from memcurse_cli.families.assumptions import Assumed
from memcurse_cli.families.bounds import require_eigenvalues
from memcurse_cli.families.family import Assumption, Match, ReadOptions
from memcurse_cli.families.module_names import group_by_module
from memcurse_cli.families.recurrence import Complexes, Floats, Integers, ParameterGroup, Recurrence
from memcurse_cli.families.state_space.discretization import (
    BILINEAR,
    METHODS,
    DiscreteModes,
    discretise,
    group_through_z,
)
from memcurse_cli.families.state_space.s4.names import (
    FAST_STEP,
    IMAG_TRANSFORM,
    REAL_TRANSFORM,
    STEP_RESCALE,
    STEP_TRANSFORM,
    Step,
    Version,
    as_scalars,
    is_first_version,
    read_diagonal,
    read_pair_diagonal,
    read_pairs,
    read_rows,
    read_step,
    shared_diagonal,
    system_of_channel,
)
from memcurse_cli.theory.linalg.eigendecomposition import eigendecompose

LARGEST_CONDITION = 1e12
"""Of an eigenvalue; past it a derivative has fewer than four digits."""


@dataclass(frozen=True)
class LowRankSpectrum:
    """The eigendecomposition of one matrix per row.

    Attributes:
        values: (rows, 2 modes) eigenvalues, by frequency.
        left_real: (rows, 2 modes, modes) the part of each left eigenvector that meets Re s.
        left_imag: the same for Im s.
        right_real: (rows, 2 modes, modes) likewise of the right eigenvectors, of norm 1.
        right_imag: the same for Im s.
        weight: (rows, 1, 1 or modes) the step sizes that multiply A from the left, or one.
        left_p: (rank, rows, 2 modes) l·p, weighted.
        right_q: (rank, rows, 2 modes) q·r.
        tied: Q is P's conjugate.
    """

    values: Complexes
    left_real: Complexes
    left_imag: Complexes
    right_real: Complexes
    right_imag: Complexes
    weight: Floats
    left_p: Complexes
    right_q: Complexes
    tied: bool

    def along_diagonal(self, slope: Complexes) -> Complexes:
        """(rows, 2 modes, modes) da/dω where ω moves w by ``slope`` (rows, modes) dw/dω."""
        along = self.left_real * self.right_real + self.left_imag * self.right_imag
        across = self.left_imag * self.right_real - self.left_real * self.right_imag
        return self.weight * (slope.real[:, None] * along + slope.imag[:, None] * across)

    def along_p(self) -> Complexes:
        """(rank, rows, 2 modes, modes, 2) da for Re P and Im P; Q follows where it is tied."""
        left = np.stack([self.left_real, self.left_imag], axis=-1) * self.weight[..., None]
        moved = self.right_q[..., None, None] * left
        if self.tied:
            right = np.stack([self.right_real, self.right_imag], axis=-1)
            moved += self.left_p[..., None, None] * right
        return -2 * moved

    def along_q(self) -> Complexes:
        """(rank, rows, 2 modes, modes, 2) da for Re Q and Im Q."""
        right = np.stack([self.right_real, -self.right_imag], axis=-1)
        return -2 * self.left_p[..., None, None] * right

    def along_weight(self) -> Complexes:
        """(rows, 2 modes, modes) da for the step size of each mode.

        ``d(D A)`` for ``D = diag(Δ)`` is ``dD D⁻¹ (D A)``, so that da is ``a/Δ`` times the mode's
        share of ``l r``.
        """
        share = self.left_real * self.right_real + self.left_imag * self.right_imag
        return self.values[..., None] * share / self.weight

    def project(self, readin: Complexes) -> Complexes:
        """(rows, 2 modes) of a vector (rows, modes) on s, and its conjugate, by eigenvectors."""
        weighted = readin[:, None] * self.weight
        # √2: the eigenvectors have norm 1 on [s, s̄], which is √2 times as long as x.
        parts = self.left_real * weighted.real + self.left_imag * weighted.imag
        projected: Complexes = math.sqrt(2) * parts.sum(axis=-1)
        return projected


def decompose(
    diagonal: Complexes, p: Complexes, q: Complexes | None, weight: Floats, device: str, tensor: str
) -> LowRankSpectrum:
    """The eigenvalues and eigenvectors of ``diag(weight) (diag(w) - P Qᵀ)``, conjugates included.

    Args:
        diagonal: (rows, modes) w.
        p: (rank, rows, modes) P.
        q: (rank, rows, modes) Q, or None where it is P's conjugate.
        weight: (rows, 1 or modes).
        device: where to decompose.
        tensor: what to name in an error.

    Raises:
        TensorError: a matrix has no basis of eigenvectors.
    """
    rows, modes = diagonal.shape
    p_real = np.concatenate([p.real, p.imag], axis=-1)
    q_real = p_real if q is None else np.concatenate([q.real, -q.imag], axis=-1)
    matrix = -2 * np.einsum("rsm,rsn->smn", p_real, q_real)
    upper, lower = np.arange(modes), np.arange(modes, 2 * modes)
    matrix[:, upper, upper] += diagonal.real
    matrix[:, lower, lower] += diagonal.real
    matrix[:, upper, lower] -= diagonal.imag
    matrix[:, lower, upper] += diagonal.imag
    doubled = np.broadcast_to(weight, (rows, modes))
    matrix *= np.concatenate([doubled, doubled], axis=-1)[..., None]
    spectrum = eigendecompose(matrix, device)
    # By frequency, so that a small change of a parameter does not reorder them.
    order = np.lexsort((spectrum.values.imag, spectrum.values.real, np.abs(spectrum.values.imag)))
    vectors = np.take_along_axis(spectrum.vectors, order[:, None], axis=-1)
    left = left_eigenvectors(vectors, tensor)
    right = np.swapaxes(vectors, -1, -2)
    weighted = left * np.concatenate([doubled, doubled], axis=-1)[:, None]
    return LowRankSpectrum(
        values=np.take_along_axis(spectrum.values, order, axis=-1),
        left_real=left[..., :modes],
        left_imag=left[..., modes:],
        right_real=right[..., :modes],
        right_imag=right[..., modes:],
        weight=weight[:, None],
        left_p=np.einsum("sim,rsm->rsi", weighted, p_real),
        right_q=np.einsum("sim,rsm->rsi", right, q_real),
        tied=q is None,
    )


def left_eigenvectors(vectors: Complexes, tensor: str) -> Complexes:
    """The left eigenvectors, as rows. The norm of one is its eigenvalue's condition number.

    Args:
        vectors: (..., n, n) the right eigenvectors, as columns of norm 1.
        tensor: what to name in an error.

    Raises:
        TensorError: a matrix has no basis of eigenvectors.
    """
    try:
        left = np.linalg.inv(vectors).astype(np.complex128, copy=False)
    except np.linalg.LinAlgError:
        left = np.full_like(vectors, np.inf)
    if not np.abs(left).max() < LARGEST_CONDITION:
        raise TensorError(
            "the state matrix cannot be diagonalised: its eigenvectors coincide",
            where=tensor,
            remedy="use a checkpoint from another step",
        )
    return left


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
