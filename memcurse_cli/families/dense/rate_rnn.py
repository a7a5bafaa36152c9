"""The leaky rate network of computational neuroscience, as PsychRNN saves it.

The low-rank rate network of Mastrogiuseppe & Ostojic 2018 and Dubreuil et al. 2022.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from memcurse_cli.checkpoints.store import TensorSpec, TensorStore
from memcurse_cli.errors import TensorError
from memcurse_cli.families.assumptions import Assumed
from memcurse_cli.families.dense.dense_layer import dense_recurrence, left_eigenvectors
from memcurse_cli.families.family import Assumption, Match, ReadOptions
from memcurse_cli.families.module_names import group_by_module
from memcurse_cli.families.reading import log_of_eigenvalues, read_real
from memcurse_cli.families.recurrence import Complexes, Floats, ParameterGroup, Recurrence

LEAK = Assumption(
    key="alpha",
    default="0.1",
    choices=(),
    meaning="α = dt/τ of a leaky rate network, a number in (0, 1]",
    tensors=("alpha", "leak", "leak_rate", "dt/tau"),
)
ROLES = ("W_rec", "W_in", "rec_connectivity", "input_connectivity", "Dale_rec", "W_out")
# low_rank_rnns' FullRankRNN: wi is (inputs, H), scaled by si.
FULL_RANK = ("wrec", "wi", "si", "wo")
_FULL_RANK_LEAK = "0.2"


class LeakyRNN:
    """``s[t+1] = (1-α) s[t] + α (W φ(s[t]) + W_in x[t+1] + b)``, linearised with slope 1.

    ``A = (1-α) I + α W`` with ``W = W_rec ∘ rec_connectivity``, row = target, and B = α W_in. Under
    Dale's law, which shows in a ``Dale_rec`` with a negative entry, ``W = |W_rec ∘ M| Dale_rec``.
    α is one number, which few files store. low_rank_rnns has W as ``wrec`` and W_inᵀ as
    ``diag(si) wi``.
    """

    name = "leaky_rnn"
    title = "Leaky rate RNN (dense)"
    recognised_by = "W_rec (H, H) beside W_in (H, inputs); or wrec (H, H) beside wi (inputs, H)"
    equation = "λ = eig((1-α) I + α W_rec ∘ rec_connectivity)"
    source = "psychrnn.backend.models.basic; Ehrlich et al. 2021; adrian-valente/lowrank_inference"
    assumptions: tuple[Assumption, ...] = (LEAK,)

    def find(self, tensors: Mapping[str, TensorSpec]) -> list[Match]:
        """Modules with a square W_rec and a W_in, or with a wrec and a wi that fits it."""
        psychrnn = [
            Match(module or self.name, names)
            for module, names in group_by_module(tensors, (*ROLES, *LEAK.roles)).items()
            if "W_rec" in names and "W_in" in names and _is_square(tensors[names["W_rec"]])
        ]
        full_rank = [
            Match(module or self.name, names)
            for module, names in group_by_module(tensors, (*FULL_RANK, *LEAK.roles)).items()
            if {"wrec", "wi"} <= names.keys()
            and _is_square(tensors[names["wrec"]])
            and tensors[names["wi"]].shape[1:] == tensors[names["wrec"]].shape[1:]
        ]
        return psychrnn + full_rank

    def read(self, store: TensorStore, match: Match, options: ReadOptions) -> Recurrence:
        """Read W_rec, W_in and their masks.

        Raises:
            TensorError: NaN or inf, matrices whose shapes do not fit together, or a stored α that
                is not one number in (0, 1].
            UsageError: the user's α is not in (0, 1].
        """
        full_rank = "wrec" in match.tensors
        tensor = match.tensors["wrec" if full_rank else "W_rec"]
        weight, readin = (_read_full_rank if full_rank else _read_psychrnn)(store, match)
        size = weight.shape[0]
        assumed = Assumed(options, store=store, match=match)
        leak = assumed.fraction(LEAK, default=_FULL_RANK_LEAK if full_rank else None)
        return dense_recurrence(
            store,
            match,
            family=self.name,
            matrix=(1 - leak) * np.eye(size) + leak * weight,
            tensor=tensor,
            activation="tanh" if full_rank else "relu",
            device=options.device,
            readin=(leak * readin).astype(np.complex128),
            scale=leak,
            assumptions=tuple(assumed.sentences),
        )


def _read_psychrnn(store: TensorStore, match: Match) -> tuple[Floats, Floats]:
    """W, masked and under Dale's law, and W_in, masked; row = target."""
    names = match.tensors
    size = store.tensors[names["W_rec"]].shape[0]
    weight = read_real(store, names["W_rec"], (size, size))
    readin = read_real(store, names["W_in"], (size, None))
    if "rec_connectivity" in names:
        weight = weight * read_real(store, names["rec_connectivity"], weight.shape)
    if "input_connectivity" in names:
        readin = readin * read_real(store, names["input_connectivity"], readin.shape)
    if "Dale_rec" in names:
        dale = read_real(store, names["Dale_rec"], weight.shape)
        if (dale < 0).any():
            weight = np.abs(weight) @ dale
    return weight, readin


def _read_full_rank(store: TensorStore, match: Match) -> tuple[Floats, Floats]:
    """W and W_in, row = target."""
    names = match.tensors
    size = store.tensors[names["wrec"]].shape[0]
    weight = read_real(store, names["wrec"], (size, size))
    readin = read_real(store, names["wi"], (None, size))
    if "si" in names:
        readin = read_real(store, names["si"], (readin.shape[0],))[:, None] * readin
    return weight, readin.T


def _is_square(spec: TensorSpec) -> bool:
    return len(spec.shape) == 2 and spec.shape[0] == spec.shape[1]


CONNECTIVITY = Assumption(
    key="connectivity",
    default="mean",
    choices=("mean", "sum"),
    meaning="whether a low-rank network's connectivity is m nᵀ / N or m nᵀ",
)
FACTORS = ("m", "n")
SIDES = ("wi", "wo")
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
        for module, names in group_by_module(tensors, (*FACTORS, *SIDES, *LEAK.roles)).items():
            if not names.keys() >= {*FACTORS, *SIDES}:
                continue
            m, n, readin, readout = (tensors[names[role]].shape for role in (*FACTORS, *SIDES))
            if m != n or len(m) != 2 or not 0 < m[1] < m[0]:
                continue
            if readin[1:] == m[:1] and len(readout) == 2 and readout[0] == m[0]:
                matches.append(Match(module or self.name, names))
        return matches

    def read(self, store: TensorStore, match: Match, options: ReadOptions) -> Recurrence:
        """Read m and n.

        Raises:
            TensorError: NaN or inf, a J that cannot be diagonalised, or a stored α that is not one
                number in (0, 1].
            UsageError: the user's α is not in (0, 1].
        """
        m, n = (read_real(store, match.tensors[role], (None, None)) for role in FACTORS)
        units, rank = m.shape
        assumed = Assumed(options, store=store, match=match)
        leak = assumed.fraction(LEAK, default=_DEFAULT_LEAK)
        scale = leak / units if assumed.choose(CONNECTIVITY) == "mean" else leak
        with np.errstate(over="ignore", invalid="ignore"):
            overlap = scale * (n.T @ m)
        values, right, left = _decompose(overlap, match.tensors["m"])
        eigenvalues = np.concatenate([1 - leak + values, np.full(units - rank, 1 - leak)])
        return Recurrence(
            name=match.layer,
            family=self.name,
            tensors=tuple(match.tensors.values()),
            log_eigenvalues=log_of_eigenvalues(eigenvalues),
            log_gain=np.zeros(units, dtype=np.complex128),
            parameters=(
                # (k, i, a): eigenvalue, unit, rank.
                _group(store, match, "m", m, scale * np.einsum("kb,ib,ak->kia", left, n, right)),
                _group(store, match, "n", n, scale * np.einsum("ka,ib,bk->kia", left, m, right)),
            ),
            assumptions=(*assumed.sentences, _LINEARISED),
            activation="tanh",
        )


def _decompose(overlap: Floats, tensor: str) -> tuple[Complexes, Complexes, Complexes]:
    """The eigenvalues of J, its right eigenvectors as columns and its left ones as rows.

    Raises:
        TensorError: it overflows, or has no basis of eigenvectors.
    """
    if not np.isfinite(overlap).all():
        raise TensorError(_DEFECTIVE, where=tensor, remedy="use a checkpoint from another step")
    values, right = np.linalg.eig(overlap)
    order = np.lexsort((values.imag, values.real))
    left = left_eigenvectors(right[:, order], tensor, _DEFECTIVE)
    return values[order].astype(np.complex128), right[:, order].astype(np.complex128), left


def _group(
    store: TensorStore, match: Match, role: str, values: Floats, derivative: Complexes
) -> ParameterGroup:
    """Every scalar moves each of the first eigenvalues."""
    rank, size = derivative.shape[0], values.size
    return ParameterGroup(
        name=role,
        tensor=match.tensors[role],
        values=values.ravel(),
        dtype=store.tensors[match.tensors[role]].dtype,
        scalar=np.tile(np.arange(size), rank),
        eigenvalue=np.repeat(np.arange(rank), size),
        eigenvalue_derivative=derivative.ravel(),
    )
