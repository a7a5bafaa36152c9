"""Cells whose file may say what opens their gates: Keras's, of every version, and ONNX's nodes.

Keras 1 named a cell's weights ``lstm_1/lstm_1_U_f``: W for the kernel, U for the recurrent kernel,
b for the bias, one for each gate, or without a gate with consume_less='gpu' and in a SimpleRNN
(keras/layers/recurrent.py until 1.2.2).

What a file says is read as text, and nothing is built.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import lru_cache, partial
from math import prod
from typing import Any

import numpy as np
from msgspec.structs import replace

from memcurse_cli.checkpoints.store import TensorSpec, TensorStore
from memcurse_cli.checkpoints.untrusted.names import parse_object, printable
from memcurse_cli.families.cells.layout import (
    IFGO,
    STATE,
    ZRN,
    CellFamily,
    Layout,
    Variant,
    elman,
    shapes_of,
    stacked,
)
from memcurse_cli.families.dense.dense_layer import ACTIVATION
from memcurse_cli.families.family import Assumption, Layer, Match
from memcurse_cli.families.reading import IndexedTensors, group_by_module, misfit, split_name
from memcurse_cli.theory.gates.laws import LOGISTIC, Clipped

RECURRENT_ACTIVATION = Assumption(
    key="recurrent_activation",
    default="sigmoid",
    choices=("sigmoid", "hard_sigmoid"),
    meaning="the function of a Keras layer's gates, which its configuration would say",
)
ROLES = KERNEL, RECURRENT, BIAS = ("kernel", "recurrent_kernel", "bias")
_SIDES = ("bias_input", "bias_recurrent")
# Keras 3 stores a cell's variables by the order in which it made them. Matrices under numbers could
# be those of anything, unless they are of several gates or a cell holds them.
VARIABLES = dict(zip(("0", "1", "2"), ROLES, strict=True))
_NUMBERED = re.compile(r"(?:.*/)?vars")
_NUMBERED_CELL = re.compile(r"(?:.*[./,])?(?:\w+_)?cell(?:_\d+)?/vars")
_CELL_NAME = re.compile(r"[./,](?:cell|(?:lstm|gru|simple_rnn|conv_lstm)_cell(?:_\d+)?)$")
# Keras 1.
LETTERS = {"W": KERNEL, "U": RECURRENT, "b": BIAS}
GATES = dict(zip("ifcozrh", (*IFGO, *ZRN), strict=True))
_NAME = re.compile(
    r"(?P<group>(?:.*/)?)(?P<layer>[^/]+)_(?P<letter>[WUb])(?:_(?P<gate>[ifcozrh]))?"
)
_RECURRENT = re.compile(r"lstm|gru|rnn")


def _layouts(gates: tuple[str, ...], numbered: re.Pattern[str], **how: Any) -> tuple[Layout, ...]:
    """A cell whose kernels hold all gates, and one of Keras 1, which may keep a tensor of each."""
    joint = stacked(gates, *ROLES, **how)
    inputs, hidden, biases = ({f"{role}_{gate}": (gate,) for gate in gates} for role in ROLES)
    by_number = replace(joint, names=VARIABLES, module=numbered)
    return joint, by_number, Layout(inputs, hidden, biases, whole=True)


LSTMS = _layouts(IFGO, _NUMBERED, sides=_SIDES, told=True)
GRUS = _layouts(ZRN, _NUMBERED, sides=_SIDES, told=True)
SIMPLE = _layouts(STATE, _NUMBERED_CELL, sides=_SIDES, told=True)
CONVOLUTIONS = _layouts(IFGO, _NUMBERED_CELL, convolves=True)


def _in_todays_names(tensors: Mapping[str, TensorSpec]) -> dict[str, str]:
    """Keras 1's tensors by layer and role: ``lstm_1/recurrent_kernel_forget`` and the like."""
    names = {}
    for name in tensors:
        found = _NAME.fullmatch(name)
        if found is None:
            continue
        # A layer's group has its name; in a wrapper it is named after its class.
        group = found["group"][:-1]
        inside = group.rpartition("/")[2]
        if inside and (found["layer"] == inside or _RECURRENT.search(found["layer"])):
            layer = group if found["layer"] == inside else f"{group}/{found['layer']}"
            gate = f"_{GATES[found['gate']]}" if found["gate"] else ""
            names[f"{layer}/{LETTERS[found['letter']]}{gate}"] = name
    return names


def _matches(
    tensors: Mapping[str, TensorSpec], family: str, layouts: tuple[Layout, ...]
) -> list[Match]:
    """The cells of these layouts, each named after its layer unless that holds several."""
    old = _in_todays_names(tensors)
    renamed = IndexedTensors({new: tensors[name] for new, name in old.items()})
    cells = [
        (kind, match)
        for kind in (LSTMS, GRUS, SIMPLE, CONVOLUTIONS)
        for layout in kind
        for match in (*layout.find(tensors, family), *layout.find(renamed, family))
    ]
    modules = [match.layer.removesuffix("/vars") for _, match in cells]
    holders = [_CELL_NAME.sub("", module) for module in modules]
    shared = Counter(holders)
    return [
        Match(
            module if shared[holder] > 1 else holder or family,
            {role: old.get(name, name) for role, name in match.tensors.items()},
        )
        for (kind, match), module, holder in zip(cells, modules, holders, strict=True)
        if kind is layouts
    ]


MAX_NODES = 200_000


def _configured(store: TensorStore, layer: str, kind: str, key: str) -> str | None:
    """A text value in the configuration of a layer and its class, stored and unique, or None."""
    named = _layers(store.metadata.get("model_config", ""))
    # The innermost part of the name that a layer of the configuration bears.
    inside = next(
        (named[part] for part in reversed(re.split(r"[./,]", layer)) if part in named), None
    )
    if inside is None:
        return None
    old = "inner_activation" if key == "recurrent_activation" else key  # Keras 1's
    classes = (kind, f"{kind}Cell", f"CuDNN{kind}")
    values = {
        printable(value, 40)
        for node in _described(inside)
        if node["class_name"] in classes
        and isinstance(value := node["config"].get(key, node["config"].get(old)), str)
    }
    return values.pop() if len(values) == 1 else None


def _object(text: str) -> dict[str, Any]:
    """What a file says as JSON; nothing where that is no object."""
    try:
        return parse_object(text.encode())
    except ValueError:
        return {}


@lru_cache(maxsize=4)
def _layers(text: str) -> Mapping[str, Any]:
    """Every layer's description by the layer's name."""
    layers: dict[str, Any] = {}
    for node in _described(_object(text)):
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


def _simple(layer: Layer) -> Variant:
    stored = _configured(layer.store, layer.match.layer, "SimpleRNN", "activation")
    if stored is None or stored in ACTIVATION.choices:
        return elman(layer, default=stored, silent=stored is not None)
    return elman(layer, (f"the configuration's activation {stored} is not modelled",))


def _gated(layer: Layer, kind: str) -> Variant:
    """The function of the gates of a class of Keras's, and what was assumed of it."""
    convolves = kind == "ConvLSTM"
    store, name = layer.store, layer.match.layer
    shapes = shapes_of(store.tensors, layer.names)
    joint, layout = {BIAS, RECURRENT} <= shapes.keys(), None
    halves = joint and prod(shapes[BIAS]) == 2 * shapes[RECURRENT][-1]
    if kind == "GRU" and RECURRENT in shapes:
        # With ``reset_after`` the recurrent half of the bias stands inside the reset gate.
        inside = halves or BIAS not in shapes
        layout = replace(GRUS[0], inner=_SIDES[1] if inside else None)
    named = f"ConvLSTM{len(shapes[KERNEL]) - 2}D" if convolves else kind
    stored = _configured(store, name, named, "recurrent_activation")
    if halves and len(shapes[BIAS]) == 1:
        stored = "sigmoid"  # cuDNN has no other
    if stored is not None and stored not in RECURRENT_ACTIVATION.choices:
        what = f"its gates have the activation {stored}, which is not read"
        raise misfit(what, name, f"known are {', '.join(RECURRENT_ACTIVATION.choices)}")
    # Until 2.3 Keras's gates were hard unless told otherwise, and those of a convolution until
    # 3; tf.keras calls itself 2.2.4-tf.
    written = store.metadata.get("keras_version", "")
    found = re.fullmatch(r"(\d{1,4})\.(\d{1,4})\.[\w.]*", written)
    version = (int(found[1]), int(found[2])) if found else None
    if version is not None:
        old = version < ((3, 0) if convolves else (2, 3))
    elif convolves:
        old = not any(split_name(name)[1] in VARIABLES for name in layer.names.values())
    else:
        old = any(_NAME.fullmatch(name) for name in layer.names.values())
    default, known = stored or ("hard_sigmoid" if old else None), stored is not None
    opened = layer.choose(RECURRENT_ACTIVATION, default=default, silent=known)
    # Keras 3 changed the slope of its hard sigmoid from 1/5 to 1/6.
    slope = 1 / 6 if version is not None and version >= (3, 0) else 0.2
    opening = LOGISTIC if opened == "sigmoid" else Clipped(slope, 0.5)
    return Variant(opening, layout=layout)


def _keras(kind: str, layouts: tuple[Layout, ...], **said: str) -> CellFamily:
    dense = kind == "SimpleRNN"
    return CellFamily(
        layouts=layouts,
        matches=partial(_matches, layouts=layouts),
        variant=_simple if dense else partial(_gated, kind=kind),
        assumptions=(ACTIVATION if dense else RECURRENT_ACTIVATION,),
        **said,
    )


# unit_forget_bias only initialises, so that nothing is added to what is stored. cuDNN's layers have
# a bias of the input and of the recurrent kernel; the two are summed.
KERAS_LSTM = _keras(
    "LSTM",
    LSTMS,
    name="keras_lstm",
    title="Keras LSTM",
    recognised_by="recurrent_kernel or cell/vars/1 (U, 4U) beside a kernel (inputs, 4U)",
    equation="λ = σ(b_f), γ = σ(b_i), columns i, f, c, o",
    source="keras.layers.LSTM, CuDNNLSTM of Keras 2; Gers et al. 2000",
)
KERAS_GRU = _keras(
    "GRU",
    GRUS,
    name="keras_gru",
    title="Keras GRU",
    recognised_by="recurrent_kernel or cell/vars/1 (U, 3U) beside a kernel (inputs, 3U)",
    equation="λ = σ(b_z), γ = 1 - λ, columns z, r, h",
    source="keras.layers.GRU, CuDNNGRU of Keras 2; Cho et al. 2014",
)
KERAS_CONV_LSTM = _keras(
    "ConvLSTM",
    CONVOLUTIONS,
    name="keras_conv_lstm",
    title="Keras ConvLSTM",
    recognised_by="recurrent_kernel or cell/vars/1 (k, k, U, 4U) beside a kernel of as many axes",
    equation="λ = σ(b_f), γ = σ(b_i), channels i, f, c, o",
    source="keras.layers.ConvLSTM1D, ConvLSTM2D, ConvLSTM3D; Shi et al. 2015, arXiv 1506.04214",
)
# Linearised; its bias says at which slope.
KERAS_SIMPLE_RNN = _keras(
    "SimpleRNN",
    SIMPLE,
    name="keras_simple_rnn",
    title="Keras SimpleRNN (dense)",
    recognised_by="recurrent_kernel or cell/vars/1 (U, U) beside a kernel (inputs, U)",
    equation="λ = eig(recurrent_kernelᵀ)",
    source="keras.layers.SimpleRNN; Elman 1990",
)

LSTM_GATES = ("input", "output", "forget", "cell")
ACTIVATIONS = {"Tanh": "tanh", "Relu": "relu"}
# The functions that take an alpha or a beta from the node's lists, in the order of the functions,
# and what the operator HardSigmoid has by default.
_ALPHA = ("affine", "elu", "hardsigmoid", "leakyrelu", "scaledtanh", "thresholdedrelu"), 0.2
_BETA = ("affine", "hardsigmoid", "scaledtanh"), 0.5
_UNSET: tuple[Any, ...] = (None, [], [0])
_CLIPPED = "the node clips what enters its activations; the biases are taken as they are"


def _first_function(
    layer: str, attributes: Mapping[str, list[Any]], count: int, default: str
) -> tuple[str, float, float]:
    """The first of the functions of this direction, with its alpha and beta."""
    names = [name for name in attributes.get("activations", ()) if isinstance(name, str)]
    # A node of both directions lists the functions of the forward one first.
    first = count if layer.endswith("/reverse") and len(names) >= 2 * count else 0
    *before, name = names[: first + 1] or [default]

    def taken(key: str, takers: tuple[str, ...], otherwise: float) -> float:
        place = sum(each.lower() in takers for each in before)
        values = attributes.get(key, [])[place:] if name.lower() in takers else []
        return values[0] if values and isinstance(values[0], float) else otherwise

    return printable(name, 40), taken("activation_alpha", *_ALPHA), taken("activation_beta", *_BETA)


def _node(
    operator: str, gates: tuple[str, ...], shown: str, equation: str, paper: str
) -> CellFamily:
    """A node's family, whose attributes say its functions and the order of a GRU's gates."""
    # B = [Wb | Rb], of which both halves are summed.
    layout = stacked(gates, *"WRB", columns=False, sides=("Wb", "Rb"))
    if gates == LSTM_GATES:
        layout = replace(layout, peepholes={"P": gates[:3]})
    dense = gates == STATE

    def matches(tensors: Mapping[str, TensorSpec], _: str) -> list[Match]:
        roles = {f"{operator}_{role}": role for role in "WRBP"}
        return [
            Match(module, {roles[last]: name for last, name in names.items()})
            for module, names in group_by_module(tensors, roles).items()
            if f"{operator}_R" in names and len(tensors[names[f"{operator}_R"]].shape) == 2
        ]

    def variant(layer: Layer) -> Variant:
        where = layer.match.layer
        said = _object(layer.store.metadata.get(printable(f"{where}/{operator}"), ""))
        attributes = {name: each for name, each in said.items() if isinstance(each, list)}
        if "B" in layer.names:
            size = layer.shape("R")[1]
            layer.require("B", (2 * len(gates) * size,))
        if attributes.get("input_forget") not in _UNSET:
            what = "its input and forget gates are coupled (input_forget), which is not read"
            raise misfit(what, where, "export the model without input_forget")
        sentences = (_CLIPPED,) if attributes.get("clip") else ()
        # An LSTM's node lists three functions, a GRU's two, the first of which opens the gates.
        default = "Tanh" if dense else "Sigmoid"
        count = max(len(gates) - 1, 1)
        stored, alpha, beta = _first_function(where, attributes, count, default)
        if dense:
            known = ACTIVATIONS.get(stored)
            unknown = () if known else (f"the node's activation {stored} is not modelled",)
            return elman(layer, (*unknown, *sentences), default=known, silent=known is not None)
        inside = attributes.get("linear_before_reset") not in _UNSET  # Rb, inside the reset gate
        own = replace(layout, inner="Rb") if inside else layout
        if stored.lower() == "sigmoid":
            return Variant(LOGISTIC, sentences, own)
        if stored.lower() == "hardsigmoid" and np.isfinite([alpha, beta]).all():
            return Variant(Clipped(alpha, beta), sentences, own)
        what = f"its gates have the activation {stored}, which is not read"
        raise misfit(what, where, "known are Sigmoid and HardSigmoid")

    return CellFamily(
        name=f"onnx_{operator.lower()}",
        title=f"ONNX {operator} node{' (dense)' if dense else ''}",
        recognised_by=f"{shown}, as the reader of ONNX names a node's weights",
        equation=equation,
        source=f"onnx.ai/onnx/operators/onnx__{operator}.html; {paper}",
        layouts=(layout,),
        matches=matches,
        variant=variant,
        assumptions=(ACTIVATION,) if dense else (),
    )


# Initialisers that the graph slices and puts together anew are followed, so that the order of the
# rows is that of the node whatever the exporter's was.
ONNX_LSTM = _node(
    "LSTM",
    LSTM_GATES,
    "LSTM_R (4H, H) and LSTM_B (8H)",
    "λ = σ(b_f), γ = σ(b_i), b = Wb + Rb, rows i, o, f, c",
    "Gers et al. 2000",
)
ONNX_GRU = _node(
    "GRU",
    ZRN,
    "GRU_R (3H, H) and GRU_B (6H)",
    "λ = σ(b_z), γ = 1 - λ, b = Wb + Rb, rows z, r, h",
    "Cho et al. 2014",
)
# Linearised; its bias says at which slope.
ONNX_RNN = _node("RNN", STATE, "RNN_R (H, H)", "λ = eig(R)", "Elman 1990")
