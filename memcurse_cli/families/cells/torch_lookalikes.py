"""Cells that are stored in torch's names and shapes, and compute something else.

torchrecurrent alone has some forty cells whose tensors are all called ``weight_ih``, ``weight_hh``,
``bias_ih`` and ``bias_hh``. What tells them apart is a tensor that torch's own cell has not, or
the name of the layer or of the file; where neither does, the report says what else it could be.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import PurePath
from typing import NamedTuple

from memcurse_cli.checkpoints.store import TensorSpec, TensorStore
from memcurse_cli.errors import TensorError
from memcurse_cli.families.cells.torch_names import split_hidden_weight
from memcurse_cli.families.family import Assumption, Match, ReadOptions
from memcurse_cli.families.reading import shown_shape

KEY = "cell"


class _Called(NamedTuple):
    """A cell's name as people write it.

    Attributes:
        title: in a sentence.
        words: what a layer's or a file's name has in it, in any case.
    """

    title: str
    words: re.Pattern[str]


def _within(words: str) -> re.Pattern[str]:
    return re.compile(words, re.IGNORECASE)


def _word(words: str) -> re.Pattern[str]:
    """As a word of its own: ``mut1``, ``MUT1Cell``, ``my_star_rnn`` and ``STARNet2``."""
    ending = r"(?:_?(?:cells?|layers?|rnn|net|network))?"
    return re.compile(rf"(?<![a-z])(?:{words}){ending}(?![a-z])", re.IGNORECASE)


_CALLED = {
    "mgu": _Called("MGU", _within(r"mgu|minimal_?gated")),
    "ligru": _Called("LiGRU", _within(r"li_?gru|light_?gru")),
    "janet": _Called("JANET", _within(r"janet")),
    "ugrnn": _Called("UGRNN", _within(r"ugrnn")),
    "sgu": _Called("SGU", _word(r"d?sgu")),
    "miru": _Called("MiRU", _word(r"mi_?ru_?[12]?")),
    "mut1": _Called("MUT1", _word(r"mut_?1")),
    "mut2": _Called("MUT2", _word(r"mut_?2")),
    "mut3": _Called("MUT3", _word(r"mut_?3")),
    "original_lstm": _Called("OriginalLSTM", _within(r"original_?lstm")),
    "tau_gru": _Called("tauGRU", _word(r"tau_?gru")),
    "intersection_rnn": _Called("IntersectionRNN", _within(r"intersection_?rnn")),
    "tgru": _Called("TGRU", _word(r"tgru")),
    "tlstm": _Called("TLSTM", _word(r"tlstm")),
    "atr": _Called("ATR", _word(r"atr")),
    "antisymmetric_rnn": _Called("AntisymmetricRNN", _within(r"anti_?symmetric")),
    "nbr": _Called("NBR", _word(r"nbr")),
    "cfn": _Called("CFN", _word(r"cfn")),
    "light_ru": _Called("LightRU", _word(r"light_?ru")),
    "star": _Called("STAR", _word(r"star")),
    "sgrn": _Called("SGRN", _word(r"sgrn")),
}
# As torchrecurrent keeps the cells of a layer, and many a network those of torch.
_CELL_LIST = re.compile(r"(?:.*[./])?cells[./]\d+[./]")

# Tensors that stand beside the hidden weight of another cell than torch's.
_OTHER_WEIGHTS = (
    *("ph", "ch", "mh", "mm", "proj", "res", "pi", "pf", "po", "ci", "cf", "co", "cc"),
    *("peephole", "peepholes", "peep"),
)
_OTHER_BIASES = ("ch", "mh", "mm", "ph")
_OTHER_SCALES = (
    *("alpha", "beta", "beta1", "beta2", "gamma", "zeta", "nu", "eta", "epsilon", "dt", "tau"),
    *("leak", "leak_rate", "taus", "log_tau"),
)
# Norms inside the gates, whose biases add to theirs: those of TorchScript's LSTM and its like.
_OTHER_NORMS = (
    *("layernorm_i", "layernorm_h", "layernorm_c", "layer_norm_i", "layer_norm_h"),
    *("ln_ih", "ln_hh", "ln_i2h", "ln_h2h", "norm_ih", "norm_hh"),
)
# A network of one hidden layer calls its readout so; only a square one can be inside the cell.
_READOUT = "ho"


@dataclass(frozen=True)
class Choice:
    """The cell that a layer is taken for.

    Attributes:
        cell: its key.
        sentences: what that assumes, one sentence each.
        told: whether the user or a name told it.
        given: whether the user did.
    """

    cell: str
    sentences: tuple[str, ...] = ()
    told: bool = False
    given: bool = False


@dataclass(frozen=True)
class Lookalikes:
    """A cell of torch's, and what is stored in its names and shapes.

    Attributes:
        own: the key of torch's cell.
        title: what it is called in a sentence.
        read: the keys of the others that the family reads.
        refused: those of the others that it does not.
        square: those of the latter that look so only where there are as many inputs as units.
    """

    own: str
    title: str
    read: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()
    square: tuple[str, ...] = ()

    meaning = "which of the cells that are stored alike it is"

    @property
    def assumption(self) -> Assumption:
        """Which of the cells it is, for ``--assume``."""
        return Assumption(
            key=KEY,
            default=self.own,
            choices=(self.own, *self.read),
            meaning=self.meaning,
        )

    def choose(self, store: TensorStore, match: Match, options: ReadOptions) -> Choice:
        """The cell that a layer with a role ``weight_hh`` is taken for.

        Raises:
            TensorError: a tensor beside the weight, or a name, says that it is a cell that the
                family does not read. A norm inside the gates says so whatever the user does.
        """
        given = options.assume.get(KEY)
        insists = given in (self.own, *self.read)
        self._require_no_stranger(store.tensors, match, insists=insists)
        if given is not None and insists:
            sentence = f"{KEY}={given} (as given): {self.meaning}"
            return Choice(given, (sentence,), told=True, given=True)
        weight = match.tensors["weight_hh"]
        module, _, suffix = split_hidden_weight(weight)
        others = self._others(store.tensors, match)
        own = (self.own,) if self.own in _CALLED else ()
        if suffix and not own:  # a layer of torch's own, weight_hh_l0
            return Choice(self.own)
        named = named_cell(module, store.path, (*own, *others))
        if named == self.own:
            return Choice(self.own, told=True)
        if named in self.refused:
            raise TensorError(
                f"its name says {title_of(named)}, a cell that is stored like {self.title} and is "
                "not read",
                where=weight,
                remedy=f"give --assume {KEY}={self.own} if it is {self.title}",
            )
        if named is not None:
            return Choice(named, (f"{KEY}={named} (by its name): {self.meaning}",), told=True)
        if not _CELL_LIST.fullmatch(module) or not others:
            return Choice(self.own)
        alike = ", ".join(title_of(cell) for cell in others)
        sentence = (
            f"{KEY}={self.own} (the default): torchrecurrent stores other cells alike ({alike}), "
            "and the layer's name does not tell"
        )
        return Choice(self.own, (sentence,))

    def _others(self, tensors: Mapping[str, TensorSpec], match: Match) -> tuple[str, ...]:
        """Those that the shapes allow."""
        weights = [match.tensors.get(role) for role in ("weight_ih", "weight_hh")]
        columns = {tensors[name].shape[1:] for name in weights if name is not None}
        excluded = () if len(columns) == 1 else self.square
        return tuple(cell for cell in (*self.read, *self.refused) if cell not in excluded)

    def _require_no_stranger(
        self, tensors: Mapping[str, TensorSpec], match: Match, *, insists: bool
    ) -> None:
        weight = match.tensors["weight_hh"]
        for role, tensor in beside(tensors, weight).items():
            norm, _, part = role.rpartition(".")
            if norm in _OTHER_NORMS:
                raise TensorError(
                    f"it stands beside {weight}: the {part} of a norm inside the gates or around "
                    f"the state, which {self.title} has not",
                    where=tensor,
                    remedy="a cell with such norms is not read",
                )
            if not insists and role not in match.tensors:  # those the family knows
                raise self.stranger(match, role, tensor)

    def misfit(self, store: TensorStore, weight: str, inputs: str) -> TensorError:
        """What is said of an input weight of other rows than the hidden one."""
        rows, hidden = (shown_shape(store.tensors[name].shape) for name in (inputs, weight))
        return TensorError(
            f"its shape {rows} does not fit {hidden} of {weight} as in {self.title}: this is "
            "another cell",
            where=inputs,
            remedy=f"if it is no part of it, give --assume {KEY}={self.own} to read the layer so",
        )

    def stranger(self, match: Match, role: str, tensor: str) -> TensorError:
        """What is said of a tensor that the cell has not."""
        weight = match.tensors["weight_hh"]
        return TensorError(
            f"it stands beside {weight}, and {self.title} has no {role}: this is another cell",
            where=tensor,
            remedy=f"if it is no part of it, give --assume {KEY}={self.own} to read the layer so",
        )


def beside(tensors: Mapping[str, TensorSpec], weight: str) -> dict[str, str]:
    """The tensors in the module of a hidden weight that torch's own cells have not, by role."""
    module, stem, suffix = split_hidden_weight(weight)
    bias = "bias" if stem == "weight" else "b"
    roles = (
        *(f"{norm}.{part}" for norm in _OTHER_NORMS for part in ("weight", "bias")),
        *(f"{stem}_{end}" for end in _OTHER_WEIGHTS),
        *(f"{bias}_{end}" for end in _OTHER_BIASES),
        *_OTHER_SCALES,
    )
    found = {}
    for role in roles:
        for tensor in (f"{module}{role}{suffix}", f"{module}{role}"):
            if tensor in tensors:
                found[role] = tensor
    shape = tensors[weight].shape
    readout = f"{module}{stem}_{_READOUT}"
    if (
        readout in tensors
        and len(shape) == 2
        and shape[0] != shape[1]
        and tensors[readout].shape == (shape[1], shape[1])
    ):
        found[f"{stem}_{_READOUT}"] = readout
    return found


def named_cell(module: str, path: str, among: Iterable[str]) -> str | None:
    """The cell that a module's name tells, or else that of its file; None where neither does.

    Args:
        module: the module's name; not that of a match, which may be its family's.
        path: that of the checkpoint, of which the last part counts.
        among: the cells that its shapes allow.
    """
    among = tuple(among)
    for name in (module, PurePath(path).stem if path else ""):
        for cell in among:
            if _CALLED[cell].words.search(name):
                return cell
    return None


def title_of(cell: str) -> str:
    """What a cell is called."""
    return _CALLED[cell].title
