"""Keras's LSTM, GRU, SimpleRNN and ConvLSTM, of every version, with cuDNN's layouts.

Keras 1 named a cell's weights ``lstm_1/lstm_1_U_f``: W for the kernel, U for the recurrent kernel,
b for the bias, one for each gate, or without a gate with consume_less='gpu' and in a SimpleRNN
(keras/layers/recurrent.py until 1.2.2).

What a model's configuration says of a layer is read as text, and nothing is built.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import lru_cache
from math import prod
from typing import Any, NamedTuple

from memcurse_cli.checkpoints.store import TensorSpec, TensorStore
from memcurse_cli.checkpoints.untrusted.names import parse_object, printable
from memcurse_cli.errors import TensorError
from memcurse_cli.families.cells.layout import (
    IFGO,
    STATE,
    ZRN,
    CellFamily,
    Layout,
    Variant,
    elman,
    shapes_of,
)
from memcurse_cli.families.dense.dense_layer import ACTIVATION
from memcurse_cli.families.family import Assumed, Assumption, Match, ReadOptions
from memcurse_cli.families.module_names import group_by_module, split_name
from memcurse_cli.theory.gates.laws import LOGISTIC, Clipped

RECURRENT_ACTIVATION = Assumption(
    key="recurrent_activation",
    default="sigmoid",
    choices=("sigmoid", "hard_sigmoid"),
    meaning="the function of a Keras layer's gates, which its configuration would say",
)
ROLES = KERNEL, RECURRENT, BIAS = ("kernel", "recurrent_kernel", "bias")
# Keras 3 stores a cell's variables by the order in which it made them.
VARIABLES = dict(zip(("0", "1", "2"), ROLES, strict=True))
_CELL = re.compile(r"(?:.*[./,])?(?:\w+_)?cell(?:_\d+)?")
_CELL_NAME = re.compile(r"[./,](?:cell|(?:lstm|gru|simple_rnn|conv_lstm)_cell(?:_\d+)?)$")
# Keras 1.
LETTERS = {"W": KERNEL, "U": RECURRENT, "b": BIAS}
LSTM_LETTERS = {"input": "i", "forget": "f", "cell": "c", "output": "o"}
GRU_LETTERS = {"update": "z", "reset": "r", "new": "h"}
GATES = {letter: gate for gates in (LSTM_LETTERS, GRU_LETTERS) for gate, letter in gates.items()}
_NAME = re.compile(
    r"(?P<group>(?:.*/)?)(?P<layer>[^/]+)_(?P<letter>[WUb])(?:_(?P<gate>[ifcozrh]))?"
)
_RECURRENT = re.compile(r"lstm|gru|rnn")


def _layouts(gates: tuple[str, ...]) -> tuple[Layout, Layout]:
    """A cell whose kernels hold all gates, and one of Keras 1, which may keep a tensor of each."""
    whole = Layout({KERNEL: gates}, {RECURRENT: gates}, {BIAS: gates}, sides=_SIDES)
    inputs, hidden, biases = ({f"{role}_{gate}": (gate,) for gate in gates} for role in ROLES)
    return whole, Layout(inputs, hidden, biases)


_SIDES = ("bias_input", "bias_recurrent")
CONVOLUTION = Layout({KERNEL: IFGO}, {RECURRENT: IFGO}, {BIAS: IFGO}, convolves=True)
LSTMS, GRUS, (SIMPLE, _) = _layouts(IFGO), _layouts(ZRN), _layouts(STATE)


class KerasCell(NamedTuple):
    """A module's cell: how many blocks of columns its kernels have (4, 3 or 1), and its tensors."""

    module: str
    gates: int
    tensors: Mapping[str, str]


def keras1_cells(tensors: Mapping[str, TensorSpec]) -> Iterator[KerasCell]:
    """The cells of Keras 1, whose roles are kernel, recurrent_kernel and bias where they are of all
    gates, else ``recurrent_kernel_forget`` and the like.
    """
    layers: dict[str, dict[str, str]] = {}
    for name in tensors:
        found = _NAME.fullmatch(name)
        if found is None:
            continue
        # A layer's group has its name; in a wrapper it is named after its class.
        group = found["group"][:-1]
        inside = group.rpartition("/")[2]
        if not inside or not (found["layer"] == inside or _RECURRENT.search(found["layer"])):
            continue
        layer = group if found["layer"] == inside else f"{group}/{found['layer']}"
        gate = f"_{GATES[found['gate']]}" if found["gate"] else ""
        layers.setdefault(layer, {})[LETTERS[found["letter"]] + gate] = name
    for layer, roles in layers.items():
        shapes = shapes_of(tensors, roles)
        gates = _joined_gates(shapes)
        for apart in (LSTMS[1], GRUS[1]):
            if apart.matrices | apart.biases.keys() == shapes.keys() and apart.fits(shapes):
                gates = len(apart.hidden)
        if gates:
            yield KerasCell(layer, gates, roles)


def _joined_gates(shapes: Mapping[str, tuple[int, ...]]) -> int:
    """How many gates a kernel (inputs, kU) and a recurrent kernel (U, kU) have; 0 for no cell."""
    kernel, recurrent = (shapes.get(role, ()) for role in (KERNEL, RECURRENT))
    if len(kernel) != 2 or len(recurrent) != 2 or not recurrent[0]:
        return 0
    gates, rest = divmod(recurrent[1], recurrent[0])
    return gates if gates in (1, 3, 4) and not rest and kernel[1] == recurrent[1] else 0


def _modules(tensors: Mapping[str, TensorSpec]) -> Iterator[tuple[str, dict[str, str], bool]]:
    """Modules with both kernels, and whether their names alone tell a cell.

    Matrices under numbers could be anything, unless a cell holds them.
    """
    for module, names in group_by_module(tensors, ROLES).items():
        if {KERNEL, RECURRENT} <= names.keys():
            yield module, names, True
    for module, numbered in group_by_module(tensors, VARIABLES).items():
        above = module.removesuffix("/vars")
        names = {VARIABLES[role]: name for role, name in numbered.items()}
        if (above != module or module == "vars") and {KERNEL, RECURRENT} <= names.keys():
            yield above, names, _CELL.fullmatch(above) is not None


def _matches(gates: int) -> Callable[[Mapping[str, TensorSpec], str], list[Match]]:
    def matches(tensors: Mapping[str, TensorSpec], family: str) -> list[Match]:
        cells = [
            KerasCell(module, count, names)
            for module, names, told in _modules(tensors)
            if (count := _joined_gates(shapes_of(tensors, names))) > 1 or (count and told)
        ]
        cells += keras1_cells(tensors)
        # A layer holds its weights in a cell; its name is the layer's, unless it holds several.
        short = {cell.module: _CELL_NAME.sub("", cell.module) for cell in cells}
        shared = Counter(short.values())
        return [
            Match(
                (cell.module if shared[short[cell.module]] > 1 else short[cell.module]) or family,
                cell.tensors,
            )
            for cell in cells
            if cell.gates == gates
        ]

    return matches


def _convolutions(tensors: Mapping[str, TensorSpec], family: str) -> list[Match]:
    """Modules of kernels of convolutions, in a cell where they are numbered."""
    return [
        Match(_CELL_NAME.sub("", module) or family, names)
        for module, names, told in _modules(tensors)
        if told and CONVOLUTION.fits(shapes_of(tensors, names))
    ]


MAX_NODES = 200_000
KERAS1_KEYS = {"recurrent_activation": "inner_activation"}


def configured(store: TensorStore, layer: str, kind: str, key: str) -> str | None:
    """A text value in the configuration of a layer ``bidirectional/forward_layer`` and its class.

    None where it is not stored or not unique.
    """
    named = _layers(store.metadata.get("model_config", ""))
    # The innermost part of the name that a layer of the configuration bears.
    inside = next(
        (named[part] for part in reversed(re.split(r"[./,]", layer)) if part in named), None
    )
    if inside is None:
        return None
    old = KERAS1_KEYS.get(key, key)
    classes = (kind, f"{kind}Cell", f"CuDNN{kind}")
    values = {
        printable(value, 40)
        for node in _described(inside)
        if node["class_name"] in classes
        and isinstance(value := node["config"].get(key, node["config"].get(old)), str)
    }
    return values.pop() if len(values) == 1 else None


@lru_cache(maxsize=4)
def _layers(text: str) -> Mapping[str, Any]:
    """Every layer's description by the layer's name."""
    try:
        root = parse_object(text.encode()) if text else {}
    except ValueError:
        return {}
    layers: dict[str, Any] = {}
    for node in _described(root):
        name = node["config"].get("name")
        if isinstance(name, str):
            layers.setdefault(name, node)
    return layers


def _described(root: object) -> Iterator[dict[str, Any]]:
    """The objects with a class and a configuration, outermost first."""
    pending = [root]
    for _ in range(MAX_NODES):
        if not pending:
            return
        node = pending.pop()
        if isinstance(node, dict):
            if isinstance(node.get("class_name"), str) and isinstance(node.get("config"), dict):
                yield node
            pending += reversed(node.values())
        elif isinstance(node, list):
            pending += reversed(node)


def _simple(store: TensorStore, match: Match, options: ReadOptions) -> Variant:
    stored = configured(store, match.layer, "SimpleRNN", "activation")
    known = stored if stored in ACTIVATION.choices else None
    unknown = stored if known is None else None
    sentences = (f"the configuration's activation {unknown} is not modelled",) if unknown else ()
    return elman(options, sentences, default=known, silent=known is not None)


def _gated(kind: str) -> Callable[[TensorStore, Match, ReadOptions], Variant]:
    """The function of the gates of a class of Keras's, and what was assumed of it."""
    convolves = kind == "ConvLSTM"

    def variant(store: TensorStore, match: Match, options: ReadOptions) -> Variant:
        shapes = shapes_of(store.tensors, match.tensors)
        halves = False
        if {BIAS, RECURRENT} <= shapes.keys():
            halves = prod(shapes[BIAS]) == 2 * shapes[RECURRENT][-1]
        layout = None
        if kind == "GRU" and RECURRENT in shapes:
            # With ``reset_after`` the recurrent half of the bias stands inside the reset gate.
            inside = halves or BIAS not in shapes
            layout = replace(GRUS[0], inner=_SIDES[1] if inside else None)
        named = f"ConvLSTM{len(shapes[KERNEL]) - 2}D" if convolves else kind
        stored = configured(store, match.layer, named, "recurrent_activation")
        if halves and len(shapes[BIAS]) == 1:
            stored = "sigmoid"  # cuDNN has no other
        if stored is not None and stored not in RECURRENT_ACTIVATION.choices:
            raise TensorError(
                f"its gates have the activation {stored}, which is not read",
                where=match.layer,
                remedy=f"known are {', '.join(RECURRENT_ACTIVATION.choices)}",
            )
        # Until 2.3 Keras's gates were hard unless told otherwise, and those of a convolution until
        # 3; tf.keras calls itself 2.2.4-tf.
        written = store.metadata.get("keras_version", "")
        found = re.fullmatch(r"(\d{1,4})\.(\d{1,4})\.[\w.]*", written)
        version = (int(found[1]), int(found[2])) if found else None
        if version is not None:
            old = version < ((3, 0) if convolves else (2, 3))
        elif convolves:
            old = not any(split_name(name)[1] in VARIABLES for name in match.tensors.values())
        else:
            old = any(_NAME.fullmatch(name) for name in match.tensors.values())
        assumed = Assumed(options)
        default = stored or ("hard_sigmoid" if old else None)
        name = assumed.choose(RECURRENT_ACTIVATION, default=default, silent=stored is not None)
        # Keras 3 changed the slope of its hard sigmoid from 1/5 to 1/6.
        slope = 1 / 6 if version is not None and version >= (3, 0) else 0.2
        opening = LOGISTIC if name == "sigmoid" else Clipped(slope, 0.5)
        return Variant(opening, tuple(assumed.sentences), layout)

    return variant


# unit_forget_bias only initialises, so that nothing is added to what is stored. cuDNN's layers have
# a bias of the input and of the recurrent kernel; the two are summed.
KERAS_LSTM = CellFamily(
    name="keras_lstm",
    title="Keras LSTM",
    recognised_by="recurrent_kernel or cell/vars/1 (U, 4U) beside a kernel (inputs, 4U)",
    equation="λ = σ(b_f), γ = σ(b_i), columns i, f, c, o",
    source="keras.layers.LSTM, CuDNNLSTM of Keras 2; Gers et al. 2000",
    layouts=LSTMS,
    matches=_matches(4),
    variant=_gated("LSTM"),
    assumptions=(RECURRENT_ACTIVATION,),
)
KERAS_GRU = CellFamily(
    name="keras_gru",
    title="Keras GRU",
    recognised_by="recurrent_kernel or cell/vars/1 (U, 3U) beside a kernel (inputs, 3U)",
    equation="λ = σ(b_z), γ = 1 - λ, columns z, r, h",
    source="keras.layers.GRU, CuDNNGRU of Keras 2; Cho et al. 2014",
    layouts=GRUS,
    matches=_matches(3),
    variant=_gated("GRU"),
    assumptions=(RECURRENT_ACTIVATION,),
)
KERAS_CONV_LSTM = CellFamily(
    name="keras_conv_lstm",
    title="Keras ConvLSTM",
    recognised_by="recurrent_kernel or cell/vars/1 (k, k, U, 4U) beside a kernel of as many axes",
    equation="λ = σ(b_f), γ = σ(b_i), channels i, f, c, o",
    source="keras.layers.ConvLSTM1D, ConvLSTM2D, ConvLSTM3D; Shi et al. 2015, arXiv 1506.04214",
    layouts=(CONVOLUTION,),
    matches=_convolutions,
    variant=_gated("ConvLSTM"),
    assumptions=(RECURRENT_ACTIVATION,),
)
# Linearised; its bias says at which slope.
KERAS_SIMPLE_RNN = CellFamily(
    name="keras_simple_rnn",
    title="Keras SimpleRNN (dense)",
    recognised_by="recurrent_kernel or cell/vars/1 (U, U) beside a kernel (inputs, U)",
    equation="λ = eig(recurrent_kernelᵀ)",
    source="keras.layers.SimpleRNN; Elman 1990",
    layouts=(SIMPLE,),
    matches=_matches(1),
    variant=_simple,
    assumptions=(ACTIVATION,),
)
