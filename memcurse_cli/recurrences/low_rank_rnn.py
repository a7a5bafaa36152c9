"""The low-rank rate network of Mastrogiuseppe & Ostojic 2018 and Dubreuil et al. 2022."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from memcurse_cli.checkpoints.store import TensorSpec, TensorStore
from memcurse_cli.errors import TensorError
from memcurse_cli.recurrences.assumptions import Assumed
from memcurse_cli.recurrences.family import Assumption, Match, ReadOptions
from memcurse_cli.recurrences.leaky_rnn import LEAK
from memcurse_cli.recurrences.low_rank import LARGEST_CONDITION
from memcurse_cli.recurrences.reading import group_by_module, log_of_eigenvalues, read_real
from memcurse_cli.recurrences.recurrence import Complexes, Floats, ParameterGroup, Recurrence

CONNECTIVITY = Assumption(
    key="connectivity",
    default="mean",
    choices=("mean", "sum"),
    meaning="whether a low-rank network's connectivity is m nᵀ / N or m nᵀ",
)
FACTORS = ("m", "n")
SIDES = ("wi", "wo")
_DEFAULT_LEAK = "0.2"
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
    """The eigenvalues of J, its right eigenvectors as columns and its left ones as rows."""
    if np.isfinite(overlap).all():
        values, right = np.linalg.eig(overlap)
        order = np.lexsort((values.imag, values.real))
        values, right = values[order], right[:, order]
        try:
            left = np.linalg.inv(right)
        except np.linalg.LinAlgError:
            left = np.full_like(right, np.inf)
        if np.abs(left).max() < LARGEST_CONDITION:
            return (
                values.astype(np.complex128),
                right.astype(np.complex128),
                left.astype(np.complex128),
            )
    raise TensorError(
        "the overlap of m and n cannot be diagonalised",
        where=tensor,
        remedy="use a checkpoint from another step",
    )


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
