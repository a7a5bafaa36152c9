"""Networks whose recurrent matrix is orthogonal or unitary by its parametrisation."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from memcurse_cli.checkpoints.store import TensorSpec, TensorStore
from memcurse_cli.families.dense.dense_layer import ACTIVATION, dense_layer
from memcurse_cli.families.family import Assumption, Layer, LayoutFamily, Match
from memcurse_cli.families.reading import misfit, read_finite, read_real, require_shape
from memcurse_cli.families.recurrence import Complexes, Floats, Recurrence

MAP = Assumption(
    key="orthogonal_map",
    default="matrix_exp",
    choices=("matrix_exp", "cayley", "householder"),
    meaning="the map from the stored matrix to an orthogonal one",
)
# torch.nn.utils.parametrizations.orthogonal and geotorch, on an RNN's own weight or on a linear.
_PARAMETRISED = re.compile(
    r"(?P<module>(?:.*\.)?)parametrizations\.(?P<weight>weight_hh(?:_l\d+)?(?:_reverse)?"
    r"|W_hh|recurrent_kernel)\.original"
)
_LINEAR = re.compile(
    r"(?P<module>(?:.*\.)?)(?P<weight>recurrent_kernel)\.parametrizations\.weight\.original"
)
# expRNN keeps the skew-symmetric matrix's upper triangle, called _A at first, and multiplies from
# the right.
_EXPRNN = re.compile(r"(?P<module>(?:.*\.)?)(?P<weight>recurrent_kernel)\._?A")
_READINS = ("input_kernel.weight",)
Square: TypeAlias = NDArray[Any]
ROUGHLY_ORTHOGONAL = 1e-2
"""How far BᵀB of a half-precision base may be from the identity."""

_COMPLEX = (
    "the matrix is complex and its inputs are taken as real: a unit is read as two real ones, so "
    "that each eigenvalue stands beside its conjugate and each entry of the matrix in two places"
)
_TANGENT = (
    "sensitivities are those of the matrix's entries; a step moves it among the orthogonal "
    "matrices only, so that no eigenvalue can leave the unit circle"
)


class OrthogonalRNN(LayoutFamily):
    """``h[t+1] = φ(Q h[t] + W x[t+1])``, ``Q = B exp(X - X*)`` orthogonal: |λ| = 1 for all.

    X is the triangle that is trained and B a fixed orthogonal base. The Cayley map
    ``(1 + S/2)(1 - S/2)⁻¹`` or Householder reflections may stand for the exponential of
    ``S = X - X*``. In expRNN X is an upper triangle, ``h Q`` is meant, and the Cayley map is
    ``(1 + S)⁻¹(1 - S)``.

    Where X and B are complex, Q is unitary, and S has the imaginary diagonal of X too. The layer
    is then that of the real and imaginary parts of h, whose matrix is orthogonal.
    """

    name = "orthogonal_rnn"
    title = "Orthogonal and unitary RNN (expRNN, torch's and geotorch's parametrisations)"
    recognised_by = (
        "parametrizations.weight_hh_l0.original (H, H), real or complex, beside its 0.base; "
        "recurrent_kernel.A beside recurrent_kernel.base"
    )
    equation = "λ = eig(base exp(X - X*)), |λ| = 1, X the triangle of original or A"
    source = (
        "torch.nn.utils.parametrizations.orthogonal, geotorch, lezcano/expRNN; Lezcano-Casado & "
        "Martínez-Rubio 2019, arXiv 1901.08428"
    )
    assumptions = (MAP, ACTIVATION)

    def find(self, tensors: Mapping[str, TensorSpec]) -> list[Match]:
        """Square matrices under these names, each beside a base of its shape."""
        matches = []
        for name, spec in tensors.items():
            if len(spec.shape) != 2 or spec.shape[0] != spec.shape[1] or not spec.shape[0]:
                continue
            for pattern in (_PARAMETRISED, _LINEAR, _EXPRNN):
                parts = pattern.fullmatch(name)
                if parts is None:
                    continue
                flat = pattern is _EXPRNN
                base = f"{name.rpartition('.')[0]}.base" if flat else f"{name[:-8]}0.base"
                if base not in tensors or tensors[base].shape != spec.shape:
                    continue
                role = "upper" if flat else "lower"
                roles = {role: name, "base": base} | _readin(tensors, parts, spec.shape[0])
                suffix = parts["weight"].partition("weight_hh")[2].lstrip("_")
                layer = ".".join(part for part in (parts["module"].rstrip("."), suffix) if part)
                matches.append(Match(layer or self.name, roles))
        return matches

    def _recurrence(self, layer: Layer) -> Recurrence:
        store, match = layer.store, layer.match
        role = "upper" if "upper" in match.tensors else "lower"
        tensor = match.tensors[role]
        shape = store.tensors[tensor].shape
        size = shape[0]
        # expRNN's own maps are those of a real matrix.
        is_complex = role == "lower" and store.tensors[tensor].dtype.startswith("complex")
        reader = _read_complex if is_complex else read_real
        stored, base = (reader(store, name, shape) for name in (tensor, match.tensors["base"]))
        if np.abs(base.conj().T @ base - np.eye(size)).max() > ROUGHLY_ORTHOGONAL:
            wanted = "unitary" if is_complex else "orthogonal"
            raise misfit(
                f"the base of the parametrisation is not {wanted}",
                match.tensors["base"],
                "another parametrisation may bear these names; export the matrix itself",
            )
        kind = layer.assumed.choose(MAP)
        activation = layer.assumed.choose(ACTIVATION)
        if kind == "householder":
            _require_signs(stored, tensor)
        turned = base @ _turned(stored, kind, upper=role == "upper")
        matrix = turned.T if role == "upper" else turned
        readin: Complexes | None = None
        if "readin" in match.tensors:
            readin = reader(store, match.tensors["readin"], (size, None)).astype(np.complex128)
        if is_complex:  # what it does to real and imaginary parts, one below the other
            matrix = np.block([[matrix.real, -matrix.imag], [matrix.imag, matrix.real]])
            if readin is not None:
                readin = np.concatenate([readin.real, readin.imag]).astype(np.complex128)
        also = (*([_COMPLEX] if is_complex else []), _TANGENT)
        recurrence = dense_layer(
            layer, role, matrix, activation=activation, readin=readin, also=also
        )
        return replace(
            recurrence,
            # What rounding leaves of log|λ| is nothing that decays or grows.
            log_eigenvalues=(1j * recurrence.log_eigenvalues.imag).astype(np.complex128),
            stable_by_construction=True,
            unitary=True,
        )


def _read_complex(store: TensorStore, tensor: str, shape: tuple[int | None, ...]) -> Square:
    """A real or complex tensor of a given shape."""
    require_shape(store, tensor, shape)
    return read_finite(store, tensor).astype(np.complex128)


def _require_signs(stored: Square, tensor: str) -> None:
    """Check the diagonal of Householder reflections, whose signs the diagonal of Q takes."""
    what = None
    if np.iscomplexobj(stored):
        what = "Householder reflections stand for no complex matrix"
    elif np.any(np.abs(np.trunc(np.diagonal(stored))) != 1):
        what = "its diagonal is not of ones and minus ones, as that of Householder reflections is"
    if what:
        raise misfit(what, tensor, "take another --assume orthogonal_map=")


def _readin(tensors: Mapping[str, TensorSpec], parts: re.Match[str], size: int) -> dict[str, str]:
    """The input weight, plain and of the right shape."""
    own = parts["weight"].replace("_hh", "_ih")
    for last in (own, *_READINS):
        name = f"{parts['module']}{last}"
        if name in tensors and len(tensors[name].shape) == 2 and tensors[name].shape[0] == size:
            return {"readin": name}
    return {}


def _turned(stored: Square, kind: str, *, upper: bool) -> Square:
    """The orthogonal or unitary matrix that torch and geotorch make of a lower triangle.

    Or expRNN of an upper one.
    """
    if kind == "householder" and not upper:
        return _householder(stored.real)
    skew = np.triu(stored, 1) if upper else np.tril(stored)
    skew = skew - skew.conj().T
    if kind == "matrix_exp":
        # By the eigenvectors of the Hermitian i S, which keeps it unitary whatever ‖S‖.
        angles, vectors = np.linalg.eigh(1j * skew)
        turned: Square = (vectors * np.exp(-1j * angles)) @ vectors.conj().T
        return turned if np.iscomplexobj(skew) else turned.real
    half, one = (-skew if upper else skew / 2), np.eye(skew.shape[0])
    solved: Square = np.linalg.solve(one - half, one + half)
    return solved


def _householder(stored: Floats) -> Floats:
    """The product of the reflections 1 - τ v vᵀ, v of ones on the diagonal, τ = 2 / ‖v‖²."""
    size = stored.shape[0]
    vectors = np.tril(stored, -1) + np.eye(size)
    turned = np.eye(size)
    for column in range(size):
        vector: Floats = vectors[:, column]
        turned -= np.outer(turned @ vector, 2 * vector / np.sum(vector**2))
    signed: Floats = turned * np.trunc(np.diagonal(stored))
    return signed
