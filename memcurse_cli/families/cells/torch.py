"""Cells in torch's names: the LSTM, the GRU and its mutations, the MGU and others of one gate.

torchrecurrent alone has some forty cells whose tensors have the same names. What tells them apart
is a further tensor, or the name of the layer or of the file; else the report says what it could be.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from math import prod
from pathlib import PurePath
from typing import Any, NamedTuple

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from memcurse_cli.checkpoints.store import TensorSpec, TensorStore
from memcurse_cli.errors import TensorError
from memcurse_cli.families.cells.layout import (
    IFGO,
    RZN,
    ZRN,
    Cell,
    CellFamily,
    Gated,
    Layout,
    Variant,
    called,
    mix,
    stacked,
    stepped,
    without_jacobian,
)
from memcurse_cli.families.family import Assumption, Layer, Match
from memcurse_cli.families.gate_inputs import GateInput, NoDrive
from memcurse_cli.families.reading import misfit, shown_shape, split_name
from memcurse_cli.families.recurrence import Floats
from memcurse_cli.families.selective.law import Slot
from memcurse_cli.theory.duals import sigmoid, tanh
from memcurse_cli.theory.gates.laws import OffsetMix
from memcurse_cli.theory.gates.moments import RELU

# encoder.weight_hh_l0_reverse of nn.LSTM, cell.weight_hh of nn.LSTMCell, enc_w_hh of a port.
_HIDDEN_WEIGHT = re.compile(
    r"(?P<module>(?:.*[./,_])?)(?P<stem>weight|[wW])_hh(?P<suffix>(?:_l\d+)?(?:_reverse)?)"
)
# PaddlePaddle saves the cells of a network under its own names as well.
_PADDLE_CELL = re.compile(
    r"(?P<network>(?:.*\.)?)(?P<index>\d{1,6})\.cell(?P<direction>|_fw|_bw)\."
)


def hidden_weights(
    tensors: Mapping[str, TensorSpec], family: str, gates: int | None = None
) -> list[Match]:
    """The layer and direction of every hidden weight (gates · H, H), in the order of the file.

    Of four gates it may be (4H, P) beside a projection ``weight_hr``; of None it is any matrix.
    The roles are weight_hh, weight_ih, weight_hr, bias_ih, bias_hh, and Equinox's bias and bias_n.
    """
    found = []
    for name, spec in tensors.items():
        parts = _HIDDEN_WEIGHT.fullmatch(name) if "_hh" in name and len(spec.shape) == 2 else None
        if parts is None or _is_alias(tensors, parts["module"], spec):
            continue
        module, stem, suffix = parts.groups()
        known = {f"{stem}_ih": "weight_ih", f"{stem}_xh": "weight_ih", f"{stem}_hr": "weight_hr"}
        for bias in ("bias",) if stem == "weight" else ("b", "bias"):
            known |= {f"{bias}_ih": "bias_ih", f"{bias}_hh": "bias_hh"}
        named = {f"{module}{last}{suffix}": role for last, role in known.items()}
        roles = {"weight_hh": name}
        roles |= {role: tensor for tensor, role in named.items() if tensor in tensors}
        # Equinox keeps one bias for both sides, and what the reset gate of its GRU multiplies.
        if f"{module}bias" in tensors and not roles.keys() & {"bias_ih", "bias_hh"} and not suffix:
            added = {role: f"{module}{role}" for role in ("bias", "bias_n")}
            roles |= {role: tensor for role, tensor in added.items() if tensor in tensors}
        rows, columns = spec.shape
        projected = "weight_hr" in roles  # an LSTM's state
        fits = gates == 4 and rows % 4 == 0 if projected else rows == (gates or 0) * columns
        if fits or gates is None:
            joint = module[-1:] if module[-1:] in (".", "/", ",") else "."
            layer = joint.join(filter(None, (module.rstrip("./,_"), suffix.lstrip("_"))))
            found.append(Match(layer or family, roles))
    return found


def split_hidden_weight(name: str) -> tuple[str, str, str]:
    """What stands before ``weight_hh``, ``weight``, ``w`` or ``W``, and ``_l0`` and its like."""
    parts = _HIDDEN_WEIGHT.fullmatch(name)
    assert parts is not None
    return parts["module"], parts["stem"], parts["suffix"]


def _is_alias(tensors: Mapping[str, TensorSpec], module: str, spec: TensorSpec) -> bool:
    """Whether a cell's weight stands in the file again, as its network's."""
    cell = _PADDLE_CELL.fullmatch(module)
    if cell is None:
        return False
    end = "_reverse" if cell["direction"] == "_bw" else ""
    return tensors.get(f"{cell['network']}weight_hh_l{cell['index']}{end}") == spec


def torch_layout(gates: tuple[str, ...], **how: Any) -> Layout:
    """The rows of weight_ih, weight_hh and the biases."""
    names = ("weight_ih", "weight_hh", "bias_ih", "bias_hh", "bias")
    return stacked(gates, *names, columns=False, projection="weight_hr", **how)


KEY = "cell"
MEANING = "which of the cells that are stored alike it is"


def _word(words: str) -> str:
    """As a word of its own: ``mut1``, ``MUT1Cell``, ``my_star_rnn`` and ``STARNet2``."""
    return rf"(?<![a-z])(?:{words})(?:_?(?:cells?|layers?|rnn|net|network))?(?![a-z])"


# A cell's name in a sentence, and what a layer's or a file's name has in it.
_CALLED = {
    "mgu": ("MGU", r"mgu|minimal_?gated"),
    "ligru": ("LiGRU", r"li_?gru|light_?gru"),
    "janet": ("JANET", r"janet"),
    "ugrnn": ("UGRNN", r"ugrnn"),
    "sgu": ("SGU", _word(r"d?sgu")),
    "miru": ("MiRU", _word(r"mi_?ru_?[12]?")),
    "mut1": ("MUT1", _word(r"mut_?1")),
    "mut2": ("MUT2", _word(r"mut_?2")),
    "mut3": ("MUT3", _word(r"mut_?3")),
    "original_lstm": ("OriginalLSTM", r"original_?lstm"),
    "tau_gru": ("tauGRU", _word(r"tau_?gru")),
    "intersection_rnn": ("IntersectionRNN", r"intersection_?rnn"),
    "tgru": ("TGRU", _word(r"tgru")),
    "tlstm": ("TLSTM", _word(r"tlstm")),
    "atr": ("ATR", _word(r"atr")),
    "antisymmetric_rnn": ("AntisymmetricRNN", r"anti_?symmetric"),
    "nbr": ("NBR", _word(r"nbr")),
    "cfn": ("CFN", _word(r"cfn")),
    "light_ru": ("LightRU", _word(r"light_?ru")),
    "star": ("STAR", _word(r"star")),
    "sgrn": ("SGRN", _word(r"sgrn")),
}
# As torchrecurrent keeps the cells of a layer, and many a network those of torch.
_CELL_LIST = re.compile(r"(?:.*[./])?cells[./]\d+[./]")

# Tensors that stand beside the hidden weight of another cell than torch's.
_OTHERS = (
    *("{0}_ph", "{0}_ch", "{0}_mh", "{0}_mm", "{0}_proj", "{0}_res", "{0}_pi", "{0}_pf", "{0}_po"),
    *("{0}_ci", "{0}_cf", "{0}_co", "{0}_cc", "{0}_peephole", "{0}_peepholes", "{0}_peep"),
    *("{1}_ch", "{1}_mh", "{1}_mm", "{1}_ph", "alpha", "beta", "beta1", "beta2", "gamma", "zeta"),
    *("nu", "eta", "epsilon", "dt", "tau", "leak", "leak_rate", "taus", "log_tau"),
)
# Norms inside the gates, whose biases add to theirs: those of TorchScript's LSTM and its like.
_OTHER_NORMS = (
    *("layernorm_i", "layernorm_h", "layernorm_c", "layer_norm_i", "layer_norm_h"),
    *("ln_ih", "ln_hh", "ln_i2h", "ln_h2h", "norm_ih", "norm_hh"),
)


class Choice(NamedTuple):
    """The cell that a layer is taken for, and what that assumes."""

    cell: str
    sentences: tuple[str, ...] = ()
    told: bool = False  # by a name or the user
    given: bool = False  # by the user


class Lookalikes(Struct, frozen=True):
    """A cell of torch's, and what is stored in its names and shapes."""

    own: str  # the key of torch's cell
    title: str  # in a sentence
    read: tuple[str, ...] = ()  # the keys of the others that the family reads
    refused: tuple[str, ...] = ()  # and of those that it does not
    square: tuple[str, ...] = ()  # of the latter, alike only with as many inputs as units

    @property
    def assumption(self) -> Assumption:
        """Which of the cells it is, for ``--assume``."""
        return Assumption(KEY, self.own, (self.own, *self.read), MEANING)

    def choose(self, layer: Layer) -> Choice:
        """The cell that a layer with a role ``weight_hh`` is taken for.

        Raises TensorError: a tensor beside the weight, or a name, says that it is a cell that the
        family does not read. A norm inside the gates says so whatever the user does.
        """
        store, names = layer.store, layer.names
        given = layer.options.assume.get(KEY, "")
        insists = given in (self.own, *self.read)
        weight = names["weight_hh"]
        for role, tensor in beside(store.tensors, weight).items():
            norm, _, part = role.rpartition(".")
            if norm in _OTHER_NORMS:
                what = (
                    f"it stands beside {weight}: the {part} of a norm inside the gates or around "
                    f"the state, which {self.title} has not"
                )
                raise misfit(what, tensor, "a cell with such norms is not read")
            if not insists and role not in names:  # those the family knows
                raise self.stranger(weight, role, tensor)
        if insists:
            return Choice(given, (f"{KEY}={given} (as given): {MEANING}",), told=True, given=True)
        module, _, suffix = split_hidden_weight(weight)
        as_many = layer.shape(names.get("weight_ih", weight))[1:] == layer.shape(weight)[1:]
        excluded = () if as_many else self.square
        others = [cell for cell in (*self.read, *self.refused) if cell not in excluded]
        own = (self.own,) if self.own in _CALLED else ()
        if suffix and not own:  # a layer of torch's own, weight_hh_l0
            return Choice(self.own)
        named = named_cell(module, store.path, (*own, *others))
        if named == self.own:
            return Choice(self.own, told=True)
        if named in self.refused:
            what = f"its name says {title_of(named)}, a cell that is stored like {self.title}"
            remedy = f"give --assume {KEY}={self.own} if it is {self.title}"
            raise misfit(f"{what} and is not read", weight, remedy)
        if named is not None:
            return Choice(named, (f"{KEY}={named} (by its name): {MEANING}",), told=True)
        if not _CELL_LIST.fullmatch(module) or not others:
            return Choice(self.own)
        alike = ", ".join(map(title_of, others))
        sentence = (
            f"{KEY}={self.own} (the default): torchrecurrent stores other cells alike ({alike}), "
            "and the layer's name does not tell"
        )
        return Choice(self.own, (sentence,))

    def misfit(self, store: TensorStore, weight: str, inputs: str) -> TensorError:
        """What is said of an input weight of other rows than the hidden one."""
        rows, hidden = (shown_shape(store.tensors[name].shape) for name in (inputs, weight))
        what = f"its shape {rows} does not fit {hidden} of {weight} as in {self.title}"
        return self._another(what, inputs)

    def stranger(self, weight: str, role: str, tensor: str) -> TensorError:
        """What is said of a tensor that the cell has not."""
        what = f"it stands beside {weight}, and {self.title} has no {role}"
        return self._another(what, tensor)

    def _another(self, what: str, tensor: str) -> TensorError:
        remedy = f"if it is no part of it, give --assume {KEY}={self.own} to read the layer so"
        return misfit(f"{what}: this is another cell", tensor, remedy)


def beside(tensors: Mapping[str, TensorSpec], weight: str) -> dict[str, str]:
    """The tensors in the module of a hidden weight that torch's own cells have not, by role."""
    module, stem, suffix = split_hidden_weight(weight)
    norms = (f"{norm}.{part}" for norm in _OTHER_NORMS for part in ("weight", "bias"))
    others = (role.format(stem, "bias" if stem == "weight" else "b") for role in _OTHERS)
    found = {}
    for role in (*norms, *others):
        for tensor in (f"{module}{role}{suffix}", f"{module}{role}"):
            if tensor in tensors:
                found[role] = tensor
    # A network of one hidden layer calls its readout so; only a square one can be inside the cell.
    readout, shape = f"{stem}_ho", tensors[weight].shape
    square = shape[1:] * 2
    outside = tensors.get(f"{module}{readout}")
    if outside is not None and shape != square == outside.shape and len(square) == 2:
        found[readout] = f"{module}{readout}"
    return found


def named_cell(module: str, path: str, among: Iterable[str]) -> str | None:
    """The cell that a module's name tells, or else that of its file; None where neither does.

    Of a path the last part counts; a match's name may be its family's and tells nothing.
    """
    among = tuple(among)
    for name in (module, PurePath(path).stem if path else ""):
        for cell in among:
            if re.search(_CALLED[cell][1], name, re.IGNORECASE):
                return cell
    return None


def title_of(cell: str) -> str:
    """What a cell is called."""
    return _CALLED[cell][0]


MUT2, MUT3 = "mut2", "mut3"
GRU_CELLS = Lookalikes(
    "gru",
    "torch's GRU",
    read=(MUT2, MUT3),
    refused=("original_lstm", "tgru", "tlstm"),
    square=("tgru", "tlstm"),
)
# Equinox has one bias, and beside it what the reset gate multiplies.
TORCH = torch_layout(RZN, inner="bias_hh")
EQUINOX = replace(TORCH, biases={"bias": RZN, "bias_n": ("new",)}, inner="bias_n")
# h' = (1 - σ(z)) h + σ(z) tanh(n), n = W_n x + U_n (σ(r) ∘ h) + b_n (Jozefowicz et al. 2015).
# MUT3's z sees tanh(h) where MUT2's sees h, which have the same slope at h = 0.
MUTATION = torch_layout(ZRN, keeps=False)
_BENT_STATE = NoDrive(
    "its update gate sees tanh(h), and how large that is does not follow from how large h is"
)


def _gru_variant(layer: Layer) -> Variant:
    choice = GRU_CELLS.choose(layer)
    layout = EQUINOX if "bias_n" in layer.names else TORCH
    if choice.cell in GRU_CELLS.read:
        layout = MUTATION
    undriven = _BENT_STATE if choice.cell == MUT3 else None
    return Variant(assumptions=choice.sentences, layout=layout, undriven=undriven)


GRU = CellFamily(
    name="gru",
    title="GRU",
    recognised_by="weight_hh_l0, weight_hh or w_hh (3H, H)",
    equation="λ = σ(b_z), γ = 1 - λ, b = bias_ih + bias_hh, rows r, z, n",
    source="torch.nn.GRU; Cho et al. 2014; theory of Zucchet & Orvieto 2024, D.2",
    layouts=(TORCH,),
    matches=lambda tensors, family: hidden_weights(tensors, family, gates=3),
    variant=_gru_variant,
    assumptions=(GRU_CELLS.assumption,),
)

PEEPHOLES = "weight_ph"  # of torchrecurrent, rows i, f, o
LSTM_CELLS = Lookalikes(
    "lstm", "torch's LSTM", refused=("tau_gru", "intersection_rnn"), square=("intersection_rnn",)
)


def _matches_lstm(tensors: Mapping[str, TensorSpec], family: str) -> list[Match]:
    found = []
    for match in hidden_weights(tensors, family, gates=4):
        weight = match.tensors["weight_hh"]
        tensor = beside(tensors, weight).get(PEEPHOLES)
        if tensor is not None and not split_hidden_weight(weight)[2]:  # a layer of torch's has none
            match = replace(match, tensors={**match.tensors, PEEPHOLES: tensor})
        found.append(match)
    return found


LSTM = CellFamily(
    name="lstm",
    title="LSTM",
    recognised_by="weight_hh_l0 or weight_hh (4H, H), or with a projection weight_hr_l0 (4H, P)",
    equation="λ = σ(b_f), b = bias_ih + bias_hh, rows i, f, g, o",
    source="torch.nn.LSTM, torchrecurrent; Gers et al. 2000; theory of Zucchet & Orvieto 2024, D.2",
    layouts=(torch_layout(IFGO, peepholes={PEEPHOLES: ("input", "forget", "output")}),),
    matches=_matches_lstm,
    variant=lambda layer: Variant(assumptions=LSTM_CELLS.choose(layer).sentences),
    assumptions=(LSTM_CELLS.assumption,),
)

# LiGRU, JANET and UGRNN keep by their one gate where an MGU writes by it, and reset nothing:
#     h' = σ(s) h + (1 - σ(s - β)) f(W x + U h + b),  λ = σ(b_s), γ = σ(β - b_s)
# β is 0 but in a JANET that stores it. f is a ReLU in a LiGRU, else a tanh.
GATE_KEEPS = Assumption(
    key="gate_keeps",
    default="no",
    choices=("no", "yes"),
    meaning="whether an open gate keeps the state (λ = σ(b)) or writes it (λ = 1 - σ(b))",
)
LIGRU, JANET, UGRNN = KEEPING = ("ligru", "janet", "ugrnn")
OFFSET = "beta"
CELLS = Lookalikes("mgu", "an MGU", read=KEEPING, refused=("sgu", "miru"))

ROWS = torch_layout(("gate", "new"))
LINEARS = Layout(
    {"W_f.weight": ("gate",), "W_h.weight": ("new",)},
    {"U_f.weight": ("gate",), "U_h.weight": ("new",)},
    dict.fromkeys(("W_f.bias", "U_f.bias"), ("gate",))
    | dict.fromkeys(("W_h.bias", "U_h.bias"), ("new",)),
    columns=False,
    strangers=tuple(f"{letter}_{gate}.weight" for letter in "WU" for gate in "iorzc"),
    told=True,
)
ACTIVATION = "the activation of its candidate is not stored"
_RELU = "the state that gates see is that of a ReLU candidate, as by default"
_UNKNOWN_CELL = "which cell it is, and so what its candidate sees of the state, is not stored"
_UNKNOWN_DRIVE = NoDrive(
    "which cell it is, and so how large the state is that its gate sees, is not stored: the "
    "layer's name or --assume cell tells"
)


def _matches_mgu(tensors: Mapping[str, TensorSpec], family: str) -> list[Match]:
    matches = []
    for match in hidden_weights(tensors, family, gates=2):
        offset = beside(tensors, match.tensors["weight_hh"]).get(OFFSET)
        if offset is not None and prod(tensors[offset].shape) == 1:
            match = replace(match, tensors={**match.tensors, OFFSET: offset})
        matches.append(match)
    return matches + LINEARS.find(tensors, family)


def _mgu_cell(layer: Layer) -> tuple[str | None, tuple[str, ...]]:
    """``mgu``, one of `KEEPING`, or None for one that keeps by its gate, and what its name says."""
    store, names = layer.store, layer.names
    if "U_f.weight" in names:
        named = named_cell(names["U_f.weight"], store.path, (CELLS.own, *KEEPING))
        choice = Choice(named or CELLS.own, told=named is not None)
    else:
        choice = CELLS.choose(layer)
    if OFFSET in names and not choice.told:
        sentence = f"{KEY}={JANET} (by its scalar {OFFSET}): {MEANING}"
        choice = Choice(JANET, (sentence,), told=True)
    elif OFFSET in names and choice.cell != JANET and not choice.given:
        raise CELLS.stranger(names["weight_hh"], OFFSET, names[OFFSET])
    rows = {layer.shape(role)[:1] for role in ("weight_ih", "weight_hh") if role in names}
    if len(rows) > 1 and not choice.given:
        raise CELLS.misfit(store, names["weight_hh"], names["weight_ih"])
    keeps = layer.choose(
        GATE_KEEPS,
        default="yes" if choice.cell in KEEPING else "no",
        silent=choice.told and choice.cell == CELLS.own,
    )
    if (keeps == "yes") != (choice.cell in KEEPING):  # the user says other than the name
        return (None if keeps == "yes" else CELLS.own), ()
    return choice.cell, choice.sentences


def _mgu_variant(layer: Layer) -> Variant:
    name, assumptions = _mgu_cell(layer)
    layout = LINEARS if "U_f.weight" in layer.names else ROWS
    if name == CELLS.own:
        return Variant(assumptions=assumptions, layout=replace(layout, keeps=False))
    if name == UGRNN and layout is ROWS:
        layout = torch_layout(("new", "gate"))  # as torchrecurrent stacks them
    plain = Variant(assumptions=assumptions, layout=replace(layout, resets=False))
    if name is None:
        reason = without_jacobian(_UNKNOWN_CELL)
        return replace(plain, spectra=reason, undriven=_UNKNOWN_DRIVE)
    if name == LIGRU:
        driven = layer.options.gates and ("weight_ih" in layer.names or layout is LINEARS)
        return replace(
            plain,
            assumptions=(*assumptions, *((_RELU,) if driven else ())),
            candidate=RELU,
            spectra=without_jacobian(ACTIVATION),
        )
    return _offset(plain, layer) if name == JANET and OFFSET in layer.names else plain


def _offset(plain: Variant, layer: Layer) -> Variant:
    """JANET's β, a scalar that moves every gain: d log γ/dβ = 1 - γ = -d log γ/db_s."""
    offset = layer.vector(OFFSET, 1)

    def step(_: Cell, z: dict[str, Any], h: Any) -> Any:
        return sigmoid(z["gate"]) * h + sigmoid(offset - z["gate"]) * tanh(z["new"])

    def recur(cell: Cell, variant: Variant, seen: Mapping[str, GateInput]) -> Gated:
        plain = mix(cell, variant, seen)
        slot = Slot(OFFSET, offset, OFFSET, scalar=np.zeros(cell.size, dtype=np.intp))
        return plain._replace(
            law=OffsetMix(float(offset[0])),
            slots=(*plain.slots, slot),
            state=plain.state and replace(plain.state, convex=False),
        )

    return replace(plain, spectra=stepped(step), recur=recur)


# h' = (1-f) h + f tanh(W x + U (f ∘ h) + b). Its torch ports stack f and the candidate in a weight
# (2H, H), or have linears W_f, U_f, W_h, U_h.
MGU = CellFamily(
    name="mgu",
    title="MGU (minimal gated unit) and other cells of one gate",
    recognised_by="weight_hh (2H, H); or U_f.weight, W_f.weight, U_h.weight and no other gate",
    equation="λ = 1 - σ(b_f), γ = σ(b_f), b = bias_ih + bias_hh, rows f, h; or λ = σ(b_f)",
    source="torchrecurrent; Zhou et al. 2016, arXiv 1603.09420",
    layouts=(ROWS, LINEARS),
    matches=_matches_mgu,
    variant=_mgu_variant,
    assumptions=(GATE_KEEPS, CELLS.assumption),
)


# GRUs behind a norm. At zero input a batch normalisation puts out b = β - s μ/√(v + ε) with its
# scale s, its bias β and its running mean μ and variance v; a layer normalisation puts out β, and
# adds the normalised value of a bias before it. One behind the hidden matrix is not known.
BATCH_EPSILON = Assumption(
    key="batch_norm_epsilon",
    default="1e-05",
    meaning="ε beside the running variance of a light GRU's batch normalisation",
)
NZ = ("new", "update")
_SCALE, _BIAS, _STATE_BIAS = "norm.weight", "norm.bias", "layer_norm.bias"
_RUNNING = ("norm.running_mean", "norm.running_var")
LIGHT = stacked(
    NZ,
    *("w.weight", "u.weight", _BIAS, _STATE_BIAS),
    columns=False,
    resets=False,
    vectors=(_SCALE, *_RUNNING),
    required=((_SCALE,), (_BIAS,)),
)
_AS_RELU = (
    "the state that gates see is that of a ReLU candidate, as by default, without the normalisation"
    " of U h that SLiGRU has and does not store"
)
_STATE_NORMALISED = NoDrive("a layer normalisation stands between the hidden state and its gates")


def _light_variant(layer: Layer) -> Variant:
    """What the normalisation adds to the biases, and what it shows of the input."""
    scale = layer.vector(_SCALE)
    share, width = np.zeros_like(scale), np.ones_like(scale)
    batch = _RUNNING[0] in layer.names
    if batch:
        epsilon = layer.positive(BATCH_EPSILON)
        mean, variance = map(layer.vector, _RUNNING)
        if np.any(variance < 0):
            below = layer.names[_RUNNING[1]]
            raise misfit("a running variance is below 0", below, "export the layer again")
        width = np.sqrt(variance + epsilon)
        share = -mean / width
    shown = dict(zip(NZ, np.split((scale / width) ** 2, len(NZ)), strict=True))

    def seen(cell: Cell) -> dict[str, GateInput]:
        """A layer normalisation puts out ``s_i w_i / √(mean_j w_j²)``, at any scale of x."""
        gates = cell.seen()
        mean = max(float(np.mean([gate.inputs for gate in gates.values()])), np.finfo(float).tiny)
        return {
            name: replace(gate, inputs=shown[name] * gate.inputs)
            if batch
            else replace(gate, inputs=0.0, fixed=shown[name] * gate.inputs / mean)
            for name, gate in gates.items()
        }

    def recur(cell: Cell, variant: Variant, seen: Mapping[str, GateInput]) -> Gated:
        plain = mix(cell, variant, seen)
        name, own = f"{_SCALE}[update]", slice(cell.size, None)
        slot = Slot(name, scale[own], "update", share[own], driven=False)
        return plain._replace(slots=(*plain.slots, slot))

    normalised = _STATE_BIAS in layer.names
    return Variant(
        assumptions=(_AS_RELU,) if layer.options.gates and not normalised else (),
        added=dict(zip(NZ, np.split(scale * share, len(NZ)), strict=True)),
        candidate=RELU,
        spectra=without_jacobian(ACTIVATION),
        seen=seen,
        undriven=_STATE_NORMALISED if normalised else None,
        recur=recur if batch else None,
    )


# h' = z h + (1-z) a(n), z = σ(N(W x)_z + U_z h)
LIGHT_GRU = CellFamily(
    name="light_gru",
    title="Light GRU (SpeechBrain)",
    recognised_by="w.weight (2H, inputs) and u.weight (2H, H) beside norm.weight and norm.bias",
    equation="λ = σ(b_z), γ = 1 - λ, b = β - s μ/√(v + ε) + layer_norm.bias, rows n, z",
    source="speechbrain.nnet.RNN.LiGRU and SLiGRU; Ravanelli et al. 2018, arXiv 1803.10225",
    layouts=(
        replace(LIGHT, strangers=_RUNNING),
        replace(LIGHT, required=((_SCALE,), (_BIAS,), *((each,) for each in _RUNNING))),
    ),
    variant=_light_variant,
    assumptions=(BATCH_EPSILON,),
)


UPDATE_BIAS = Assumption(
    key="update_bias",
    default="-1.0",
    meaning="what the GRU of Dreamer adds to the pre-activation of its update gate",
)
LAYER_EPSILON = Assumption(
    key="norm_epsilon",
    default="0.001",
    meaning="ε of the layer normalisation in the GRU of Dreamer, where its linear has a bias",
)
RNZ = ("reset", "new", "update")
DREAMER = stacked(
    RNZ,
    *("weight", "weight", "bias"),
    columns=False,
    keeps=False,
    vectors=("linear_bias", "scale"),
    whole=True,
)


def _dreamer(linear: str, norm: str, module: re.Pattern[str] | None = None) -> Layout:
    names = {
        f"{linear}.weight": "weight",
        f"{linear}.bias": "linear_bias",
        f"{norm}.weight": "scale",
        f"{norm}.bias": "bias",
    }
    return replace(DREAMER, names=names, module=module)


_STATE_FIRST = "linear"
_RECURRENT = called("(?:rnn|gru|cell)")
# dreamerv3-torch, where the list that the linear stands in is no part of the cell's name; its later
# version, whose linear has the bias where nothing is normalised; SheepRL, which puts h before x.
DREAMERS = (
    _dreamer("layers.GRU_linear", "layers.GRU_norm"),
    _dreamer("GRU_linear", "GRU_norm"),
    replace(
        DREAMER,
        module=_RECURRENT,
        names={"_layer.weight": "weight", "_layer.bias": "bias"},
        strangers=("_norm.weight",),
    ),
    _dreamer("_layer", "_norm", _RECURRENT),
    _dreamer(_STATE_FIRST, "layer_norm", _RECURRENT),
)
NORMALISED = (
    "a layer normalisation stands before the gates: at zero its slope is that of its ε, which is "
    "not stored"
)


def _dreamer_variant(layer: Layer) -> Variant:
    names, rows = layer.names, layer.shape("bias")
    shift = float(layer.choose(UPDATE_BIAS))
    added: Floats | float = shift
    scale = None
    if "scale" in names and (layer.options.gates or "linear_bias" in names):
        scale = layer.real("scale", rows)
    if "linear_bias" in names and scale is not None:
        shown = layer.real("linear_bias", rows)
        centred = shown - shown.mean()
        epsilon = float(layer.choose(LAYER_EPSILON))
        normal = centred / np.sqrt(np.mean(centred**2) + epsilon)
        added = shift + np.split(scale * normal, len(RNZ))[-1]

    def seen(cell: Cell) -> dict[str, GateInput]:
        """Whatever the input and the state, the normalisation puts out a variance of 1."""
        if scale is None:
            return {}
        ((_, _, stored),) = cell.biases["update"].parts
        own = np.split(scale, len(RNZ))[-1]
        return {"update": GateInput(stored + shift, fixed=own**2)}

    linear = split_name(split_name(names["weight"])[0])[1]
    return Variant(
        layout=replace(DREAMER, state_first=linear == _STATE_FIRST),
        added={"update": added},
        spectra=without_jacobian(NORMALISED),
        seen=seen,
    )


# h' = (1-u) h + u tanh(σ(r) n), u = σ(LN(W [x, h])_u + update_bias)
LAYER_NORM_GRU = CellFamily(
    name="layer_norm_gru",
    title="Layer-normalised GRU (Dreamer)",
    recognised_by=(
        "GRU_linear.weight (3H, inputs + H) beside GRU_norm.bias (3H); or _layer and _norm, linear "
        "and layer_norm in a cell, gru or rnn"
    ),
    equation="λ = 1 - σ(b_u), γ = σ(b_u), b_u = β_u + update_bias, rows r, n, u",
    source=(
        "NM512/dreamerv3-torch, networks.py; SheepRL's LayerNormGRUCell; Hafner et al. 2020, "
        "arXiv 2010.02193"
    ),
    layouts=DREAMERS,
    variant=_dreamer_variant,
    assumptions=(UPDATE_BIAS, LAYER_EPSILON),
)
