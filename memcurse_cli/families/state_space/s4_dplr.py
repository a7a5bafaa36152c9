"""S4 with a diagonal plus low-rank A: an eigenvalue a moves by ``l dA r``, ``l r = 1``.

In state-spaces/s4 a state s and its conjugate obey ``s' = w s - P (Qᵀs + Q̄ᵀs̄)``. On
``x = [Re s, Im s]`` that is the real matrix ``A = W - 2 p qᵀ`` with
``W = [[Re w, -Im w], [Im w, Re w]]``, ``p = [Re P, Im P]`` and ``q = [Re Q, -Im Q]``, whose
eigenvalues come in exact conjugate pairs and cost a quarter of the complex form's.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from memcurse_cli.families.dense.dense_layer import left_eigenvectors
from memcurse_cli.families.family import Assumption, Family, Layer, Layout, Shapes
from memcurse_cli.families.reading import IMAGINARY, REAL
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
    read_kernel,
    read_mapped,
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

_PARTS = np.array([1, 1j]).reshape(2, 1, 1, 1)  # what a unit of Re and of Im adds


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
        diagonal, step, systems = read_kernel(layer, version, "w" if first else "P", states=2)
        channels, modes = diagonal.z.shape
        tied = step.stored.shape[1] == 1

        def spread(rows: NDArray[Any]) -> NDArray[Any]:
            """(…, modes, channels, 1) of (…, rows, modes)."""
            used = np.arange(channels) % rows.shape[-2]
            return np.swapaxes(rows[..., used, :], -1, -2)[..., None]

        def read(role: str, leading: int | None) -> Complexes:
            """(rank or 1, rows, modes); version 1 has B before P, of one channel or of all."""
            if not first:
                return layer.pairs(role, (leading, systems, modes))
            rows = 1 if len(layer.shape(role)) == 3 else channels
            both = np.swapaxes(layer.pairs(role, (rows, None, modes)), 0, 1)
            return both[:1] if role == "B" else both[1:]

        diagonal = diagonal.rearranged(spread)
        stored = {"P": read("P", None)}
        p, q = spread(stored["P"]), None
        if "Q" in names:
            stored["Q"] = read("Q", len(stored["P"]))
            q = spread(stored["Q"].conj() if first else stored["Q"])
        # With one Δ per channel the A of a system is decomposed for the first channel that has it,
        # and scaled; otherwise diag(Δ) A is, for every channel.
        solved = slice(systems if tied and not first else channels)
        row = np.arange(channels) % solved.stop
        delta = step.parameter.value
        spectrum = decompose(
            layer,
            diagonal.z[:, solved],
            p[..., solved, :],
            None if q is None else q[..., solved, :],
            weight=spread(np.ones((1, modes)) if tied else delta)[:, solved],
        )
        rate = spectrum.values[row]
        parts = []
        if not tied:
            moved = rate * spectrum.along_diagonal(spread(step.parameter.slope / delta**2))
            index = np.arange(delta.size).reshape(delta.shape)
            parts.append(Part(step.role, step.stored, spread(index), moved))
        for part in diagonal.parts:
            moved = spectrum.along_diagonal(part.z_slope[..., solved, :]).take(row, axis=-2)
            parts.append(replace(part, z_slope=moved))
        for role, values in stored.items():
            moved = spectrum.along_p() if role == "P" else spectrum.along_q(conjugate=first)
            index = 2 * spread(np.arange(values.size).reshape(values.shape))
            scalar = np.stack([index, index + 1])
            parts.append(Part(role, as_scalars(values), scalar, moved.take(row, axis=-2)))
        continuous = Modes(rate, parts, diagonal.stable and step.positive and q is None)
        if tied:
            continuous = step.modes(continuous, first=True)
        readin: Complexes | None = None
        if "B" in names:
            drive = spread(read("B", 1))[0, :, solved]
            readin = spectrum.project(drive)[row].reshape(-1, 1)
        trainable = version in S4_VERSIONS[:2] and not first
        return continuous.recurrence(
            layer,
            discretise(continuous.z, method),
            tensors=tensors,
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
        channels, modes = diagonal.z.shape
        for role in ("P", "B"):
            layer.require(role, (modes, channels))
        # (modes, channels, 1), as P and B are stored.
        diagonal = diagonal.rearranged(lambda rows: rows.T[..., None])
        p, b = (layer.finite(role)[..., None] for role in ("P", "B"))
        spectrum = decompose(layer, diagonal.z, p[None], weight=np.ones(p.shape), conjugates=False)
        parts = [
            replace(each, z_slope=spectrum.along_diagonal(each.z_slope)) for each in diagonal.parts
        ]
        names = (f"P[{REAL}]", f"P[{IMAGINARY}]") if np.iscomplexobj(p) else ("P",)
        for name, stored, moved in zip(names, (p.real, p.imag), spectrum.along_p(), strict=False):
            parts.append(Part("P", stored, parts[0].scalar, moved[0], name=name))
        continuous = step.modes(Modes(spectrum.values, parts, stable=True))
        return continuous.recurrence(
            layer,
            discretise(continuous.z, BILINEAR),
            readin=spectrum.project(b).reshape(-1, 1),
            also=(_EIGENVALUES_ONLY.format(_KERNEL_LENGTH),),
        )


class LowRankSpectrum(NamedTuple):
    """The eigenvectors of one ``A = diag(w) - P Qᵀ`` per row, times a weight from the left.

    Where the state stands beside its conjugate, A has w̄, P̄ and Q̄ in a second half.
    """

    values: Complexes  # (rows, n) eigenvalues
    left: Complexes  # (halves, modes, rows, n) left eigenvectors, times the weight
    right: Complexes  # (halves, modes, rows, n) right ones, of norm 1
    p: NDArray[Any]  # (rank, modes, rows, 1)
    q: NDArray[Any]
    tied: bool  # Q is P's conjugate

    def _halves(self, values: NDArray[Any]) -> NDArray[Any]:
        """(…, halves, modes, rows, 1)."""
        return np.stack([values, values.conj()][: len(self.left)], axis=-4)

    def along_diagonal(self, slope: NDArray[Any]) -> Complexes:
        """(…, modes, rows, n) da/dω where ω moves w by ``slope`` (…, modes, rows, 1)."""
        moved: Complexes = (self.left * self.right * self._halves(slope)).sum(axis=-4)
        return moved

    def along_p(self) -> Complexes:
        """(2, rank, modes, rows, n) da for Re P and Im P, which Q may follow as its conjugate."""
        moved = self._along(self.left, self.right, self.q, _PARTS)
        return moved + self.along_q(conjugate=True) if self.tied else moved

    def along_q(self, *, conjugate: bool) -> Complexes:
        """(2, rank, modes, rows, n) da for the parts of Q, or of what Q is the conjugate of."""
        return self._along(self.right, self.left, self.p, _PARTS.conj() if conjugate else _PARTS)

    def _along(
        self, vectors: Complexes, others: Complexes, factor: NDArray[Any], units: Complexes
    ) -> Complexes:
        met = (others * self._halves(factor)).sum(axis=(-4, -3))
        moved: Complexes = -(vectors * self._halves(units)).sum(axis=-4)[:, None] * met[:, None]
        return moved

    def project(self, readin: NDArray[Any]) -> Complexes:
        """(rows, n) of a vector (modes, rows, 1) and its conjugate, by eigenvectors."""
        projected: Complexes = (self.left * self._halves(readin)).sum(axis=(-4, -3))
        return projected


def decompose(
    layer: Layer,
    w: Complexes,
    p: NDArray[Any],
    q: NDArray[Any] | None = None,
    *,
    weight: Floats,
    conjugates: bool = True,
) -> LowRankSpectrum:
    """That of w (modes, rows, 1), P and Q (rank, modes, rows, 1), and a weight (modes, rows, 1)."""
    modes, rows, _ = w.shape
    other = p.conj() if q is None else q
    diagonal = w[..., 0].T[..., None] * np.eye(modes)
    if conjugates:
        # On [Re s, Im s], whose real matrix has exact conjugate pairs at a quarter of the cost.
        p_parts = np.concatenate([p.real, p.imag], axis=1)
        q_parts = np.concatenate([other.real, -other.imag], axis=1)
        turned = np.block([[diagonal.real, -diagonal.imag], [diagonal.imag, diagonal.real]])
        matrix = turned - 2 * np.einsum("rmsz,rnsz->smn", p_parts, q_parts)
        matrix *= np.tile(weight[..., 0].T, 2)[..., None]
    else:
        matrix = diagonal - np.einsum("rmsz,rnsz->smn", p, other)
    values, vectors = eigendecompose(matrix)
    # By frequency, so that a small change of a parameter does not reorder them.
    keys = (values.imag, values.real, np.abs(values.imag))
    order = np.lexsort(keys if conjugates else keys[1::-1])
    values = np.take_along_axis(values, order, axis=-1)
    vectors = np.take_along_axis(vectors, order[:, None], axis=-1)
    left, right = (
        each.reshape(rows, -1, modes, values.shape[-1]).transpose(1, 2, 0, 3)
        for each in (np.swapaxes(left_eigenvectors(vectors, layer.names["P"]), -1, -2), vectors)
    )
    if conjugates:  # to those of [s, s̄], of the same norm
        turn = np.array([[1, 1j], [1, -1j]]) / math.sqrt(2)
        left, right = np.tensordot(turn.conj(), left, 1), np.tensordot(turn, right, 1)
    return LowRankSpectrum(values, left * weight, right, p, other, q is None)
