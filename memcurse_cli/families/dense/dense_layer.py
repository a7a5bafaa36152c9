"""A dense recurrence from its matrices; networks in continuous time: leaky, of low rank, coRNN."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from memcurse_cli.checkpoints.store import TensorSpec
from memcurse_cli.families.family import Assumption, Family, Layer, Layout, Match, Shapes
from memcurse_cli.families.reading import (
    group_by_module,
    log_of_eigenvalues,
    misfit,
    require_order,
    shown_shape,
    split_name,
)
from memcurse_cli.families.recurrence import Complexes, DenseDynamics, Floats, Recurrence
from memcurse_cli.theory.linalg import eigendecompose

ACTIVATION = Assumption(
    key="activation",
    default="tanh",
    choices=("tanh", "relu", "linear"),
    meaning="the activation of an Elman network, linearised",
)


LARGEST_CONDITION = 1e12
"""Of an eigenvalue; past it a derivative has fewer than four digits."""


def left_eigenvectors(
    vectors: Complexes,
    tensor: str,
    reason: str = "the state matrix cannot be diagonalised: its eigenvectors coincide",
) -> Complexes:
    """The left eigenvectors, as rows, of right ones (..., n, n), as columns of norm 1.

    The norm of one is its eigenvalue's condition number; where a matrix has no basis of
    eigenvectors, ``reason`` says so in a TensorError.
    """
    try:
        left = np.linalg.inv(vectors).astype(np.complex128, copy=False)
    except np.linalg.LinAlgError:
        left = np.full_like(vectors, np.inf)
    if not np.abs(left).max() < LARGEST_CONDITION:
        raise misfit(reason, tensor, "use a checkpoint from another step")
    return left


def dense_layer(
    layer: Layer,
    role: str,
    matrix: Floats,
    *,
    activation: str = "linear",
    readin: Floats | Complexes | None = None,
    scale: float = 1.0,
    bias: Floats | None = None,
    heads: int = 1,
    **fields: Any,
) -> Recurrence:
    """``h[t+1] = A h[t] + B x[t+1]`` with the eigenvalues of A, which comes from a role's tensor.

    B (n, inputs) and a C (outputs, n) stay in the coordinates of h, not of the eigenvectors; the
    other arguments are those of `DenseDynamics`, and what else `Layer.recurrence` takes. Raises a
    TensorError where A is not square, or larger than any that is decomposed.
    """
    tensor = layer.names[role]
    if matrix.shape[0] != matrix.shape[1]:
        raise misfit(
            f"its shape {shown_shape(layer.shape(role))} is that of no recurrent matrix", tensor
        )
    require_order(matrix.shape[0], tensor)
    values, vectors = eigendecompose(matrix)
    dense = DenseDynamics(
        matrix=matrix,
        tensor=tensor,
        dtype=layer.store.tensors[tensor].dtype,
        eigenvectors=vectors,
        activation=activation,
        scale=scale,
        bias=bias,
        heads=heads,
    )
    return layer.recurrence(
        log_of_eigenvalues(values),
        (),
        readin=None if readin is None else readin.astype(np.complex128, copy=False),
        dense=dense,
        **fields,
    )


LEAK = Assumption(
    key="alpha",
    default="0.1",
    meaning="α = dt/τ of a leaky rate network, a number in (0, 1]",
    tensors=("alpha", "leak", "leak_rate", "dt/tau"),
)
_UNKNOWN_ACTIVATION = "the activation is taken as a ReLU, as in pycog: these names do not tell it"


class _Naming(NamedTuple):
    """What a library calls the weights of a rate network."""

    recurrent: str  # W (H, H), row = target
    readin: str  # W_in (H, inputs), or (inputs, H) where it multiplies from the right
    others: tuple[str, ...]  # what else is read, or known to leave λ alone
    activation: str = "relu"
    from_right: bool = False
    leak: str | None = None  # the library's default, where it is not that of `LEAK`
    sentence: str = ""  # what is assumed of its files
    loose: bool = False  # a W_in of another shape is found too, and reported as unreadable

    def fits(self, shapes: Shapes) -> bool:
        """Whether W is square and W_in has its width."""
        square, readin = shapes[self.recurrent], shapes[self.readin]
        side = slice(1, None) if self.from_right else slice(1)
        fitting = self.loose or readin[side] == square[side]
        return len(square) == 2 and square[0] == square[1] and fitting


_PSYCHRNN = ("rec_connectivity", "input_connectivity", "Dale_rec", "W_out")
_NAMINGS = (
    _Naming("W_rec", "W_in", _PSYCHRNN, loose=True),
    _Naming("wrec", "wi", ("si", "wo"), "tanh", from_right=True, leak="0.2"),  # low_rank_rnns
    _Naming("Wrec", "Win", ("Wout",), sentence=_UNKNOWN_ACTIVATION),
)


class LeakyRNN(Family):
    """``s[t+1] = (1-α) s[t] + α (W φ(s[t]) + W_in x[t+1] + b)``, linearised with slope 1.

    ``A = (1-α) I + α W`` with ``W = W_rec ∘ rec_connectivity``, row = target, and B = α W_in. Under
    Dale's law, which shows in a ``Dale_rec`` with a negative entry, ``W = |W_rec ∘ M| Dale_rec``.
    α is one number, which few files store. low_rank_rnns has W as ``wrec`` and W_inᵀ as
    ``diag(si) wi``; pycog and many a .npz have ``Wrec`` and ``Win``.
    """

    name = "leaky_rnn"
    title = "Leaky rate RNN (dense)"
    recognised_by = (
        "W_rec or Wrec (H, H) beside W_in or Win (H, inputs); or wrec (H, H) beside wi (inputs, H)"
    )
    equation = "λ = eig((1-α) I + α W_rec ∘ rec_connectivity)"
    source = (
        "psychrnn.backend.models.basic, xjwanglab/pycog; Ehrlich et al. 2021; Song, Yang & Wang "
        "2016; adrian-valente/lowrank_inference"
    )
    assumptions = (LEAK,)

    layouts = tuple(
        Layout((each.recurrent, each.readin), (*each.others, *LEAK.roles), fits=each.fits)
        for each in _NAMINGS
    )

    def _recurrence(self, layer: Layer) -> Recurrence:
        names = layer.names
        naming = next(each for each in _NAMINGS if each.recurrent in names)
        size = layer.shape(naming.recurrent)[0]
        weight = layer.real(naming.recurrent, (size, size))
        from_right = naming.from_right
        readin = layer.real(naming.readin, (None, size) if from_right else (size, None))
        readin = readin.T if from_right else readin
        if "si" in names:
            readin = readin * layer.real("si", (readin.shape[1],))
        if "rec_connectivity" in names:
            weight = weight * layer.real("rec_connectivity", weight.shape)
        if "input_connectivity" in names:
            readin = readin * layer.real("input_connectivity", readin.shape)
        if "Dale_rec" in names:
            dale = layer.real("Dale_rec", weight.shape)
            if (dale < 0).any():
                weight = np.abs(weight) @ dale
        leak = layer.positive(LEAK, most=1, default=naming.leak)
        return dense_layer(
            layer,
            naming.recurrent,
            (1 - leak) * np.eye(size) + leak * weight,
            activation=naming.activation,
            readin=leak * readin,
            scale=leak,
            also=(naming.sentence,) if naming.sentence else (),
        )


CONNECTIVITY = Assumption(
    key="connectivity",
    default="mean",
    choices=("mean", "sum"),
    meaning="whether a low-rank network's connectivity is m nᵀ / N or m nᵀ",
)
_DEFECTIVE = "the overlap of m and n cannot be diagonalised"
_LINEARISED = "the activation is taken with slope 1, which tanh has at the zero state"


def _factors_fit(shapes: Shapes) -> bool:
    m, n, readin, readout = (shapes[role] for role in ("m", "n", "wi", "wo"))
    return (
        m == n
        and len(m) == 2
        and 0 < m[1] < m[0]
        and readin[1:] == m[:1]
        and len(readout) == 2
        and readout[0] == m[0]
    )


class LowRankRNN(Family):
    """``h[t+1] = (1-α) h[t] + α (m nᵀ φ(h[t]) / N + W x[t+1])``, m and n of shape (N, rank).

    With ``J = nᵀ m / N``, r right and l left eigenvectors of J (l r = 1) and μ its eigenvalues,
    ``λ = 1 - α + α μ``; the other N - rank eigenvalues are 1 - α, which no parameter moves.
    ``dλ/dm_ia = α (l nᵀ)_i r_a / N`` and ``dλ/dn_ia = α l_a (m r)_i / N``. Only the eigenvalues'
    motion is counted, not that of the eigenvectors.
    """

    name = "low_rank_rnn"
    title = "Low-rank rate RNN"
    recognised_by = "m and n (N, rank) beside wi (inputs, N) and wo (N, outputs), as low_rank_rnns"
    equation = "λ = 1 - α + α eig(nᵀ m / N), and 1 - α"
    source = (
        "adrian-valente/lowrank_inference; Mastrogiuseppe & Ostojic 2018, arXiv 1711.09672; "
        "Dubreuil et al. 2022"
    )
    assumptions = (LEAK, CONNECTIVITY)

    layouts = (Layout(("m", "n", "wi", "wo"), LEAK.roles, fits=_factors_fit),)

    def _recurrence(self, layer: Layer) -> Recurrence:
        m, n = (layer.real(role, (None, None)) for role in "mn")
        units, rank = m.shape
        leak = layer.positive(LEAK, most=1, default="0.2")
        scale = leak / units if layer.choose(CONNECTIVITY) == "mean" else leak
        values, right = np.linalg.eig(scale * (n.T @ m))
        order = np.lexsort((values.imag, values.real))
        values, right = values[order], right[:, order]
        left = left_eigenvectors(right, layer.names["m"], _DEFECTIVE)
        eigenvalues = np.concatenate([1 - leak + values, np.full(units - rank, 1 - leak)])
        # (k, i, a): eigenvalue, unit, rank.
        moved = np.arange(rank)[:, None, None]
        along_m = scale * np.einsum("kb,ib,ak->kia", left, n, right)
        along_n = scale * np.einsum("ka,ib,bk->kia", left, m, right)
        return layer.recurrence(
            log_of_eigenvalues(eigenvalues),
            (
                layer.group("m", m, along_m, eigenvalue=moved),
                layer.group("n", n, along_n, eigenvalue=moved),
            ),
            also=(_LINEARISED,),
            activation="tanh",
        )


STEP = Assumption("dt", "0.042", (), "the time step of a coRNN", tensors=("dt",))
FREQUENCY = Assumption(
    key="gamma",
    default="2.7",
    meaning="γ of a coRNN, the squared frequency that every oscillator has beside W",
    tensors=("gamma",),
)
DAMPING = Assumption(
    key="epsilon",
    default="4.7",
    meaning="ε of a coRNN, the damping that every oscillator has beside W",
    tensors=("epsilon",),
)
_JOINT, _HIDDEN, _READOUT = "i2h.weight", "h2h.weight", "readout.weight"
_CONSTANTS = (*STEP.roles, *FREQUENCY.roles, *DAMPING.roles)
_BOUND = (
    "sensitivities are those of every entry of the step's 2n × 2n matrix, times dt: an upper bound "
    "for the n × 2n entries that are stored"
)


class CoRNN(Family):
    """``z' = z + dt (tanh(W_x x + W_z z + W_y y + b) - γ y - ε z)``, ``y' = y + dt z'``.

    The implicit-explicit step on (y, z), the tanh with slope 1, is A = A₀ + P W with
    ``P = dt (dt, 1)`` in blocks. In the orthonormal coordinates u = (dt y + z) / √(1+dt²) and
    v = (dt z - y) / √(1+dt²), which change no eigenvalue and no norm, W moves the rows of u alone,
    by ``dt √(1+dt²)``.
    """

    name = "co_rnn"
    title = "coRNN (coupled oscillators)"
    recognised_by = (
        "cell.i2h.weight (n, inputs + 2n) beside readout.weight; or i2h.weight beside h2h.weight "
        "(n, 2n)"
    )
    equation = "λ = eig(z' = z + dt (W_z z + W_y y - γ y - ε z), y' = y + dt z')"
    source = "tk-rusch/coRNN; Rusch & Mishra 2021, arXiv 2010.00951"
    assumptions = (STEP, FREQUENCY, DAMPING)

    def find(self, tensors: Mapping[str, TensorSpec]) -> list[Match]:
        """Cells whose one linear sees the input and both states, and those that split it in two."""
        matches = []
        for module, names in group_by_module(tensors, (_JOINT, _HIDDEN, *_CONSTANTS)).items():
            shape = tensors[names[_JOINT]].shape if _JOINT in names else ()
            if len(shape) != 2 or not shape[0]:
                continue
            size, columns = shape
            if _HIDDEN in names:
                fits = tensors[names[_HIDDEN]].shape == (size, 2 * size)
            else:
                above, last = split_name(module)
                readout = tensors.get(f"{above}.{_READOUT}" if above else _READOUT)
                seen = readout is not None and readout.shape[1:] == (size,)
                fits = last == "cell" and seen and columns > 2 * size
            if fits:
                matches.append(Match(module or self.name, names))
        return matches

    def _recurrence(self, layer: Layer) -> Recurrence:
        step, frequency, damping = (
            float(layer.choose(each)) for each in (STEP, FREQUENCY, DAMPING)
        )
        joint = layer.real(_JOINT, (None, None))
        size = joint.shape[0]
        split = _HIDDEN in layer.names
        role = _HIDDEN if split else _JOINT
        states = layer.real(role, (size, None)) if split else joint
        # The columns are x, z, y, or z, y of the states alone.
        by_velocity, by_position = states[:, -2 * size : -size], states[:, -size:]
        inputs = joint if split else joint[:, : -2 * size]
        scale = step * math.hypot(1, step)
        readin = np.zeros((2 * size, inputs.shape[1]), dtype=np.complex128)
        readin[:size] = scale * inputs
        # z' from y and z, and y' = y + dt z'; then from (y, z) to (u, v).
        one = np.eye(size)
        pushed = step * (by_position - frequency * one)
        kept = (1 - step * damping) * one + step * by_velocity
        matrix = np.block([[one + step * pushed, step * kept], [pushed, kept]])
        turned = one / math.hypot(1, step)
        rotation = np.block([[step * turned, turned], [-turned, step * turned]])
        return dense_layer(
            layer,
            role,
            rotation @ matrix @ rotation.T,
            activation="tanh",
            readin=readin,
            scale=scale,
            also=(_BOUND,),
        )
