"""Cells of torchrecurrent whose shapes are none of torch's: RAN, CFN, MUT1, LightRU and others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

from memcurse_cli.checkpoints.store import TensorSpec, TensorStore
from memcurse_cli.errors import TensorError
from memcurse_cli.recurrences.family import Assumption, Match, ReadOptions
from memcurse_cli.recurrences.lem import STEP
from memcurse_cli.recurrences.recurrence import Recurrence
from memcurse_cli.recurrences.torch_cells import KEY, beside, named_cell, title_of
from memcurse_cli.recurrences.torch_names import hidden_weights, split_hidden_weight
from memcurse_cli.recurrences.torch_recurrent_fast import (
    FLOOR,
    GATE_FUNCTION,
    SCALE,
    read_fast_grnn,
)
from memcurse_cli.recurrences.torch_recurrent_lem import read_lem
from memcurse_cli.recurrences.torch_recurrent_steps import (
    Layer,
    read_cfn,
    read_light_ru,
    read_minimal_rnn,
    read_mut1,
    read_ran,
    read_star,
)

READERS = {
    "ran": read_ran,
    "cfn": read_cfn,
    "mut1": read_mut1,
    "light_ru": read_light_ru,
    "star": read_star,
    "minimal_rnn": read_minimal_rnn,
    "fast_grnn": read_fast_grnn,
    "lem": read_lem,
}
_ROLES = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
CELL = Assumption(
    key=KEY,
    default="by_name",
    choices=("by_name", *READERS),
    meaning="which of the cells that are stored alike it is",
)


@dataclass(frozen=True)
class _Kind:
    """Cells that are stored alike.

    Attributes:
        blocks: the rows of `_ROLES` in units of H.
        beside: what else stands in the module, with its rank: H, (H, H), or one number of any rank.
        read: the keys of those that are read.
        refused: of those that are not.
    """

    blocks: tuple[int, ...]
    read: tuple[str, ...]
    refused: tuple[str, ...] = ()
    beside: tuple[tuple[str, int], ...] = ()


_KINDS = (
    _Kind((3, 2, 2, 2), ("ran",)),
    _Kind((3, 2, 3, 2), ("cfn", "mut1"), ("nbr",)),
    _Kind((2, 1, 2, 1), ("light_ru", "star"), ("antisymmetric_rnn",)),
    _Kind((1, 1, 1, 1), ("minimal_rnn",), beside=(("weight_mm", 2),)),
    _Kind((1, 1, 2, 2), ("fast_grnn",), beside=((SCALE, 0), (FLOOR, 0))),
    _Kind((4, 3, 4, 3), ("lem",), beside=(("weight_ch", 2), ("bias_ch", 1))),
)


class TorchRecurrent:
    """``h[t+1] = λ h[t] + γ u`` with gates at zero input and zero state, one step for each cell.

    torchrecurrent stores weights and biases of all its cells under the same names; their shapes
    tell some apart, and the name of the layer or of the file the others.
    """

    name = "torch_recurrent"
    title = "RAN, CFN, LightRU, STAR, MUT1, MinimalRNN, FastGRNN, LEM (torchrecurrent)"
    recognised_by = (
        "weight_ih, weight_hh, bias_ih and bias_hh of (3H, 2H), (2H, H) or (4H, 3H) rows, or "
        "weight_mm, or zeta and nu, beside them"
    )
    equation = "λ = σ(b_f), γ = σ(b_i); or λ = 1 - σ(b), γ = σ(b); each cell's own on its page"
    source = "torchrecurrent; each cell's paper on the page"
    assumptions: tuple[Assumption, ...] = (CELL, STEP, GATE_FUNCTION)

    def find(self, tensors: Mapping[str, TensorSpec]) -> list[Match]:
        """Modules with both weights and both biases, of the rows of one kind of cell."""
        matches = []
        for weight in hidden_weights(tensors):
            names = dict(weight.tensors)
            if split_hidden_weight(names["weight_hh"])[2]:  # weight_hh_l0 is torch's own
                continue
            names |= beside(tensors, names["weight_hh"])
            if _kind({role: tensors[name].shape for role, name in names.items()}) is not None:
                matches.append(Match(weight.layer or self.name, names))
        return matches

    def read(self, store: TensorStore, match: Match, options: ReadOptions) -> Recurrence:
        """Read the biases, and the weights that act at zero input or are asked for.

        Raises:
            TensorError: NaN or inf in what is read, or a cell that is not read, or not told.
        """
        kind = _kind({role: store.tensors[name].shape for role, name in match.tensors.items()})
        assert kind is not None  # a layer of no kind is not found
        cell, assumptions = _cell(kind, store, match, options)
        return READERS[cell](Layer(store, match, options, self.name, assumptions))


def _kind(shapes: Mapping[str, tuple[int, ...]]) -> _Kind | None:
    """The kind whose tensors are there, and no more than these."""
    if not shapes.keys() >= set(_ROLES) or len(shapes["weight_hh"]) != 2:
        return None
    size = shapes["weight_hh"][1]
    for kind in _KINDS:
        own = dict(kind.beside)
        expected = {role: (rows * size,) for role, rows in zip(_ROLES, kind.blocks, strict=True)}
        if (
            size > 0
            and all(shapes[role][:1] == rows for role, rows in expected.items())
            and shapes.keys() == {*_ROLES, *own}
            and all(
                shapes[role] == (size,) * rank if rank else prod(shapes[role]) == 1
                for role, rank in own.items()
            )
        ):
            return kind
    return None


def _cell(
    kind: _Kind, store: TensorStore, match: Match, options: ReadOptions
) -> tuple[str, tuple[str, ...]]:
    """The cell that the user, the name or its shapes alone tell, and what that assumes."""
    given = options.assume.get(KEY)
    if given in kind.read:
        return given, (f"{KEY}={given} (as given): {CELL.meaning}",)
    cells = (*kind.read, *kind.refused)
    if len(cells) == 1:
        return cells[0], ()
    weight = match.tensors["weight_hh"]
    named = named_cell(split_hidden_weight(weight)[0], store.path, cells)
    if named in kind.read:
        return named, (f"{KEY}={named} (by its name): {CELL.meaning}",)
    alike = " and ".join(title_of(cell) for cell in cells)
    what = f"its shapes are those of torchrecurrent's {alike}, and no name tells which it is"
    if named is not None:
        what = f"its name says {title_of(named)}, a cell of torchrecurrent's that is not read"
    choices = " or ".join(f"{KEY}={cell}" for cell in kind.read)
    raise TensorError(what, where=weight, remedy=f"give --assume {choices} if that is what it is")
