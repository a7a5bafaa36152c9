"""ONNX files against the onnx package: tensors, folds, the weights of nodes, local functions."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from checkpoints import readers
from onnx import TensorProto, helper, inliner, numpy_helper
from onnx.reference import ReferenceEvaluator

from memcurse_cli import inspect
from memcurse_cli.checkpoints.open import open_checkpoint
from memcurse_cli.errors import CheckpointError

H = 3
DOMAIN = "local"
OPSETS = [helper.make_opsetid("", 17), helper.make_opsetid(DOMAIN, 1)]
TYPES = [
    *("FLOAT", "DOUBLE", "FLOAT16", "BFLOAT16", "BOOL", "COMPLEX64", "COMPLEX128"),
    *("UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64"),
    *("FLOAT8E4M3FN", "FLOAT8E4M3FNUZ", "FLOAT8E5M2", "FLOAT8E5M2FNUZ"),
]


def initializer(name: str, array: Any) -> TensorProto:
    return numpy_helper.from_array(np.asarray(array), name)


def model(
    nodes: list[Any],
    tensors: list[TensorProto],
    outputs: Sequence[str] = ("Y",),
    opset: int = 17,
    functions: Sequence[Any] = (),
    inputs: Sequence[str] = ("X",),
) -> onnx.ModelProto:
    given, values = (
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in names]
        for names in (inputs, outputs)
    )
    graph = helper.make_graph(nodes, "g", given, values, tensors)
    opsets = [helper.make_opsetid("", opset), *([OPSETS[1]] if functions else [])]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8, functions=functions)


def saved(path: Path, proto: onnx.ModelProto) -> Path:
    path.write_bytes(proto.SerializeToString())
    return path


def gru_weights(seed: int = 0) -> dict[str, Any]:
    generator = np.random.default_rng(seed)
    shapes = {"W": (1, 3 * H, 2), "R": (1, 3 * H, H), "B": (1, 6 * H)}
    return {
        name: generator.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()
    }


@pytest.mark.parametrize("path", readers.files("onnx"), ids=readers.label)
def test_every_shared_file_agrees_with_the_onnx_package(path: Path) -> None:
    proto = onnx.load(path)
    reference = {t.name: numpy_helper.to_array(t) for t in proto.graph.initializer}
    with open_checkpoint(path) as store:
        assert store.format == "ONNX"
        names = set(store.tensors)
        plain = names & set(reference)
        assert names
        for name in plain:
            assert store.tensors[name].dtype == reference[name].dtype.name
            np.testing.assert_array_equal(store.read(name), reference[name].astype(np.float64))
        assert all("_" in name.rsplit("/")[-1] for name in names - plain)
        for node in proto.graph.node:
            if node.op_type not in ("LSTM", "GRU", "RNN"):
                continue
            given = {a.name: helper.get_attribute_value(a) for a in node.attribute}
            both = given.get("direction") == b"bidirectional"
            for role, name in zip("WRB", node.input[1:4], strict=False):
                for index, direction in enumerate(("/forward", "/reverse") if both else ("",)):
                    ours = store.read(f"{node.name}{direction}/{node.op_type}_{role}")
                    np.testing.assert_array_equal(ours, reference[name][index].astype(float))
    side = sum(file.stat().st_size for file in path.parent.glob(f"{path.name}.data"))
    assert store.bytes == path.stat().st_size + side


def test_silero_counts_its_one_lstm_once_and_folds_its_order(trained: Path) -> None:
    path = trained / "silero_vad_lstm" / "silero_vad_16k_op15.onnx"
    stored = {t.name: numpy_helper.to_array(t) for t in onnx.load(path).graph.initializer}
    i, f, g, o = np.split(stored["model.decoder.rnn.weight_hh"].astype(float), 4)
    with open_checkpoint(path) as store:
        assert [name for name in store.tensors if "LSTM" in name] == [
            f"/model/decoder/rnn/LSTM/LSTM_{role}" for role in "WRB"
        ]
        assert "model.decoder.rnn.weight_hh" not in store.tensors
        assert any("with the weights of another" in note for note in store.notes)
        ours = store.read("/model/decoder/rnn/LSTM/LSTM_R")
        np.testing.assert_array_equal(ours, np.concatenate([i, o, f, g]))


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("raw", [True, False], ids=["raw", "list"])
def test_every_type_is_read_as_onnx_reads_it(tmp_path: Path, kind: str, raw: bool) -> None:
    code = getattr(TensorProto, kind)
    dtype = helper.tensor_dtype_to_np_dtype(code)
    values = np.array([[0, 1, 3], [-2, 0.5, 7]])
    if dtype.kind in "ub":
        values = np.abs(values)
    array = (values * (1 + 2j) if dtype.kind == "c" else values).astype(dtype)
    tensor = numpy_helper.from_array(array, "w")
    if not raw:
        listed = array
        if kind == "FLOAT16" or (dtype.itemsize < 4 and dtype.kind == "V"):
            listed = array.astype(np.float64)
        tensor = helper.make_tensor("w", code, array.shape, listed.ravel().tolist())
    path = saved(tmp_path / "a.onnx", model([], [tensor], outputs=()))
    expected = numpy_helper.to_array(tensor)
    with open_checkpoint(path) as store:
        assert store.tensors["w"].dtype == dtype.name
        kind_read = np.complex128 if dtype.kind == "c" else np.float64
        np.testing.assert_array_equal(store.read("w"), expected.astype(kind_read))


def test_external_data_is_read_from_beside_the_model(zoo: Path, tmp_path: Path) -> None:
    folder = zoo / "onnx_rnn"
    with (
        open_checkpoint(folder / "helper_external.onnx") as external,
        open_checkpoint(folder / "helper.onnx") as whole,
    ):
        assert dict(external.tensors) == dict(whole.tensors)
        for name in whole.tensors:
            np.testing.assert_array_equal(external.read(name), whole.read(name))
    alone = tmp_path / "a.onnx"
    alone.write_bytes((folder / "helper_external.onnx").read_bytes())
    with pytest.raises(CheckpointError, match="no such file"):
        open_checkpoint(alone)


def folding_nodes(opset: int) -> list[Any]:
    """R = a GRU's weights in torch's order r, z, n, cut and put together as z, r, n."""
    node = helper.make_node
    nodes = []
    for name, start in (("z", H), ("r", 0), ("n", 2 * H)):
        if opset < 10:
            bounds = {"starts": [start], "ends": [start + H], "axes": [0]}
            nodes.append(node("Slice", ["weight_hh"], [name], **bounds))
        else:
            nodes.append(node("Slice", ["weight_hh", f"s{start}", f"s{start + H}"], [name]))
    nodes += [
        node("Concat", ["z", "r", "n"], ["zrn"], axis=-2),
        node("Transpose", ["zrn"], ["t"]),
        node("Transpose", ["t"], ["tt"], perm=[1, 0]),
        node("Identity", ["tt"], ["id"]),
        node("Cast", ["id"], ["cast"], to=TensorProto.FLOAT),
        node("Reshape", ["cast", "shape"], ["flat"]),
    ]
    if opset < 13:
        nodes.append(node("Unsqueeze", ["flat"], ["R4"], axes=[0, -1]))
        return [*nodes, node("Squeeze", ["R4"], ["R"], axes=[3])]
    nodes.append(node("Unsqueeze", ["flat", "outer"], ["R4"]))
    return [*nodes, node("Squeeze", ["R4", "last"], ["R"])]


@pytest.mark.parametrize("opset", [9, 11, 17])
def test_folds_give_what_onnx_computes(tmp_path: Path, opset: int) -> None:
    weights = gru_weights()
    stored = [
        initializer("weight_hh", weights["R"][0]),
        initializer("W", weights["W"]),
        initializer("B", weights["B"]),
        initializer("shape", np.array([0, -1])),
        initializer("outer", np.array([0, -1])),
        initializer("last", np.array([3])),
        *(initializer(f"s{n}", np.array([n])) for n in (0, H, 2 * H, 3 * H)),
    ]
    nodes = folding_nodes(opset)
    gru = helper.make_node("GRU", ["X", "W", "R", "B"], ["Y"], name="gru", hidden_size=H)
    path = saved(tmp_path / "a.onnx", model([*nodes, gru], stored, opset=opset))
    expected = ReferenceEvaluator(model(nodes, stored, ("R",), opset)).run(
        None, {"X": np.zeros((1, 1, 2), np.float32)}
    )[0]
    with open_checkpoint(path) as store:
        assert "weight_hh" not in store.tensors
        np.testing.assert_array_equal(store.read("gru/GRU_R"), expected[0].astype(float))
        assert store.tensors["gru/GRU_R"].dtype == "float32"


@pytest.mark.parametrize(
    ("start", "end", "step"),
    [(-9, 2**63 - 1, 1), (-40, 9, 1), (17, -(2**63), -2), (-12, -30, -1), (2, -1, 2)],
)
def test_slices_clamp_as_onnx_clamps(tmp_path: Path, start: int, end: int, step: int) -> None:
    """Nine of the 20 rows of a tensor are the weights of a GRU."""
    stored = np.random.default_rng(0).standard_normal((1, 20, H), np.float32)
    tensors = [gru_tensors()[0], initializer("stored", stored)]
    cut = {"start": start, "end": end, "axis": 1, "step": step}
    tensors += [initializer(name, np.array([value])) for name, value in cut.items()]
    node = helper.make_node("Slice", ["stored", *cut], ["R"])
    proto = model([node], tensors, ("R",))
    (expected,) = ReferenceEvaluator(proto).run(None, {"X": np.zeros((1, 1, 2), np.float32)})
    path = saved(tmp_path / "a.onnx", model([node, gru_node("gru", ("X", "W", "R"))], tensors))
    with open_checkpoint(path) as store:
        np.testing.assert_array_equal(store.read("gru/GRU_R"), expected[0].astype(float))


def branches(then: list[Any], other: list[Any]) -> list[Any]:
    outputs = [helper.make_tensor_value_info("Y", TensorProto.FLOAT, None)]
    return [
        helper.make_node(
            "If",
            ["condition"],
            ["Y"],
            then_branch=helper.make_graph(then, "then", [], outputs),
            else_branch=helper.make_graph(other, "else", [], outputs),
        )
    ]


def gru_node(name: str, inputs: tuple[str, ...] = ("X", "W", "R", "B"), **attributes: Any) -> Any:
    return helper.make_node("GRU", list(inputs), ["Y"], name=name, hidden_size=H, **attributes)


def gru_tensors() -> list[TensorProto]:
    return [initializer(name, array) for name, array in gru_weights().items()]


def test_both_branches_of_an_if_are_one_layer_where_they_share_weights(tmp_path: Path) -> None:
    nodes = branches([gru_node("a")], [gru_node("b")])
    with open_checkpoint(saved(tmp_path / "a.onnx", model(nodes, gru_tensors()))) as store:
        # helper.make_node sorts the attributes, so that the else branch comes first.
        assert list(store.tensors) == ["b/GRU_W", "b/GRU_R", "b/GRU_B"]
        assert "counted once" in store.notes[0]
    # Of another attribute they are two, whose names are told apart.
    nodes = branches([gru_node("a")], [gru_node("a", linear_before_reset=1)])
    with open_checkpoint(saved(tmp_path / "b.onnx", model(nodes, gru_tensors()))) as store:
        assert [name.rsplit("/")[0] for name in store.tensors] == ["a"] * 3 + ["a#2"] * 3


def test_weights_that_come_from_an_input_are_left_out(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Add", ["R", "X"], ["moved"]),
        gru_node("computed", ("X", "W", "moved", "B")),
        gru_node("kept"),
    ]
    with open_checkpoint(saved(tmp_path / "a.onnx", model(nodes, gru_tensors()))) as store:
        assert {name.rsplit("/")[0] for name in store.tensors} == {"kept"}
        assert "computed as the model runs" in store.notes[0]
    # A name that a body is given is not the outer one.
    given, outputs = (
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None)] for name in "RY"
    )
    body = helper.make_graph([gru_node("inner")], "body", given, outputs)
    nodes = [helper.make_node("Scan", ["R"], ["Y"], body=body, num_scan_inputs=1)]
    assert not any(
        "GRU" in name
        for name in tensors_of(saved(tmp_path / "b.onnx", model(nodes, gru_tensors())))
    )


@pytest.mark.parametrize("unrolled", [True, False])
def test_an_unrolled_layer_is_left_out_with_a_note(tmp_path: Path, unrolled: bool) -> None:
    """h = tanh(h U + x W), three times; or the same products of inputs, one beside another."""
    tensors = [*gru_tensors(), *(initializer(name, np.ones((H, H))) for name in ("U", "V"))]
    nodes = [gru_node("kept"), helper.make_node("Transpose", ["U"], ["Ut"])]
    for step, weight in enumerate(("U", "Ut", "U")):
        state = f"h{step}" if unrolled and step else "X"
        nodes += [
            helper.make_node("MatMul", ["X", "V"], [f"x{step}"]),
            helper.make_node("Gemm", [state, weight], [f"u{step}"]),
            helper.make_node("Add", [f"u{step}", f"x{step}"], [f"s{step}"]),
            helper.make_node("Tanh", [f"s{step}"], [f"h{step + 1}"]),
        ]
    with open_checkpoint(saved(tmp_path / "a.onnx", model(nodes, tensors))) as store:
        assert any("GRU_R" in name for name in store.tensors)
        assert ["(such as U), as in an RNN that is unrolled" in note for note in store.notes] == [
            True
        ] * unrolled


def test_attributes_are_metadata(tmp_path: Path) -> None:
    node = gru_node("g", activations=["HardSigmoid", "Tanh"], activation_alpha=[0.25], clip=3.0)
    with open_checkpoint(saved(tmp_path / "a.onnx", model([node], gru_tensors()))) as store:
        found = json.loads(store.metadata["g/GRU"])
    assert found == {
        "activations": ["HardSigmoid", "Tanh"],
        "activation_alpha": [0.25],
        "clip": [3.0],
    }


def test_numbers_of_4_bits_and_texts_are_left_out_with_a_note(tmp_path: Path) -> None:
    small = helper.make_tensor("q", TensorProto.INT4, [2], [1, -2])
    words = helper.make_tensor("words", TensorProto.STRING, [1], [b"a"])
    path = saved(tmp_path / "a.onnx", model([], [small, words, initializer("w", np.eye(2))], ()))
    with open_checkpoint(path) as store:
        assert list(store.tensors) == ["w"]
        assert "2 tensors of 4-bit numbers or text" in store.notes[0]


def function(
    name: str, inputs: list[str], outputs: list[str], nodes: list[Any], **more: Any
) -> Any:
    return helper.make_function(DOMAIN, name, inputs, outputs, nodes, OPSETS, **more)


def call(name: str, inputs: list[str], outputs: list[str], **attributes: Any) -> Any:
    label = attributes.pop("label", f"{name}_{outputs[0]}")
    return helper.make_node(name, inputs, outputs, name=label, domain=DOMAIN, **attributes)


def gru_function(**more: Any) -> Any:
    nodes = [gru_node("gru", ("x", "w", "r", "b"))]
    return function("Layer", ["x", "w", "r", "b"], ["Y"], nodes, **more)


def tensors_of(path: Path) -> dict[str, Any]:
    with open_checkpoint(path) as store:
        return {name: store.read(name) for name in store.tensors}


def assert_as_inlined(tmp_path: Path, proto: onnx.ModelProto) -> dict[str, Any]:
    """The recurrent weights are those of the model without functions; names aside."""
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
    proto = model(
        [call("Layer", ["X", "W", "R", "B"], ["Y"])], gru_tensors(), functions=[gru_function()]
    )
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
    path = saved(tmp_path / "a.onnx", model(nodes, tensors, functions=[gru_function()]))
    ours = tensors_of(path)
    assert {name.partition("/")[0] for name in ours} == {"first", "second", "short"}
    assert "short/gru/GRU_B" not in ours
    with open_checkpoint(path) as store:
        assert "(such as again/gru) with the weights of another: counted once" in store.notes[0]
    # So are the constants of a function, however often it is called.
    constants = [
        helper.make_node("Constant", [], [k], value=numpy_helper.from_array(v))
        for k, v in gru_weights().items()
    ]
    held = function("Held", ["x"], ["Y"], [*constants, gru_node("gru", ("x", "W", "R", "B"))])
    calls = [call("Held", ["X"], ["Y"]), call("Held", ["X"], ["Z"])]
    ours = tensors_of(saved(path, model(calls, [], functions=[held])))
    assert list(ours) == [f"Held_Y/gru/GRU_{role}" for role in "WRB"]


def test_functions_call_functions_and_hold_branches(tmp_path: Path) -> None:
    inner = function("Inner", ["x", "w", "r", "b"], ["Y"], [gru_node("a", ("x", "w", "r", "b"))])
    body = [
        call("Inner", ["x", "w", "r", "b"], ["inside"]),
        *branches([gru_node("c", ("x", "w", "r", "b"))], [gru_node("d", ("x", "w", "r", "b"))]),
    ]
    outer = function("Outer", ["x", "condition", "w", "r", "b"], ["Y"], body)
    tensors = [*gru_tensors(), initializer("condition", np.array(True))]
    nodes = [call("Outer", ["X", "condition", "W", "R", "B"], ["Y"], label="top")]
    ours = tensors_of(saved(tmp_path / "a.onnx", model(nodes, tensors, functions=[inner, outer])))
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
    calls = [call("Turn", ["R"], ["R_turned"]), call("Layer", ["X", "W", "R_turned", "B"], ["Y"])]
    ours = assert_as_inlined(
        tmp_path, model(calls, gru_tensors(), functions=[turn, gru_function()])
    )
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
        path = saved(tmp_path / "a.onnx", model(nodes, gru_tensors(), functions=[given]))
        with open_checkpoint(path) as store:
            assert json.loads(store.metadata["n/gru/GRU"]) == expected
