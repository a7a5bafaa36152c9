"""Attack files in ONNX."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from attacks.build import attack
from onnx import TensorProto, helper, numpy_helper


def _model(nodes: list[Any], tensors: list[TensorProto]) -> bytes:
    graph = helper.make_graph(nodes, "g", [], [], tensors)
    content: bytes = helper.make_model(graph, ir_version=8).SerializeToString()
    return content


def _written(directory: Path, content: bytes) -> Path:
    (directory / "a.onnx").write_bytes(content)
    return directory / "a.onnx"


def _tensor(name: str = "w", **fields: Any) -> TensorProto:
    tensor = numpy_helper.from_array(np.eye(2, dtype=np.float32), name)
    for field, value in fields.items():
        if field == "dims":
            del tensor.dims[:]
            tensor.dims.extend(value)
        else:
            setattr(tensor, field, value)
    return tensor


def _external(directory: Path, location: str, offset: str = "0", length: str = "16") -> Path:
    tensor = _tensor(raw_data=b"")
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in (("location", location), ("offset", offset), ("length", length)):
        tensor.external_data.add(key=key, value=value)
    return _written(directory, _model([], [tensor]))


def _secret(directory: Path) -> Path:
    outside = directory.parent / f"{directory.name}-outside"
    outside.mkdir(exist_ok=True)
    (outside / "secret.bin").write_bytes(bytes(64))
    return outside / "secret.bin"


@attack("outside")
def onnx_external_data_that_climbs(directory: Path) -> Path:
    return _external(directory, f"../{_secret(directory).parent.name}/secret.bin")


@attack("outside")
def onnx_external_data_at_an_absolute_path(directory: Path) -> Path:
    return _external(directory, str(_secret(directory)))


@attack("outside")
def onnx_external_data_through_a_link(directory: Path) -> Path:
    (directory / "weights.bin").symlink_to(_secret(directory))
    return _external(directory, "weights.bin")


@attack("outside")
def onnx_external_data_with_backslashes(directory: Path) -> Path:
    return _external(directory, "..\\secret.bin")


@attack("outside")
def onnx_external_data_without_a_place(directory: Path) -> Path:
    return _external(directory, "")


@attack("neither a regular file")
def onnx_external_data_in_a_fifo(directory: Path) -> Path:
    os.mkfifo(directory / "weights.bin")
    return _external(directory, "weights.bin")


@attack("beyond the end")
def onnx_external_data_beyond_the_end(directory: Path) -> Path:
    (directory / "weights.bin").write_bytes(bytes(64))
    return _external(directory, "weights.bin", offset="9" * 19)


@attack("no valid place")
def onnx_external_data_at_a_negative_offset(directory: Path) -> Path:
    (directory / "weights.bin").write_bytes(bytes(64))
    return _external(directory, "weights.bin", offset="-16")


@attack("needs")
def onnx_tensor_of_10_to_the_36_elements(directory: Path) -> Path:
    return _written(directory, _model([], [_tensor(dims=[10**18, 10**18])]))


@attack("no valid shape")
def onnx_tensor_of_negative_size(directory: Path) -> Path:
    return _written(directory, _model([], [_tensor(dims=[-2, -2])]))


@attack("needs")
def onnx_list_that_is_shorter_than_its_shape(directory: Path) -> Path:
    tensor = helper.make_tensor("w", TensorProto.INT64, [2], [1, 2])
    del tensor.dims[:]
    tensor.dims.append(10**12)
    return _written(directory, _model([], [tensor]))


@attack("a name has 1000000 bytes")
def onnx_name_of_a_million_characters(directory: Path) -> Path:
    return _written(directory, _model([], [_tensor("w" * 10**6)]))


@attack("opens")
def onnx_names_that_write_to_the_terminal(directory: Path) -> Path:
    weights = [_tensor("R", dims=[1, 2, 2]), _tensor("\x1b[31mw")]
    node = helper.make_node("RNN", ["X", "", "R"], ["Y"], name="\x1b]0;owned\x07")
    return _written(directory, _model([node], weights))


@attack("more than")
def onnx_of_3_million_fields(directory: Path) -> Path:
    content = _model([], [_tensor()])
    return _written(directory, content + b"\x28\x01" * 3_000_000)


@attack("nested more than")
def onnx_graphs_1000_deep(directory: Path) -> Path:
    def field(number: int, content: bytes) -> bytes:
        size, length = bytearray(), len(content)
        while length >= 128:
            size.append(length & 127 | 128)
            length >>= 7
        size.append(length)
        return bytes([number << 3 | 2]) + bytes(size) + content

    content = b""
    for _ in range(1000):  # a graph's node's attribute's graph
        content = field(1, field(5, field(6, content)))
    return _written(directory, b"\x08\x08" + field(7, content))


@attack("much larger")
def onnx_concat_that_doubles_40_times(directory: Path) -> Path:
    nodes = [helper.make_node("Identity", ["w"], ["c0"])]
    for i in range(40):
        nodes.append(helper.make_node("Concat", [f"c{i}"] * 2, [f"c{i + 1}"], axis=0))
    nodes.append(helper.make_node("RNN", ["X", "", "c40"], ["Y"]))
    return _written(directory, _model(nodes, [_tensor()]))


@attack("opens")
def onnx_nodes_that_feed_themselves(directory: Path) -> Path:
    nodes = [
        helper.make_node("Identity", ["b"], ["a"]),
        helper.make_node("Identity", ["a"], ["b"]),
        helper.make_node("RNN", ["X", "", "a"], ["Y"]),
    ]
    return _written(directory, _model(nodes, [_tensor()]))


@attack("opens")
def onnx_fold_of_10000_nodes(directory: Path) -> Path:
    """Each node takes the one before twice: 2^10000 paths, and one value."""
    nodes = [helper.make_node("Identity", ["w"], ["c0"])]
    for i in range(10_000):
        nodes.append(helper.make_node("Concat", [f"c{i}"] * 2, [f"d{i}"], axis=0))
        nodes.append(helper.make_node("Slice", [f"d{i}"], [f"c{i + 1}"], starts=[0], ends=[2]))
    nodes.append(helper.make_node("RNN", ["X", "", "c10000"], ["Y"]))
    return _written(directory, _model(nodes, [_tensor()]))


@attack("do not fit")
def onnx_weights_of_another_operator(directory: Path) -> Path:
    node = helper.make_node("LSTM", ["X", "", "R"], ["Y"])
    return _written(directory, _model([node], [_tensor("R", dims=[1, 2, 2])]))


@attack("beyond its end")
def onnx_half_written(directory: Path) -> Path:
    content = _model([], [_tensor()])
    return _written(directory, content[: len(content) // 2])


@attack("opens")
def onnx_operators_of_an_unknown_library(directory: Path) -> Path:
    node = helper.make_node("system", ["w"], ["Y"], domain="os", command="touch executed")
    content = _model([node], [_tensor()])
    assert onnx.load_from_string(content).graph.node[0].domain == "os"
    return _written(directory, content)


def _functions(bodies: dict[str, list[Any]], outputs: tuple[str, ...] = ("y",)) -> bytes:
    """A model that calls F0, whose functions have one input and these bodies."""
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("local", 1)]
    made = [
        helper.make_function("local", name, ["x"], list(outputs), nodes, opsets)
        for name, nodes in bodies.items()
    ]
    nodes = [helper.make_node("F0", ["w"], ["R"], domain="local"), _gru()]
    graph = helper.make_graph(nodes, "g", [], [], [_tensor()])
    proto = helper.make_model(graph, ir_version=9, opset_imports=opsets, functions=made)
    content: bytes = proto.SerializeToString()
    return content


def _gru() -> Any:
    return helper.make_node("GRU", ["x", "R", "R"], ["Y"], name="gru")


def _call(name: str, given: str, made: str) -> Any:
    return helper.make_node(name, [given], [made], domain="local")


@attack("calls of functions")
def onnx_functions_with_2_to_the_30_calls(directory: Path) -> Path:
    bodies = {
        f"F{n}": [_call(f"F{n + 1}", "x", "y"), _call(f"F{n + 1}", "y", "z")] for n in range(30)
    }
    return _written(directory, _functions(bodies | {"F30": [_gru()]}))


@attack("deep")
def onnx_functions_that_call_each_other(directory: Path) -> Path:
    bodies = {"F0": [_call("F1", "x", "y"), _gru()], "F1": [_call("F0", "x", "y")]}
    return _written(directory, _functions(bodies))


@attack("deep")
def onnx_function_that_returns_its_own_result(directory: Path) -> Path:
    return _written(directory, _functions({"F0": [_call("F0", "x", "y")]}))


@attack("larger")
def onnx_functions_that_double_40_times(directory: Path) -> Path:
    double = [helper.make_node("Concat", ["x", "x"], ["d"], axis=0)]
    bodies = {f"F{n}": [*double, _call(f"F{n + 1}", "d", "y")] for n in range(20)}
    last = helper.make_node("Concat", ["x", "x"], ["y"], axis=0)
    return _written(directory, _functions(bodies | {"F20": [last]}))


@attack("opens")
def onnx_functions_of_the_same_name(directory: Path) -> Path:
    content = onnx.ModelProto.FromString(_functions({"F0": [_gru()]}))
    for _ in range(1000):
        content.functions.append(content.functions[0])
    return _written(directory, content.SerializeToString())
