"""S4 with a diagonal plus low-rank A: an eigenvalue a moves by ``l dA r``, ``l r = 1``.

In state-spaces/s4 a state s and its conjugate obey ``s' = w s - P (Qᵀs + Q̄ᵀs̄)``. On
``x = [Re s, Im s]`` that is the real matrix ``A = W - 2 p qᵀ`` with
``W = [[Re w, -Im w], [Im w, Re w]]``, ``p = [Re P, Im P]`` and ``q = [Re Q, -Im Q]``, whose
eigenvalues come in exact conjugate pairs and cost a quarter of the complex form's.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from memcurse_cli.families.dense.dense_layer import left_eigenvectors
from memcurse_cli.families.family import Assumption, Family, Layer, Layout, Shapes
from memcurse_cli.families.reading import IMAGINARY, REAL, require_eigenvalues
from memcurse_cli.families.recurrence import Complexes, Floats, Recurrence
from memcurse_cli.families.state_space.discretization import (
    BILINEAR,
    LARGEST_REAL_PART,
    METHODS,
    OF_THE_KERNEL,
    S4_VERSIONS,
    Modes,
    Part,
    as_scalars,
    discretise,
    mapped,
    read_mapped,
    read_step,
    read_version,
    system_of_channel,
)
from memcurse_cli.theory.linalg import eigendecompose

DISCRETIZATION = Assumption(
    "discretization", BILINEAR, METHODS, "from continuous time to steps; S4's kernel is bilinear"
)

_EIGENVALUES_ONLY = (
    "sensitivities are those through the eigenvalues: what a parameter does to the eigenvectors of"
    " A is left out, {}"
)
_NO_READOUT = "so that no readout is given and no Hessian"
_KERNEL_LENGTH = "and the stored C holds the kernel's length, so that there is no Hessian"
_TRAINABLE = "every tensor of A is trained; version 2 keeps them fixed unless told otherwise"


def _is_first_version(shapes: Shapes) -> bool:
    """Whether B and C hold P and Q: C is (H, 1 + rank, N/2, 2), B too or without the first axis."""
    w, b, c = shapes["w"], shapes["B"], shapes["C"]
    return (
        len(shapes["log_dt"]) == 1
        and len(c) == 4
        and c[1] >= 2
        and c[3] == 2
        and b in (c, c[1:])
        and w in ((c[0], *c[2:]), (1, *c[2:]), c[2:])
    )


class S4DPLR(Family):
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
    assumptions = (DISCRETIZATION, *OF_THE_KERNEL)
    layouts = (
        *(
            Layout((each.step, each.real, each.imag, "P"), optional=("Q", "B"))
            for each in S4_VERSIONS
        ),
        Layout(("log_dt", "w", "B", "C"), without=("P",), fits=_is_first_version),
    )

    def _recurrence(self, layer: Layer) -> Recurrence:
        tensors = tuple(layer.names.values())
        names = layer.names = dict(layer.names)
        first = "P" not in names
        if first:
            names |= {"P": names["B"], "Q": names.pop("C")}
        version = next(
            each for each in S4_VERSIONS if {each.step, each.real, each.imag} <= names.keys()
        )
        method = layer.choose(DISCRETIZATION)
        diagonal = read_version(layer, version)
        if first:
            channels = layer.shape("log_dt")[0]
            used = system_of_channel(len(diagonal.values), channels, names["w"])
            diagonal = diagonal.rearranged(lambda rows: rows[..., used, :])
        systems, modes = diagonal.values.shape
        step = read_step(layer, version, modes)
        require_eigenvalues(2 * step.channels * modes, names[version.step])
        system = system_of_channel(systems, step.channels, names["P"])

        def read(role: str, leading: int | None) -> Complexes:
            """(rank or 1, systems, modes); version 1 has B before P, of one channel or of all."""
            if not first:
                return layer.pairs(role, (leading, systems, modes))
            channels = 1 if len(layer.shape(role)) == 3 else systems
            rows = np.swapaxes(layer.pairs(role, (channels, None, modes)), 0, 1)
            return rows[:1] if role == "B" else rows[1:]

        p = read("P", None)
        q = read("Q", len(p)) if "Q" in names else None
        # With one Δ per channel A is decomposed once per system and scaled; otherwise diag(Δ) A
        # is, for every channel: the system of each matrix, the row of each channel, their scales.
        delta, one = step.parameter.value, np.ones((1, 1))
        if step.tied:
            source, row, weight, scale = np.arange(systems), system, one, delta
        else:
            source, row, weight, scale = system, np.arange(step.channels), delta, one
        spectrum = decompose(
            diagonal.values[source],
            p[:, source % p.shape[1]],
            None if q is None else (q.conj() if first else q)[:, source],
            np.broadcast_to(weight, (source.size, weight.shape[1])),
            layer.options.device,
            names["P"],
        )
        rate = spectrum.values[row]
        z = scale * rate
        # (channels, 2 modes, 1): the eigenvalue that an entry for each mode of A moves.
        mode = np.arange(rate.size).reshape(*rate.shape, 1)

        def low_rank(role: str, stored: Complexes, slope: Complexes) -> Part:
            """Of P or Q (rank, systems, modes), by (rank, rows, 2 modes, modes, 2) da/dω."""
            scalar = np.arange(2 * stored.size).reshape(*stored.shape, 2)
            scalar = scalar[:, system % stored.shape[1]][:, :, None]
            moved = scale[..., None, None] * slope[:, row]
            return Part(role, as_scalars(stored), scalar, moved, mode=mode[..., None])

        if step.tied:
            parts = [step.part(rate)]
        else:
            moved = spectrum.along_weight() * step.parameter.slope[:, None]
            scalar = np.arange(step.stored.size).reshape(step.stored.shape)[:, None]
            parts = [Part(step.role, step.stored, scalar, moved, mode=mode)]
        for part in diagonal.parts:
            moved = spectrum.along_diagonal(part.z_slope[..., source, :])[..., row, :, :]
            scalar = part.scalar[..., system, None, :]
            parts.append(replace(part, scalar=scalar, z_slope=scale[..., None] * moved, mode=mode))
        parts.append(low_rank("P", p, spectrum.along_p()))
        if q is not None:
            along_q = spectrum.along_q()
            if first:
                along_q[..., 1] *= -1  # of the conjugate
            parts.append(low_rank("Q", q, along_q))
        readin: Complexes | None = None
        if "B" in names:
            drive = np.broadcast_to(read("B", 1)[0], (systems, modes))
            readin = spectrum.project(drive[source])[row].reshape(-1, 1)
        trainable = version in S4_VERSIONS[:2] and not first
        log_step = step.parameter.log if step.tied else 0.0
        stable = diagonal.stable and step.positive and q is None
        return Modes(z, log_step, parts, stable).recurrence(
            layer,
            discretise(z, method),
            tensors=tensors,
            channels=step.channels,
            readin=readin,
            also=(*([_TRAINABLE] if trainable else []), _EIGENVALUES_ONLY.format(_NO_READOUT)),
        )


class AnnotatedS4(Family):
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
    source = "srush/annotated-s4; Gu et al. 2022, arXiv 2111.00396"
    layouts = (Layout(("Lambda_re", "Lambda_im", "P", "B", "log_step"), fits=mapped),)

    def _recurrence(self, layer: Layer) -> Recurrence:
        diagonal, step = read_mapped(layer, "Lambda_re", "Lambda_im", LARGEST_REAL_PART)
        channels, modes = diagonal.values.shape
        for role in ("P", "B"):
            layer.require(role, (modes, channels))
        stored = layer.finite("P")
        p = stored.T.astype(np.complex128)
        matrix = diagonal.values[:, None] * np.eye(modes) - p[..., None] * p[:, None].conj()
        device = layer.options.device
        values, left, right = _eigensystem(
            matrix, device, layer.names["P"], lambda found: (found.real, found.imag)
        )

        # da = l dA r, for every eigenvalue and every mode: (channels, modes, modes).
        met = np.einsum("hk,hik->hi", p.conj(), right)[..., None] * left
        seen = np.einsum("hik,hk->hi", left, p)[..., None] * right
        along = [
            (each.role, "", each.stored, each.z_slope[:, None] * left * right)
            for each in diagonal.parts
        ]
        if np.iscomplexobj(stored):
            along.append(("P", f"P[{REAL}]", stored.real, -(met + seen)))
            along.append(("P", f"P[{IMAGINARY}]", stored.imag, -1j * (met - seen)))
        else:
            along.append(("P", "", stored, -(met + seen)))
        scalar = diagonal.parts[0].scalar[:, None]
        mode = np.arange(values.size).reshape(*values.shape, 1)
        delta = step.parameter.value
        parts = [
            Part(role, scalars, scalar, delta[..., None] * slope, mode=mode, name=name)
            for role, name, scalars, slope in along
        ]
        z = delta * values
        readin = layer.finite("B").T.astype(np.complex128)
        return Modes(z, step.parameter.log, (*parts, step.part(values)), stable=True).recurrence(
            layer,
            discretise(z, BILINEAR),
            channels=channels,
            readin=np.einsum("hik,hk->hi", left, readin).reshape(-1, 1),
            also=(_EIGENVALUES_ONLY.format(_KERNEL_LENGTH),),
        )


class LowRankSpectrum(Struct, frozen=True):
    """The eigendecomposition of one matrix per row."""

    values: Complexes  # (rows, 2 modes) eigenvalues, by frequency
    # (rows, 2 modes, 2, modes) the left eigenvectors, weighted, and the right ones, of norm 1, by
    # the parts that meet Re s and Im s.
    left: Complexes
    right: Complexes
    weight: Floats  # (rows, 1, 1 or modes) the step sizes that multiply A from the left, or one
    left_p: Complexes  # (rank, rows, 2 modes) l·p
    right_q: Complexes  # (rank, rows, 2 modes) q·r
    tied: bool  # Q is P's conjugate

    @property
    def share(self) -> Complexes:
        """(rows, 2 modes, modes) da for the real part of every mode."""
        share: Complexes = (self.left * self.right).sum(axis=-2)
        return share

    def along_diagonal(self, slope: Complexes) -> Complexes:
        """(…, rows, 2 modes, modes) da/dω where ω moves w by ``slope`` (…, rows, modes)."""
        slope = slope[..., None, :]
        crossed = self.left[..., ::-1, :] * self.right
        return slope.real * self.share + slope.imag * (crossed[..., 0, :] - crossed[..., 1, :])

    def along_p(self) -> Complexes:
        """(rank, rows, 2 modes, modes, 2) da for Re P and Im P; Q follows where it is tied."""
        left, right = np.swapaxes(self.left, -1, -2), np.swapaxes(self.right, -1, -2)
        moved = self.right_q[..., None, None] * left
        if self.tied:
            moved += self.left_p[..., None, None] * right
        return -2 * moved

    def along_q(self) -> Complexes:
        """(rank, rows, 2 modes, modes, 2) da for Re Q and Im Q."""
        right: Complexes = np.swapaxes(self.right, -1, -2) * np.array([1, -1])
        return -2 * self.left_p[..., None, None] * right

    def along_weight(self) -> Complexes:
        """(rows, 2 modes, modes) da for the step size of each mode: a/Δ times its share of l r."""
        return self.values[..., None] * self.share / self.weight / self.weight

    def project(self, readin: Complexes) -> Complexes:
        """(rows, 2 modes) of a vector (rows, modes) on s, and its conjugate, by eigenvectors."""
        readin = readin[:, None]
        # √2: the eigenvectors have norm 1 on [s, s̄], which is √2 times as long as x.
        parts = self.left[..., 0, :] * readin.real + self.left[..., 1, :] * readin.imag
        projected: Complexes = math.sqrt(2) * parts.sum(axis=-1)
        return projected


def decompose(
    diagonal: Complexes, p: Complexes, q: Complexes | None, weight: Floats, device: str, tensor: str
) -> LowRankSpectrum:
    """The eigenvalues and eigenvectors of ``diag(weight) (diag(w) - P Qᵀ)``, conjugates included.

    w is (rows, modes), P and Q (rank, rows, modes), Q None where it is P's conjugate; the weight is
    (rows, 1 or modes), and ``tensor`` what an error names.
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
    doubled = np.tile(np.broadcast_to(weight, (rows, modes)), 2)
    # By frequency, so that a small change of a parameter does not reorder them.
    values, left, right = _eigensystem(
        doubled[..., None] * matrix,
        device,
        tensor,
        lambda found: (found.imag, found.real, np.abs(found.imag)),
    )
    left = left * doubled[:, None]
    return LowRankSpectrum(
        values=values,
        left=left.reshape(rows, 2 * modes, 2, modes),
        right=right.reshape(rows, 2 * modes, 2, modes),
        weight=weight[:, None],
        left_p=np.einsum("sim,rsm->rsi", left, p_real),
        right_q=np.einsum("sim,rsm->rsi", right, q_real),
        tied=q is None,
    )


def _eigensystem(
    matrix: NDArray[Any], device: str, tensor: str, keys: Callable[[Complexes], tuple[Floats, ...]]
) -> tuple[Complexes, Complexes, Complexes]:
    """Eigenvalues in the order of the keys, left eigenvectors and right ones, as rows."""
    values, vectors = eigendecompose(matrix, device)
    order = np.lexsort(keys(values))
    vectors = np.take_along_axis(vectors, order[:, None], axis=-1)
    values = np.take_along_axis(values, order, axis=-1)
    return values, left_eigenvectors(vectors, tensor), np.swapaxes(vectors, -1, -2)
