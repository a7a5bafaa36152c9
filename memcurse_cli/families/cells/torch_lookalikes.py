"""Cells that are stored in torch's names and shapes, and compute something else.

torchrecurrent alone has some forty cells whose tensors are all called ``weight_ih``, ``weight_hh``,
``bias_ih`` and ``bias_hh``. What tells them apart is a tensor that torch's own cell has not, or
the name of the layer or of the file; where neither does, the report says what else it could be.

Cells of one gate that keep by it, in an MGU's shapes: LiGRU, JANET and UGRNN.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import PurePath
from typing import NamedTuple

import numpy as np

from memcurse_cli.checkpoints.store import TensorSpec, TensorStore
from memcurse_cli.errors import TensorError
from memcurse_cli.families.cells.gated_layer import GateBias, coupled_recurrence, jacobian_beyond
from memcurse_cli.families.cells.torch_names import split_hidden_weight
from memcurse_cli.families.family import Assumption, Match, ReadOptions
from memcurse_cli.families.gate_inputs import GateDrive, GateInput, HiddenState, NoDrive
from memcurse_cli.families.reading import (
    gain_scalar,
    log_sigmoid,
    read_vector,
    shown_shape,
    sigmoid,
)
from memcurse_cli.families.recurrence import Floats, HiddenSpectra, Recurrence
from memcurse_cli.theory.gates.fixed_point import RELU, TANH
from memcurse_cli.theory.gates.laws import OffsetMix
from memcurse_cli.theory.linalg.eigendecomposition import eigenvalues

LIGRU, JANET, UGRNN = "ligru", "janet", "ugrnn"
OFFSET = "beta"

_RELU = "the state that gates see is that of a ReLU candidate, as by default"
_UNKNOWN_CELL = "which cell it is, and so what its candidate sees of the state, is not stored"
_UNKNOWN_DRIVE = NoDrive(
    "which cell it is, and so how large the state is that its gate sees, is not stored: the "
    "layer's name or --assume cell tells"
)
_ACTIVATION = "the activation of its candidate is not stored"


def keeping_recurrence(
    store: TensorStore,
    match: Match,
    options: ReadOptions,
    *,
    family: str,
    cell: str | None,
    biases: Mapping[str, GateBias],
    weights: Mapping[str, Floats],
    inputs: Mapping[str, GateInput] | None,
    assumptions: tuple[str, ...],
) -> Recurrence:
    """``h[t+1] = σ(s) h[t] + (1 - σ(s - β)) f(W x + U h[t] + b)``: λ = σ(b_s), γ = σ(β - b_s).

    β is 0 for LiGRU and UGRNN, and JANET's where it is stored: one scalar that moves every gain,
    d log γ/dβ = 1 - γ = -d log γ/db_s. f is a ReLU in a LiGRU and otherwise a tanh.

    Args:
        store: the open checkpoint.
        match: the layer, with a role ``beta`` where there is one.
        options: what to read beside the biases.
        family: the name of the family that reads it.
        cell: ``ligru``, ``janet`` or ``ugrnn``; None where nothing tells.
        biases: those of ``gate`` and ``new``.
        weights: (H, H) of both, where their spectra are asked for.
        inputs: what both see, where that is asked for and is there.
        assumptions: what was assumed, one sentence each.

    Raises:
        TensorError: β is NaN or inf, or not one number.
    """
    relu = cell == LIGRU
    offset = None
    if cell == JANET and OFFSET in match.tensors:
        offset = read_vector(store, match.tensors[OFFSET], 1)
    gate: GateInput | NoDrive | None = None
    state = None
    if options.gates and cell is None:
        gate = _UNKNOWN_DRIVE
    elif inputs is not None:
        function = RELU if relu else TANH
        gate, state = (
            inputs["gate"],
            HiddenState(inputs["new"], function, convex=offset is None),
        )
    found = coupled_recurrence(
        match,
        family=family,
        gate="gate",
        bias=biases["gate"],
        keeps=True,
        hidden_feedback=True,
        hidden=_spectra(cell, biases, weights, offset, options.device) if weights else None,
        assumptions=(*assumptions, *((_RELU,) if relu and inputs is not None else ())),
        inputs=gate,
        state=state,
    )
    return found if offset is None else _offset(store, match, found, biases["gate"], offset)


def _offset(
    store: TensorStore, match: Match, found: Recurrence, bias: GateBias, offset: Floats
) -> Recurrence:
    """γ = σ(β - b) in the place of 1 - λ, with β as a group of its own."""
    shut = sigmoid(bias.total - offset)
    groups = [
        replace(group, log_gain_derivative=(-shut).astype(np.complex128))
        for group in found.parameters
    ]
    tensor = match.tensors[OFFSET]
    groups.append(gain_scalar(OFFSET, tensor, offset, store.tensors[tensor].dtype, shut))
    drive = found.gate
    if isinstance(drive, GateDrive):
        motions = {**drive.motions, OFFSET: (OFFSET, 1.0)}
        drive = replace(drive, law=OffsetMix(float(offset[0])), motions=motions)
    return replace(
        found,
        log_gain=log_sigmoid(offset - bias.total).astype(np.complex128),
        parameters=tuple(groups),
        gate=drive,
    )


def _spectra(
    cell: str | None,
    biases: Mapping[str, GateBias],
    weights: Mapping[str, Floats],
    offset: Floats | None,
    device: str,
) -> HiddenSpectra:
    """Of both matrices, and of one step with a tanh candidate c.

    ``diag(σ(s)) + diag(γ (1 - c²)) U_n - diag(σ'(s - β) c) U_s`` at h = 0.
    """
    gates = {gate: eigenvalues(weight, device) for gate, weight in weights.items()}
    bias, size = biases["gate"].total, biases["gate"].total.size
    if cell is None:
        return HiddenSpectra(gates, None, _UNKNOWN_CELL)
    if cell == LIGRU:
        return HiddenSpectra(gates, None, _ACTIVATION)
    beyond = jacobian_beyond(size)
    if beyond is not None:
        return HiddenSpectra(gates, None, beyond)
    shifted = bias if offset is None else bias - offset
    written = sigmoid(-shifted)
    candidate = np.tanh(biases["new"].total)
    jacobian = np.diag(sigmoid(bias)) + (written * (1 - candidate**2))[:, None] * weights["new"]
    jacobian -= (written * sigmoid(shifted) * candidate)[:, None] * weights["gate"]
    return HiddenSpectra(gates, eigenvalues(jacobian, device))


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
