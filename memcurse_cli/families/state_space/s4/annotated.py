"""S4 and S4D in Flax, as The Annotated S4 (srush/annotated-s4) writes them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from memcurse_cli.checkpoints.store import TensorSpec, TensorStore
from memcurse_cli.families.family import Assumption, Match, ReadOptions
from memcurse_cli.families.module_names import group_by_module
from memcurse_cli.families.projections import (
    IMAGINARY,
    REAL,
    beside,
    channel_direct_part,
    stored_parts,
)
from memcurse_cli.families.reading import read_finite, read_real, require_shape
from memcurse_cli.families.recurrence import Complexes, Floats, ParameterGroup, Recurrence
from memcurse_cli.families.state_space.discretization import (
    BILINEAR,
    ZERO_ORDER_HOLD,
    DiscreteModes,
    PositiveParameter,
    apply_transform,
    discretise,
    group_through_z,
)
from memcurse_cli.families.state_space.s4.dplr import left_eigenvectors
from memcurse_cli.families.state_space.s4.names import read_pairs
from memcurse_cli.theory.linalg.eigendecomposition import eigendecompose

LARGEST_REAL_PART = -1e-4

_SOURCE = "srush/annotated-s4; Gu et al. 2022, arXiv "
_EIGENVALUES_ONLY = (
    "sensitivities are those through the eigenvalues: what a parameter does to the eigenvectors of"
    " A is left out, and the stored C holds the kernel's length, so that there is no Hessian"
)


@dataclass(frozen=True)
class _Rates:
    """The diagonal of A and the step size, one layer per channel: stored as (N, H) and (1, H).

    Attributes:
        real: (modes, channels) as stored.
        imag: (modes, channels).
        free: (channels, modes) whether the real part follows its parameter, 0 or 1.
        values: (channels, modes) the diagonal.
        logarithm: (channels,) as stored.
        step: (channels, 1) Δ.
    """

    real: Floats
    imag: Floats
    free: Floats
    values: Complexes
    logarithm: Floats
    step: PositiveParameter


class AnnotatedS4D:
    """``λ = e^{ΔA}``, ``A = min(A_re, -1e-4) + i A_im``, ``γ = (e^{ΔA} - 1)/A``, ``y = Re[C h]``.

    `S4DLayer` (s4/s4d.py), mapped over the channels along the second axis. Its kernel has no B:
    B_re and B_im are stored and never used.
    """

    name = "annotated_s4d"
    title = "S4D of The Annotated S4 (Flax)"
    recognised_by = "A_re and A_im (N, H), C (N, H, 2) and log_step (1, H)"
    equation = "λ = exp(Δ A), A = min(A_re, -1e-4) + i A_im, Δ = exp(log_step)"
    source = f"{_SOURCE}2206.11893"
    assumptions: tuple[Assumption, ...] = ()

    def find(self, tensors: Mapping[str, TensorSpec]) -> list[Match]:
        """Every diagonal of two axes with a step size and a C."""
        return _find(self.name, tensors, ("A_re", "A_im", "C", "log_step"))

    def read(self, store: TensorStore, match: Match, options: ReadOptions) -> Recurrence:
        """Read A, Δ and C.

        Raises:
            TensorError: NaN or inf, or shapes that do not fit together.
        """
        names = match.tensors
        rates = _read_rates(store, names, "A_re", "A_im")
        channels, modes = rates.values.shape
        discrete = discretise((rates.step.value * rates.values).ravel(), ZERO_ORDER_HOLD)
        readout = read_pairs(store, names["C"], (modes, channels)).T.reshape(1, -1)
        scalar = _scalars(rates).ravel()
        projections = (
            *stored_parts(store, names["C"], "C", readout.shape, pairs=True, scalar=scalar),
            *channel_direct_part(store, beside(store, names["C"], "D"), 1, channels),
        )
        along = rates.step.value * np.ones(modes)
        slopes: tuple[tuple[str, Floats, Complexes], ...] = (
            ("A_re", rates.real, (rates.free * along).astype(np.complex128)),
            ("A_im", rates.imag, np.asarray(1j * along)),
        )
        return Recurrence(
            name=match.layer,
            family=self.name,
            tensors=tuple(names.values()),
            log_eigenvalues=discrete.log_eigenvalue,
            log_gain=discrete.log_gain + np.repeat(rates.step.log, modes),
            parameters=(
                *(
                    group_through_z(
                        role,
                        names[role],
                        values.ravel(),
                        store.tensors[names[role]].dtype,
                        discrete,
                        scalar=scalar,
                        eigenvalue=np.arange(scalar.size),
                        z_slope=slope.ravel(),
                    )
                    for role, values, slope in slopes
                ),
                _step_group(store, names, rates, rates.values, discrete),
            ),
            readin=np.ones((scalar.size, 1), dtype=np.complex128),
            readout=readout,
            channel=np.repeat(np.arange(channels), modes),
            stable_by_construction=True,
            projections=projections,
        )


class AnnotatedS4:
    """``λ = (1 + Δa/2)/(1 - Δa/2)``, a the eigenvalues of ``A = diag(Λ) - P P*``, per channel.

    `S4Layer` (s4/s4.py), mapped over the channels along the second axis, with
    ``Λ = min(Lambda_re, -1e-4) + i Lambda_im``. All N states are stored, none is a conjugate. The
    readin is in the basis of the eigenvectors.
    """

    name = "annotated_s4"
    title = "S4 of The Annotated S4 (Flax)"
    recognised_by = "Lambda_re and Lambda_im (N, H), P, B and log_step (1, H)"
    equation = (
        "λ = eigenvalues of (1 + ΔA/2)/(1 - ΔA/2), A = diag(Λ) - P P*,"
        " Λ = min(Lambda_re, -1e-4) + i Lambda_im, Δ = exp(log_step)"
    )
    source = f"{_SOURCE}2111.00396"
    assumptions: tuple[Assumption, ...] = ()

    def find(self, tensors: Mapping[str, TensorSpec]) -> list[Match]:
        """Every diagonal of two axes with a P, a B and a step size."""
        return _find(self.name, tensors, ("Lambda_re", "Lambda_im", "P", "B", "log_step"))

    def read(self, store: TensorStore, match: Match, options: ReadOptions) -> Recurrence:
        """Read Λ, Δ, P and B, and decompose A.

        Raises:
            TensorError: NaN or inf, shapes that do not fit together, or an A that has no basis of
                eigenvectors.
        """
        names = match.tensors
        rates = _read_rates(store, names, "Lambda_re", "Lambda_im")
        channels, modes = rates.values.shape
        for role in ("P", "B"):
            require_shape(store, names[role], (modes, channels))
        p = read_finite(store, names["P"])
        low_rank = p.T.astype(np.complex128)
        matrix = (
            rates.values[:, None] * np.eye(modes) - low_rank[..., None] * low_rank[:, None].conj()
        )
        values, left, right = _decompose(matrix, options.device, names["P"])
        discrete = discretise((rates.step.value * values).ravel(), BILINEAR)

        # da = l dA r, for every eigenvalue and every mode: (channels, modes, modes).
        share = left * right
        met = np.einsum("hk,hik->hi", low_rank.conj(), right)[..., None] * left
        seen = np.einsum("hik,hk->hi", left, low_rank)[..., None] * right
        slopes: list[tuple[str, str, Floats, Complexes]] = [
            ("Lambda_re", "Lambda_re", rates.real, rates.free[:, None] * share),
            ("Lambda_im", "Lambda_im", rates.imag, 1j * share),
        ]
        if np.iscomplexobj(p):
            slopes += [
                ("P", f"P[{REAL}]", p.real.copy(), -(met + seen)),
                ("P", f"P[{IMAGINARY}]", p.imag.copy(), -1j * (met - seen)),
            ]
        else:
            slopes.append(("P", "P", p, -(met + seen)))
        scalar = np.broadcast_to(_scalars(rates)[:, None], share.shape).ravel()
        eigenvalue = np.repeat(np.arange(values.size), modes)
        readin = read_finite(store, names["B"]).T.astype(np.complex128)
        return Recurrence(
            name=match.layer,
            family=self.name,
            tensors=tuple(names.values()),
            log_eigenvalues=discrete.log_eigenvalue,
            log_gain=discrete.log_gain + np.repeat(rates.step.log, modes),
            parameters=(
                *(
                    group_through_z(
                        name,
                        names[role],
                        stored.ravel(),
                        store.tensors[names[role]].dtype,
                        discrete,
                        scalar=scalar,
                        eigenvalue=eigenvalue,
                        z_slope=(rates.step.value[..., None] * slope).ravel(),
                    )
                    for role, name, stored, slope in slopes
                ),
                _step_group(store, names, rates, values, discrete),
            ),
            readin=np.einsum("hik,hk->hi", left, readin).reshape(-1, 1),
            channel=np.repeat(np.arange(channels), modes),
            stable_by_construction=True,
            assumptions=(_EIGENVALUES_ONLY,),
        )


def _find(family: str, tensors: Mapping[str, TensorSpec], roles: tuple[str, ...]) -> list[Match]:
    """Modules with all roles, whose first is (N, H) and whose step size is (1, H)."""
    matches = []
    for module, names in group_by_module(tensors, roles).items():
        if names.keys() < set(roles):
            continue
        shape = tensors[names[roles[0]]].shape
        if len(shape) == 2 and tensors[names["log_step"]].shape == (1, shape[1]):
            matches.append(Match(module or family, names))
    return matches


def _read_rates(store: TensorStore, names: Mapping[str, str], re: str, im: str) -> _Rates:
    """The diagonal, held below -1e-4, and Δ.

    Raises:
        TensorError: NaN or inf, or shapes that do not fit together.
    """
    real = read_real(store, names[re], (None, None))
    imag = read_real(store, names[im], real.shape)
    logarithm = read_real(store, names["log_step"], (1, real.shape[1])).ravel()
    values = np.minimum(real, LARGEST_REAL_PART) + 1j * imag
    free = (real < LARGEST_REAL_PART).T.astype(np.float64)
    step = apply_transform(logarithm[:, None], "exp")
    return _Rates(real, imag, free, values.T.astype(np.complex128), logarithm, step)


def _scalars(rates: _Rates) -> np.ndarray[tuple[int, ...], np.dtype[np.intp]]:
    """(channels, modes) index into tensors that are stored as (N, H)."""
    return np.arange(rates.real.size).reshape(rates.real.shape).T


def _step_group(
    store: TensorStore,
    names: Mapping[str, str],
    rates: _Rates,
    values: Complexes,
    discrete: DiscreteModes,
) -> ParameterGroup:
    """One Δ moves all modes of its channel."""
    return group_through_z(
        "log_step",
        names["log_step"],
        rates.logarithm,
        store.tensors[names["log_step"]].dtype,
        discrete,
        scalar=np.repeat(np.arange(rates.logarithm.size), values.shape[1]),
        eigenvalue=np.arange(values.size),
        z_slope=(rates.step.value * values).ravel(),
        log_step_slope=1.0,
    )


def _decompose(
    matrix: Complexes, device: str, tensor: str
) -> tuple[Complexes, Complexes, Complexes]:
    """Eigenvalues by frequency, and left and right eigenvectors as rows.

    Raises:
        TensorError: a matrix has no basis of eigenvectors.
    """
    spectrum = eigendecompose(matrix, device)
    order = np.lexsort((spectrum.values.real, spectrum.values.imag))
    vectors = np.take_along_axis(spectrum.vectors, order[:, None], axis=-1)
    return (
        np.take_along_axis(spectrum.values, order, axis=-1),
        left_eigenvectors(vectors, tensor),
        np.swapaxes(vectors, -1, -2),
    )
