"""ONNX's local functions, compared with the same model after onnx has inlined them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from library.formats.test_onnx import (
    H,
    branches,
    gru_node,
    gru_tensors,
    gru_weights,
    initializer,
    saved,
)
from onnx import TensorProto, helper, inliner, numpy_helper

from memcurse_cli.checkpoints.open import open_checkpoint
from memcurse_cli.diagnosis.inspection import inspect

DOMAIN = "local"
OPSETS = [helper.make_opsetid("", 17), helper.make_opsetid(DOMAIN, 1)]


def function(
    name: str, inputs: list[str], outputs: list[str], nodes: list[Any], **more: Any
) -> Any:
    return helper.make_function(DOMAIN, name, inputs, outputs, nodes, OPSETS, **more)


def call(name: str, inputs: list[str], outputs: list[str], **attributes: Any) -> Any:
    label = attributes.pop("label", f"{name}_{outputs[0]}")
    return helper.make_node(name, inputs, outputs, name=label, domain=DOMAIN, **attributes)


def model(nodes: list[Any], tensors: list[TensorProto], functions: list[Any]) -> onnx.ModelProto:
    values = [helper.make_tensor_value_info("Y", TensorProto.FLOAT, [None] * 4)]
    given = [helper.make_tensor_value_info("X", TensorProto.FLOAT, [None, 1, 2])]
    graph = helper.make_graph(nodes, "g", given, values, tensors)
    return helper.make_model(graph, opset_imports=OPSETS, ir_version=9, functions=functions)


def gru_function(**more: Any) -> Any:
    nodes = [gru_node("gru", ("x", "w", "r", "b"))]
    return function("Layer", ["x", "w", "r", "b"], ["Y"], nodes, **more)


def tensors_of(path: Path) -> dict[str, Any]:
    with open_checkpoint(path) as store:
        return {name: store.read(name) for name in store.tensors}


def assert_as_inlined(tmp_path: Path, proto: onnx.ModelProto) -> dict[str, Any]:
    """The recurrent weights are those of the model without functions; names aside."""
    onnx.checker.check_model(proto)
    ours = tensors_of(saved(tmp_path / "a.onnx", proto))
    inlined = saved(tmp_path / "b.onnx", inliner.inline_local_functions(proto))
    theirs = tensors_of(inlined)
    recurrent = [array for name, array in ours.items() if "GRU_" in name]
    expected = [array for name, array in theirs.items() if "GRU_" in name]
    assert len(recurrent) == len(expected) > 0
    for array, other in zip(recurrent, expected, strict=True):
        np.testing.assert_array_equal(array, other)
    return ours


def test_initializers_go_into_a_function_as_inputs(tmp_path: Path) -> None:
    proto = model([call("Layer", ["X", "W", "R", "B"], ["Y"])], gru_tensors(), [gru_function()])
    ours = assert_as_inlined(tmp_path, proto)
    assert list(ours) == [f"Layer_Y/gru/GRU_{role}" for role in "WRB"]
    for role, array in gru_weights().items():
        np.testing.assert_array_equal(ours[f"Layer_Y/gru/GRU_{role}"], array[0].astype(float))
    assert [layer.family for layer in inspect(tmp_path / "a.onnx").layers] == ["onnx_gru"]


def test_each_call_is_a_layer_unless_it_has_the_same_weights(tmp_path: Path) -> None:
    tensors = gru_tensors() + [initializer(f"{k}2", v) for k, v in gru_weights(2).items()]
    nodes = [
        call("Layer", ["X", "W", "R", "B"], ["Y"], label="first"),
        call("Layer", ["X", "W2", "R2", "B2"], ["Z"], label="second"),
        call("Layer", ["X", "W", "R", "B"], ["V"], label="again"),
        call("Layer", ["X", "W2", "R2"], ["U"], label="short"),
    ]
    path = saved(tmp_path / "a.onnx", model(nodes, tensors, [gru_function()]))
    ours = tensors_of(path)
    assert {name.partition("/")[0] for name in ours} == {"first", "second", "short"}
    assert "short/gru/GRU_B" not in ours
    with open_checkpoint(path) as store:
        assert "(such as again/gru) with the weights of another: counted once" in store.notes[0]


def test_functions_call_functions_and_hold_branches(tmp_path: Path) -> None:
    inner = function("Inner", ["x", "w", "r", "b"], ["Y"], [gru_node("a", ("x", "w", "r", "b"))])
    body = [
        call("Inner", ["x", "w", "r", "b"], ["inside"]),
        *branches([gru_node("c", ("x", "w", "r", "b"))], [gru_node("d", ("x", "w", "r", "b"))]),
    ]
    outer = function("Outer", ["x", "condition", "w", "r", "b"], ["Y"], body)
    tensors = [*gru_tensors(), initializer("condition", np.array(True))]
    nodes = [call("Outer", ["X", "condition", "W", "R", "B"], ["Y"], label="top")]
    ours = tensors_of(saved(tmp_path / "a.onnx", model(nodes, tensors, [inner, outer])))
    assert sum("GRU_R" in name for name in ours) == 1


def test_weights_that_a_function_makes_are_folded(tmp_path: Path) -> None:
    """A function puts the gates of its input into another order."""
    bounds = {f"k{n}": np.array([n]) for n in (0, H, 2 * H, 3 * H)} | {"axis": np.array([1])}
    nodes = [
        *(
            helper.make_node("Constant", [], [name], value=numpy_helper.from_array(value))
            for name, value in bounds.items()
        ),
        helper.make_node("Slice", ["m", "k0", f"k{H}", "axis"], ["first"]),
        helper.make_node("Slice", ["m", f"k{H}", f"k{3 * H}", "axis"], ["rest"]),
        helper.make_node("Concat", ["rest", "first"], ["turned"], axis=1),
    ]
    turn = function("Turn", ["m"], ["turned"], nodes)
    calls = [
        call("Turn", ["R"], ["R_turned"]),
        call("Layer", ["X", "W", "R_turned", "B"], ["Y"]),
    ]
    ours = assert_as_inlined(tmp_path, model(calls, gru_tensors(), [turn, gru_function()]))
    expected = np.roll(gru_weights()["R"][0], -H, axis=0)
    np.testing.assert_array_equal(ours["Layer_Y/gru/GRU_R"], expected.astype(float))


def test_attributes_come_from_the_call_or_the_function(tmp_path: Path) -> None:
    def layer(**more: Any) -> Any:
        node = gru_node("gru", ("x", "w", "r", "b"))
        for name, kind in (("clip", "FLOAT"), ("linear_before_reset", "INT")):
            attribute = node.attribute.add()
            attribute.name = attribute.ref_attr_name = name
            attribute.type = getattr(onnx.AttributeProto, kind)
        return function("Layer", ["x", "w", "r", "b"], ["Y"], [node], **more)

    defaults = [helper.make_attribute("linear_before_reset", 1)]
    given = layer(attributes=["clip"], attribute_protos=defaults)
    for attributes, expected in (
        ({"clip": 2.0}, {"clip": [2.0], "linear_before_reset": [1]}),
        ({"clip": 2.0, "linear_before_reset": 0}, {"clip": [2.0], "linear_before_reset": [0]}),
        ({}, {"linear_before_reset": [1]}),
    ):
        nodes = [call("Layer", ["X", "W", "R", "B"], ["Y"], label="n", **attributes)]
        path = saved(tmp_path / "a.onnx", model(nodes, gru_tensors(), [given]))
        with open_checkpoint(path) as store:
            assert json.loads(store.metadata["n/gru/GRU"]) == expected


def test_constants_of_a_function_are_one_layer_however_often_it_is_called(tmp_path: Path) -> None:
    nodes = [
        *(
            helper.make_node("Constant", [], [k], value=numpy_helper.from_array(v))
            for k, v in gru_weights().items()
        ),
        gru_node("gru", ("x", "W", "R", "B")),
    ]
    held = function("Held", ["x"], ["Y"], nodes)
    calls = [call("Held", ["X"], ["Y"]), call("Held", ["X"], ["Z"])]
    ours = tensors_of(saved(tmp_path / "a.onnx", model(calls, [], [held])))
    assert list(ours) == [f"Held_Y/gru/GRU_{role}" for role in "WRB"]
