"""The leaky rate network of computational neuroscience, as PsychRNN saves it."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from memcurse_cli.checkpoints.store import TensorSpec, TensorStore
from memcurse_cli.recurrences.assumptions import Assumed
from memcurse_cli.recurrences.dense_layer import dense_recurrence
from memcurse_cli.recurrences.family import Assumption, Match, ReadOptions
from memcurse_cli.recurrences.reading import group_by_module, read_real
from memcurse_cli.recurrences.recurrence import Floats, Recurrence

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
