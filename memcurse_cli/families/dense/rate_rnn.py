"""Networks in continuous time: leaky rate networks, dense and of low rank, and coRNN."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from memcurse_cli.checkpoints.store import TensorSpec, TensorStore
from memcurse_cli.families.dense.dense_layer import dense_recurrence, left_eigenvectors
from memcurse_cli.families.family import Assumed, Assumption, Match, ReadOptions
from memcurse_cli.families.module_names import group_by_module, split_name
from memcurse_cli.families.reading import log_of_eigenvalues, misfit, one_to_many, read_real
from memcurse_cli.families.recurrence import Complexes, Floats, Recurrence

LEAK = Assumption(
    key="alpha",
    default="0.1",
    choices=(),
    meaning="α = dt/τ of a leaky rate network, a number in (0, 1]",
    tensors=("alpha", "leak", "leak_rate", "dt/tau"),
)
_UNKNOWN_ACTIVATION = "the activation is taken as a ReLU, as in pycog: these names do not tell it"


@dataclass(frozen=True)
class _Naming:
    """What a library calls the weights of a rate network.

    Attributes:
        recurrent: W (H, H), row = target.
        readin: W_in (H, inputs), or (inputs, H) where it multiplies from the right.
        others: what else is read, or known to leave λ alone.
        activation: that of the library.
        from_right: whether W_in does.
        leak: the default of the library, where it is not that of `LEAK`.
        sentence: what is assumed of its files.
        loose: a W_in of another shape is found too, and reported as unreadable.
    """

    recurrent: str
    readin: str
    others: tuple[str, ...]
    activation: str = "relu"
    from_right: bool = False
    leak: str | None = None
    sentence: str = ""
    loose: bool = False


_PSYCHRNN = ("rec_connectivity", "input_connectivity", "Dale_rec", "W_out")
_NAMINGS = (
    _Naming("W_rec", "W_in", _PSYCHRNN, loose=True),
    _Naming("wrec", "wi", ("si", "wo"), "tanh", from_right=True, leak="0.2"),  # low_rank_rnns
    _Naming("Wrec", "Win", ("Wout",), sentence=_UNKNOWN_ACTIVATION),
)


class LeakyRNN:
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
    assumptions: tuple[Assumption, ...] = (LEAK,)

    def find(self, tensors: Mapping[str, TensorSpec]) -> list[Match]:
        """Modules with a square W and a W_in that fits it."""
        matches = []
        for naming in _NAMINGS:
            roles = (naming.recurrent, naming.readin, *naming.others, *LEAK.roles)
            for module, names in group_by_module(tensors, roles).items():
                if not {naming.recurrent, naming.readin} <= names.keys():
                    continue
                square, readin = (
                    tensors[names[role]].shape for role in (naming.recurrent, naming.readin)
                )
                fits = readin[1:] == square[1:] if naming.from_right else readin[:1] == square[:1]
                if len(square) == 2 and square[0] == square[1] and (fits or naming.loose):
                    matches.append(Match(module or self.name, names))
        return matches

    def read(self, store: TensorStore, match: Match, options: ReadOptions) -> Recurrence:
        """Read W, W_in and their masks."""
        names = match.tensors
        naming = next(each for each in _NAMINGS if each.recurrent in names)
        tensor = names[naming.recurrent]
        size = store.tensors[tensor].shape[0]
        weight = read_real(store, tensor, (size, size))
        if naming.from_right:
            readin = read_real(store, names[naming.readin], (None, size)).T
        else:
            readin = read_real(store, names[naming.readin], (size, None))
        if "si" in names:
            readin = readin * read_real(store, names["si"], (readin.shape[1],))
        if "rec_connectivity" in names:
            weight = weight * read_real(store, names["rec_connectivity"], weight.shape)
        if "input_connectivity" in names:
            readin = readin * read_real(store, names["input_connectivity"], readin.shape)
        if "Dale_rec" in names:
            dale = read_real(store, names["Dale_rec"], weight.shape)
            if (dale < 0).any():
                weight = np.abs(weight) @ dale
        assumed = Assumed(options, store=store, match=match)
        leak = assumed.fraction(LEAK, default=naming.leak)
        return dense_recurrence(
            store,
            match,
            family=self.name,
            matrix=(1 - leak) * np.eye(size) + leak * weight,
            tensor=tensor,
            activation=naming.activation,
            device=options.device,
            readin=(leak * readin).astype(np.complex128),
            scale=leak,
            assumptions=(*assumed.sentences, *([naming.sentence] if naming.sentence else [])),
        )


CONNECTIVITY = Assumption(
    key="connectivity",
    default="mean",
    choices=("mean", "sum"),
    meaning="whether a low-rank network's connectivity is m nᵀ / N or m nᵀ",
)
_FACTORS = ("m", "n")
_SIDES = ("wi", "wo")
_DEFAULT_LEAK = "0.2"
_DEFECTIVE = "the overlap of m and n cannot be diagonalised"
_LINEARISED = "the activation is taken with slope 1, which tanh has at the zero state"


class LowRankRNN:
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
    assumptions: tuple[Assumption, ...] = (LEAK, CONNECTIVITY)

    def find(self, tensors: Mapping[str, TensorSpec]) -> list[Match]:
        """Modules with both factors, of one shape, and the input and output weights."""
        matches = []
        for module, names in group_by_module(tensors, (*_FACTORS, *_SIDES, *LEAK.roles)).items():
            if not names.keys() >= {*_FACTORS, *_SIDES}:
                continue
            m, n, readin, readout = (tensors[names[role]].shape for role in (*_FACTORS, *_SIDES))
            if m != n or len(m) != 2 or not 0 < m[1] < m[0]:
                continue
            if readin[1:] == m[:1] and len(readout) == 2 and readout[0] == m[0]:
                matches.append(Match(module or self.name, names))
        return matches

    def read(self, store: TensorStore, match: Match, options: ReadOptions) -> Recurrence:
        """Read m and n.

        Raises:
            TensorError: also for a J that cannot be diagonalised.
        """
        m, n = (read_real(store, match.tensors[role], (None, None)) for role in _FACTORS)
        units, rank = m.shape
        assumed = Assumed(options, store=store, match=match)
        leak = assumed.fraction(LEAK, default=_DEFAULT_LEAK)
        scale = leak / units if assumed.choose(CONNECTIVITY) == "mean" else leak
        with np.errstate(over="ignore", invalid="ignore"):
            overlap = scale * (n.T @ m)
        values, right, left = _decompose(overlap, match.tensors["m"])
        eigenvalues = np.concatenate([1 - leak + values, np.full(units - rank, 1 - leak)])
        # (k, i, a): eigenvalue, unit, rank.
        slopes = {
            "m": scale * np.einsum("kb,ib,ak->kia", left, n, right),
            "n": scale * np.einsum("ka,ib,bk->kia", left, m, right),
        }
        scalar, moved = np.arange(m.size).reshape(m.shape), np.arange(rank)[:, None, None]
        return Recurrence(
            name=match.layer,
            family=self.name,
            tensors=tuple(match.tensors.values()),
            log_eigenvalues=log_of_eigenvalues(eigenvalues),
            log_gain=np.zeros(units, dtype=np.complex128),
            parameters=tuple(
                one_to_many(
                    role,
                    match.tensors[role],
                    stored,
                    store.tensors[match.tensors[role]].dtype,
                    scalar,
                    slopes[role],
                    eigenvalue=moved,
                )
                for role, stored in (("m", m), ("n", n))
            ),
            assumptions=(*assumed.sentences, _LINEARISED),
            activation="tanh",
        )


def _decompose(overlap: Floats, tensor: str) -> tuple[Complexes, Complexes, Complexes]:
    """The eigenvalues of J, its right eigenvectors as columns and its left ones as rows."""
    if not np.isfinite(overlap).all():
        raise misfit(_DEFECTIVE, tensor, "use a checkpoint from another step")
    values, right = np.linalg.eig(overlap)
    order = np.lexsort((values.imag, values.real))
    left = left_eigenvectors(right[:, order], tensor, _DEFECTIVE)
    return values[order].astype(np.complex128), right[:, order].astype(np.complex128), left


STEP = Assumption(
    key="dt",
    default="0.042",
    choices=(),
    meaning="the time step of a coRNN",
    tensors=("dt",),
)
FREQUENCY = Assumption(
    key="gamma",
    default="2.7",
    choices=(),
    meaning="γ of a coRNN, the squared frequency that every oscillator has beside W",
    tensors=("gamma",),
)
DAMPING = Assumption(
    key="epsilon",
    default="4.7",
    choices=(),
    meaning="ε of a coRNN, the damping that every oscillator has beside W",
    tensors=("epsilon",),
)
_JOINT, _HIDDEN, _READOUT = "i2h.weight", "h2h.weight", "readout.weight"
_CONSTANTS = (*STEP.roles, *FREQUENCY.roles, *DAMPING.roles)
_BOUND = (
    "sensitivities are those of every entry of the step's 2n × 2n matrix, times dt: an upper bound "
    "for the n × 2n entries that are stored"
)


class CoRNN:
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
    assumptions: tuple[Assumption, ...] = (STEP, FREQUENCY, DAMPING)

    def find(self, tensors: Mapping[str, TensorSpec]) -> list[Match]:
        """Cells whose one linear sees the input and both states, and those that split it in two."""
        matches = []
        for module, names in group_by_module(tensors, (_JOINT, _HIDDEN, *_CONSTANTS)).items():
            if _JOINT not in names:
                continue
            shapes = [tensors[names[role]].shape for role in (_JOINT, _HIDDEN) if role in names]
            if any(len(shape) != 2 or not shape[0] for shape in shapes):
                continue
            size, columns = tensors[names[_JOINT]].shape
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

    def read(self, store: TensorStore, match: Match, options: ReadOptions) -> Recurrence:
        """Read the weights and decompose the step."""
        assumed = Assumed(options, store=store, match=match)
        step, frequency, damping = (
            float(assumed.choose(each)) for each in (STEP, FREQUENCY, DAMPING)
        )
        joint = read_real(store, match.tensors[_JOINT], (None, None))
        size = joint.shape[0]
        split = _HIDDEN in match.tensors
        role = _HIDDEN if split else _JOINT
        states = read_real(store, match.tensors[role], (size, None)) if split else joint
        # The columns are x, z, y, or z, y of the states alone.
        by_velocity, by_position = states[:, -2 * size : -size], states[:, -size:]
        inputs = joint if split else joint[:, : -2 * size]
        scale = step * math.hypot(1, step)
        readin = np.zeros((2 * size, inputs.shape[1]), dtype=np.complex128)
        readin[:size] = scale * inputs
        matrix = _step(by_position, by_velocity, step, frequency, damping)
        rotation = _rotation(size, step)
        return dense_recurrence(
            store,
            match,
            family=self.name,
            matrix=rotation @ matrix @ rotation.T,
            tensor=match.tensors[role],
            activation="tanh",
            device=options.device,
            readin=readin,
            scale=scale,
            assumptions=(*assumed.sentences, _BOUND),
        )


def _step(
    by_position: Floats, by_velocity: Floats, step: float, frequency: float, damping: float
) -> Floats:
    """(2n, 2n) of (y, z): z' from y and z, and y' = y + dt z'."""
    one = np.eye(by_position.shape[0])
    pushed = step * (by_position - frequency * one)
    kept = (1 - step * damping) * one + step * by_velocity
    return np.block([[one + step * pushed, step * kept], [pushed, kept]])


def _rotation(size: int, step: float) -> Floats:
    """(2n, 2n) from (y, z) to (u, v)."""
    one = np.eye(size) / math.hypot(1, step)
    return np.block([[step * one, one], [-one, step * one]])
