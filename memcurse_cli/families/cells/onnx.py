"""ONNX's LSTM, GRU and RNN nodes, one layer for each direction of a node."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from memcurse_cli.checkpoints.store import TensorSpec, TensorStore
from memcurse_cli.checkpoints.untrusted.names import parse_object, printable
from memcurse_cli.errors import TensorError
from memcurse_cli.families.cells.layout import STATE, ZRN, CellFamily, Layout, Variant, elman
from memcurse_cli.families.dense.dense_layer import ACTIVATION
from memcurse_cli.families.family import Match, ReadOptions
from memcurse_cli.families.module_names import group_by_module
from memcurse_cli.families.reading import require_shape
from memcurse_cli.theory.gates.laws import LOGISTIC, Clipped

LSTM_GATES = ("input", "output", "forget", "cell")
ACTIVATIONS = {"Tanh": "tanh", "Relu": "relu"}
# The functions that take an alpha or a beta from the node's lists, in the order of the functions.
_TAKE_ALPHA = ("affine", "elu", "hardsigmoid", "leakyrelu", "scaledtanh", "thresholdedrelu")
_TAKE_BETA = ("affine", "hardsigmoid", "scaledtanh")
# The operator HardSigmoid's own defaults.
_ALPHA, _BETA = 0.2, 0.5
_CLIPPED = "the node clips what enters its activations; the biases are taken as they are"


def _layout(gates: tuple[str, ...]) -> Layout:
    """B = [Wb | Rb], of which both halves are summed."""
    return Layout({"W": gates}, {"R": gates}, {"B": gates}, columns=False, sides=("Wb", "Rb"))


LSTM = replace(_layout(LSTM_GATES), peepholes={"P": LSTM_GATES[:3]})
GRU, RNN = _layout(ZRN), _layout(STATE)


def _matches(tensors: Mapping[str, TensorSpec], operator: str) -> list[Match]:
    roles = [f"{operator}_{role}" for role in "WRBP"]
    return [
        Match(module, {role.removeprefix(f"{operator}_"): name for role, name in names.items()})
        for module, names in group_by_module(tensors, roles).items()
        if f"{operator}_R" in names and len(tensors[names[f"{operator}_R"]].shape) == 2
    ]


def _attributes(store: TensorStore, match: Match, operator: str) -> dict[str, Any]:
    """The node's attributes, each a list; none where the file does not say."""
    text = store.metadata.get(printable(f"{match.layer}/{operator}"))
    return {} if text is None else parse_object(text.encode())


def _activations(
    match: Match, attributes: Mapping[str, Any], count: int
) -> Iterator[tuple[str, float, float]]:
    """The functions of this direction, each with its alpha and beta."""
    alphas, betas = (
        iter(attributes.get(key) or ()) for key in ("activation_alpha", "activation_beta")
    )
    taken = [
        (
            name,
            float(next(alphas, _ALPHA)) if name.lower() in _TAKE_ALPHA else _ALPHA,
            float(next(betas, _BETA)) if name.lower() in _TAKE_BETA else _BETA,
        )
        for name in attributes.get("activations") or ()
        if isinstance(name, str)
    ]
    # A node of both directions lists the functions of the forward one first.
    second = match.layer.endswith("/reverse") and len(taken) >= 2 * count
    yield from taken[count : 2 * count] if second else taken[:count]


def _is_set(attributes: Mapping[str, Any], name: str) -> bool:
    values = attributes.get(name)
    return bool(values and isinstance(values[0], int) and values[0])


def _variant(operator: str, layout: Layout) -> Callable[[TensorStore, Match, ReadOptions], Variant]:
    """What a node's attributes say of its functions, and of the order of a GRU's gates."""
    (gates,) = layout.hidden.values()

    def variant(store: TensorStore, match: Match, options: ReadOptions) -> Variant:
        attributes = _attributes(store, match, operator)
        if "B" in match.tensors:
            size = store.tensors[match.tensors["R"]].shape[1]
            require_shape(store, match.tensors["B"], (2 * len(gates) * size,))
        if _is_set(attributes, "input_forget"):
            raise TensorError(
                "its input and forget gates are coupled (input_forget), which is not read",
                where=match.layer,
                remedy="export the model without input_forget",
            )
        sentences = (_CLIPPED,) if attributes.get("clip") else ()
        # An LSTM's node lists three functions, a GRU's two, the first of which opens the gates.
        found = _activations(match, attributes, max(len(gates) - 1, 1))
        if layout is RNN:
            stored = next(found, ("Tanh",))[0]
            known = ACTIVATIONS.get(stored)
            unknown = () if known else (f"the node's activation {stored} is not modelled",)
            return elman(options, (*unknown, *sentences), default=known, silent=known is not None)
        name, alpha, beta = next(found, ("Sigmoid", _ALPHA, _BETA))
        inside = _is_set(attributes, "linear_before_reset")  # Rb, inside the reset gate
        own = replace(layout, inner="Rb") if inside else layout
        if name.lower() == "sigmoid":
            return Variant(LOGISTIC, sentences, own)
        if name.lower() == "hardsigmoid" and np.isfinite([alpha, beta]).all():
            return Variant(Clipped(alpha, beta), sentences, own)
        raise TensorError(
            f"its gates have the activation {printable(name, 40)}, which is not read",
            where=match.layer,
            remedy="known are Sigmoid and HardSigmoid",
        )

    return variant


# Initialisers that the graph slices and puts together anew are followed, so that the order of the
# rows is that of the node whatever the exporter's was.
ONNX_LSTM = CellFamily(
    name="onnx_lstm",
    title="ONNX LSTM node",
    recognised_by="LSTM_R (4H, H) and LSTM_B (8H), as the reader of ONNX names a node's weights",
    equation="λ = σ(b_f), γ = σ(b_i), b = Wb + Rb, rows i, o, f, c",
    source="onnx.ai/onnx/operators/onnx__LSTM.html; Gers et al. 2000",
    layouts=(LSTM,),
    matches=lambda tensors, family: _matches(tensors, "LSTM"),
    variant=_variant("LSTM", LSTM),
)
ONNX_GRU = CellFamily(
    name="onnx_gru",
    title="ONNX GRU node",
    recognised_by="GRU_R (3H, H) and GRU_B (6H), as the reader of ONNX names a node's weights",
    equation="λ = σ(b_z), γ = 1 - λ, b = Wb + Rb, rows z, r, h",
    source="onnx.ai/onnx/operators/onnx__GRU.html; Cho et al. 2014",
    layouts=(GRU,),
    matches=lambda tensors, family: _matches(tensors, "GRU"),
    variant=_variant("GRU", GRU),
)
# Linearised; its bias says at which slope.
ONNX_RNN = CellFamily(
    name="onnx_rnn",
    title="ONNX RNN node (dense)",
    recognised_by="RNN_R (H, H), as the reader of ONNX names a node's weights",
    equation="λ = eig(R)",
    source="onnx.ai/onnx/operators/onnx__RNN.html; Elman 1990",
    layouts=(RNN,),
    matches=lambda tensors, family: _matches(tensors, "RNN"),
    variant=_variant("RNN", RNN),
    assumptions=(ACTIVATION,),
)
