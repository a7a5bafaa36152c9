"""Elman networks in torch's layout, orthogonal ones, the LMU, and dense linear recurrences."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from memcurse_cli.checkpoints.store import TensorSpec
from memcurse_cli.families.cells.layout import STATE, CellFamily, Variant
from memcurse_cli.families.cells.torch import Lookalikes, hidden_weights, torch_layout
from memcurse_cli.families.dense.dense_layer import ACTIVATION, dense_layer
from memcurse_cli.families.family import Assumption, Family, Layer, Layout, Match, Shapes
from memcurse_cli.families.reading import complex_roles, misfit, shown_shape
from memcurse_cli.families.recurrence import Recurrence

CELLS = Lookalikes("rnn", "torch's RNN", refused=("atr", "antisymmetric_rnn", "sgrn", "miru"))
_EXPORT = "export the layer under torch's names and shapes"
# A continuous-time layer stores its step beside A: it is another family's.
_STEPS = ("log_dt", "inv_dt", "log_step", "dt", "A_log")
_HEAD = ".head"


def _elman(layer: Layer) -> Variant:
    """Its activation, and how its matrices multiply."""
    names, layout = layer.names, torch_layout(STATE)
    assumptions = [*CELLS.choose(layer).sentences]
    shape = layer.shape("weight_hh")
    size = shape[0]
    if shape[1] != size:
        raise misfit(
            f"its shape {shown_shape(shape)} is neither (H, H) of an RNN, (3H, H) of a GRU "
            "nor (4H, H) of an LSTM",
            names["weight_hh"],
            _EXPORT,
        )
    activation = layer.options.assume.get(ACTIVATION.key, ACTIVATION.default)
    if ACTIVATION.key not in layer.options.assume:
        assumptions.append(f"the activation is {activation}")
    readin = layer.shape("weight_ih") if "weight_ih" in names else shape
    if readin[:1] != (size,):
        if readin[1:] != (size,):
            what = f"its shape {shown_shape(readin)} does not fit {size} hidden units"
            raise misfit(what, names["weight_ih"], _EXPORT)
        layout = replace(layout, columns=True)
        assumptions.append("weights multiply from the right, as the input weight's shape says")
    return Variant(activation=activation, assumptions=tuple(assumptions), layout=layout)


# h[t+1] = φ(W_hh h[t] + W_ih x[t+1] + b), linearised: A = W_hh, B = W_ih, up to a slope. Row =
# target, but in a port whose input weight shows by its shape that it multiplies from the right.
# Hidden weights whose shape fits no layer of torch's are found too, to be reported as unreadable.
ELMAN_RNN = CellFamily(
    name="dense_rnn",
    title="Elman RNN (dense)",
    recognised_by="weight_hh_l0, weight_hh or W_hh (H, H)",
    equation="λ = eig(weight_hh)",
    source="torch.nn.RNN; Elman 1990; theory of Zucchet & Orvieto 2024, section 4",
    layouts=(torch_layout(STATE),),
    matches=hidden_weights,
    variant=_elman,
    assumptions=(ACTIVATION, CELLS.assumption),
)


def _states(axes: int, **sides: slice) -> Layout:
    """A of square matrices and no step size; of these axes of B and C one is that of the states."""

    def fits(shapes: Shapes) -> bool:
        square = shapes["A"]
        return (
            len(square) == axes
            and square[-1] == square[-2]
            and any(
                math.prod(square[:-1]) in shapes[role][side]
                for role, side in sides.items()
                if role in shapes
            )
        )

    beside = (*complex_roles("B"), *complex_roles("C"), "D")
    return Layout(("A",), beside, without=_STEPS, fits=fits, complex={"A": False})


class DenseLinearRNN(Family):
    """``h[t+1] = A h[t] + B x[t+1]``, ``y = C h + D x``."""

    name = "dense_linear"
    title = "Dense linear RNN"
    recognised_by = "real A (n, n) beside B (n, inputs), and no step size"
    equation = "λ = eig(A)"
    source = "memcurse_cli.experiments; Zucchet & Orvieto 2024, section 4"

    layouts = (_states(2, B=slice(None), B_re=slice(None), B_real=slice(None)),)

    def _recurrence(self, layer: Layer) -> Recurrence:
        *heads, size, _ = shape = layer.shape("A")
        matrix, units = layer.real("A", shape), slice(None)
        if heads:
            head = int(layer.match.layer.rpartition(_HEAD)[2])
            matrix, units = matrix[head], slice(head * size, (head + 1) * size)
        readin, readout = (layer.matrix(role, math.prod((*heads, size))) for role in ("B", "C"))
        return dense_layer(
            layer,
            "A",
            matrix,
            readin=None if readin is None else readin[units],
            readout=None if readout is None else readout[:, units],
            heads=math.prod(heads),
        )


class LinearSystem(DenseLinearRNN):
    """``x[t+1] = A x[t] + B u[t]``, ``y = C x``: a state-space model of system identification.

    Only looked for by its name, since these letters alone say nothing. B may be missing, as where
    noise alone drives the state; the covariances Q and R of the noise leave λ alone.
    """

    name = "linear_system"
    title = "Linear dynamical system"
    recognised_by = "real A (n, n) beside B (n, inputs) or C (outputs, n), with --family alone"
    source = "Ljung 1999, System Identification; Kalman 1960"
    layouts = (_states(2, B=slice(1), C=slice(-1, None)),)


class BlockDiagonalRNN(DenseLinearRNN):
    """``h_k[t+1] = A_k h_k[t] + B_k x[t+1]``, ``y = Σ_k C_k h_k + D x``: a dense layer per head."""

    name = "block_diagonal"
    title = "Block-diagonal linear RNN"
    recognised_by = "real A (heads, n, n) beside B (heads n, inputs), and no step size"
    equation = "λ = eig(A_k) of each head k"
    source = "memcurse_cli.experiments; Zucchet & Orvieto 2024, section 2.2"
    layouts = (_states(3, B=slice(None)),)

    def find(self, tensors: Mapping[str, TensorSpec]) -> list[Match]:
        """A layer for each head."""
        return [
            replace(match, layer=f"{match.layer}{_HEAD}{head}")
            for match in super().find(tensors)
            for head in range(tensors[match.tensors["A"]].shape[0])
        ]


_MEMORY_ALONE = (
    "λ is that of the memory, A + B e_m; what returns to it through the hidden state is left out:"
    " its path is e_h, W_m and a tanh"
)
_FIXED = "A and B are constants of the unit unless learn_a and learn_b were set; e_m is trained"


class LMU(Family):
    """``m[t] = A m[t-1] + B u[t]``, ``u = e_x x + e_m m[t-1] + e_h h[t-1]``: λ of ``A + B e_m``.

    A and B are the Legendre delay's, discretised once over θ steps and stored as buffers:
    `LMUCell` (src/lmu.py) in hrshtv/pytorch-lmu. The parallel form without e_m is a dense linear
    recurrence. The hidden state ``h[t] = tanh(W_x x + W_h h[t-1] + W_m m[t])`` is not read.
    """

    name = "lmu"
    title = "LMU (Legendre memory unit)"
    recognised_by = "A (n, n) and B (n, 1) beside e_x, e_h, e_m (1, n) and W_m"
    equation = "λ = eig(A + B e_m)"
    source = "pytorch-lmu; Voelker, Kajić & Eliasmith 2019, NeurIPS 32"

    layouts = (Layout(("A", "B", "e_x", "e_h", "e_m", "W_x", "W_h", "W_m")),)

    def _recurrence(self, layer: Layer) -> Recurrence:
        size = layer.shape("A")[-1:] or (None,)
        matrix = layer.real("A", (size[0], size[0]))
        drive = layer.real("B", (size[0], 1))
        feedback = layer.real("e_m", (1, size[0]))
        encoder = layer.real("e_x", (1, None))
        return dense_layer(
            layer,
            "A",
            matrix + drive @ feedback,
            readin=drive @ encoder,
            tensors=[layer.names[role] for role in ("A", "B", "e_x", "e_m")],
            also=(_MEMORY_ALONE, _FIXED),
        )


MAP = Assumption(
    key="orthogonal_map",
    default="matrix_exp",
    choices=("matrix_exp", "cayley", "householder"),
    meaning="the map from the stored matrix to an orthogonal one",
)
# torch.nn.utils.parametrizations.orthogonal and geotorch, on an RNN's own weight or on a linear.
# expRNN keeps the skew matrix's upper triangle, once called _A, and multiplies from the right.
_TRIANGLE = re.compile(
    r"(?P<module>(?:.*\.)?)(?:"
    r"parametrizations\.(?P<weight>weight_hh(?:_l\d+)?(?:_reverse)?|W_hh|recurrent_kernel)\.original"
    r"|recurrent_kernel\.(?:parametrizations\.weight\.original|(?P<upper>_?A)))"
)
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


class OrthogonalRNN(Family):
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
        """As `Family.find`."""
        matches = []
        for name, spec in tensors.items():
            if len(spec.shape) != 2 or spec.shape[0] != spec.shape[1] or not spec.shape[0]:
                continue
            parts = _TRIANGLE.fullmatch(name)
            if parts is None:
                continue
            role, last = ("upper", "base") if parts["upper"] else ("lower", "0.base")
            base = f"{name.rpartition('.')[0]}.{last}"
            if base not in tensors or tensors[base].shape != spec.shape:
                continue
            roles, weight = {role: name, "base": base}, parts["weight"] or "recurrent_kernel"
            # The input weight, plain and of the right shape.
            for beside in (weight.replace("_hh", "_ih"), "input_kernel.weight"):
                readin = f"{parts['module']}{beside}"
                shape = tensors[readin].shape if readin in tensors else ()
                if len(shape) == 2 and shape[0] == spec.shape[0]:
                    roles.setdefault("readin", readin)
            suffix = weight.partition("weight_hh")[2].lstrip("_")
            layer = ".".join(part for part in (parts["module"].rstrip("."), suffix) if part)
            matches.append(Match(layer or self.name, roles))
        return matches

    def _recurrence(self, layer: Layer) -> Recurrence:
        names = layer.names
        role = "upper" if "upper" in names else "lower"
        shape = layer.shape(role)
        dtype = layer.store.tensors[names[role]].dtype
        # expRNN's own maps are those of a real matrix.
        is_complex = role == "lower" and dtype.startswith("complex")

        def read(role: str, shape: tuple[int | None, ...]) -> Square:
            return layer.pairs(role, shape, paired=False) if is_complex else layer.real(role, shape)

        stored, base = read(role, shape), read("base", shape)
        if np.abs(base.conj().T @ base - np.eye(shape[0])).max() > ROUGHLY_ORTHOGONAL:
            wanted = "unitary" if is_complex else "orthogonal"
            what = f"the base of the parametrisation is not {wanted}"
            remedy = "another parametrisation may bear these names; export the matrix itself"
            raise misfit(what, names["base"], remedy)
        kind = layer.choose(MAP)
        activation = layer.choose(ACTIVATION)
        if kind == "householder":
            _require_signs(stored, names[role])
        matrix = base @ _turned(stored, kind, upper=role == "upper")
        if role == "upper":
            matrix = matrix.T
        readin = read("readin", (shape[0], None)) if "readin" in names else None
        if is_complex:  # what it does to real and imaginary parts, one below the other
            matrix = np.block([[matrix.real, -matrix.imag], [matrix.imag, matrix.real]])
            if readin is not None:
                readin = np.concatenate([readin.real, readin.imag])
        recurrence = dense_layer(
            layer,
            role,
            matrix,
            activation=activation,
            readin=readin,
            also=(*([_COMPLEX] if is_complex else []), _TANGENT),
            stable_by_construction=True,
            unitary=True,
        )
        # What rounding leaves of log|λ| is nothing that decays or grows.
        turning = (1j * recurrence.log_eigenvalues.imag).astype(np.complex128)
        return replace(recurrence, log_eigenvalues=turning)


def _require_signs(stored: Square, tensor: str) -> None:
    """Check the diagonal of Householder reflections, whose signs the diagonal of Q takes."""
    what = None
    if np.iscomplexobj(stored):
        what = "Householder reflections stand for no complex matrix"
    elif np.any(np.abs(np.trunc(np.diagonal(stored))) != 1):
        what = "its diagonal is not of ones and minus ones, as that of Householder reflections is"
    if what:
        raise misfit(what, tensor, "take another --assume orthogonal_map=")


def _turned(stored: Square, kind: str, *, upper: bool) -> Square:
    """What torch and geotorch make of a lower triangle, or expRNN of an upper one."""
    if kind == "householder" and not upper:
        # The product of the reflections 1 - τ v vᵀ, v of ones on the diagonal, τ = 2 / ‖v‖².
        one = np.eye(stored.shape[0])
        reflected: Square = one
        for vector in (np.tril(stored.real, -1) + one).T:
            reflected = reflected - np.outer(reflected @ vector, 2 * vector / np.sum(vector**2))
        reflected *= np.trunc(np.diagonal(stored.real))
        return reflected
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
