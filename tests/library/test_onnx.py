"""ONNX's nodes against onnx's own evaluator."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from families.oracles import assert_same_spectrum, read_layers, run_file
from library.formats.test_onnx import model as graph_model
from numpy.testing import assert_allclose
from numpy.typing import NDArray
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from memcurse_cli.checkpoints.open import open_checkpoint
from memcurse_cli.errors import TensorError
from memcurse_cli.families.detect import detect
from memcurse_cli.families.family import ReadOptions
from memcurse_cli.families.recurrence import Recurrence

H, INPUTS = 4, 3
GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
DIRECTIONS = ("forward", "reverse")


def weights(operator: str, directions: int = 1, bias: bool = True, scale: float = 1.0) -> dict:
    rows = GATES[operator] * H
    shapes = {"W": (directions, rows, INPUTS), "R": (directions, rows, H)}
    if bias:
        shapes["B"] = (directions, 2 * rows)
    generator = np.random.default_rng(rows)
    return {
        name: (scale * generator.standard_normal(shape)).astype(np.float32)
        for name, shape in shapes.items()
    }


def model(operator: str, arrays: dict[str, NDArray], **attributes: Any) -> bytes:
    inputs = ["X", "W", "R", "B" if "B" in arrays else "", "", "h"]
    inputs += ["c", "P" if "P" in arrays else ""] if operator == "LSTM" else []
    outputs = ["Y", "Yh", *(["Yc"] if operator == "LSTM" else [])]
    node = helper.make_node(operator, inputs, outputs, name="n", hidden_size=H, **attributes)
    stored = [numpy_helper.from_array(array, name) for name, array in arrays.items()]
    given = ("X", "h", "c") if operator == "LSTM" else ("X", "h")
    return graph_model([node], stored, outputs[1:], inputs=given).SerializeToString()


def stepped(operator: str, arrays: dict[str, NDArray], kick: float, steps: int) -> NDArray:
    """The last state after some steps of onnx's evaluator at zero input, without hidden weights."""
    arrays = arrays | {"R": np.zeros_like(arrays["R"])}
    state = np.full((1, 1, H), kick)
    feeds = {"X": np.zeros((steps, 1, INPUTS)), "h": state}
    if operator == "LSTM":
        feeds |= {"h": np.zeros_like(state), "c": state}
    return ReferenceEvaluator(model(operator, arrays)).run(None, feeds)[-1][0, 0]


def read_only_layer(path: Path, content: bytes, **options: Any) -> Recurrence:
    path.write_bytes(content)
    with open_checkpoint(path) as store:
        ((family, match),) = detect(store.tensors)
        return family.read(store, match, ReadOptions(**options))


@pytest.mark.parametrize("before", [0, 1])
def test_the_step_of_a_gru_has_the_eigenvalues_of_onnx_s(tmp_path: Path, before: int) -> None:
    arrays = {name: array.astype(np.float64) for name, array in weights("GRU").items()}
    content = model("GRU", arrays, linear_before_reset=before)
    evaluator = ReferenceEvaluator(content)
    hidden = read_only_layer(tmp_path / "a.onnx", content, spectra=True).hidden
    step = 1e-5
    columns = []
    for unit in np.eye(H):
        ends = [
            evaluator.run(
                None, {"X": np.zeros((1, 1, INPUTS)), "h": sign * step * unit[None, None]}
            )[-1][0, 0]
            for sign in (1, -1)
        ]
        columns.append((ends[0] - ends[1]) / (2 * step))
    assert_same_spectrum(hidden.jacobian, np.linalg.eigvals(np.array(columns).T), 1e-8)
    assert_same_spectrum(hidden.gates["reset"], np.linalg.eigvals(arrays["R"][0, H : 2 * H]))


@pytest.mark.parametrize(
    ("operator", "attributes"),
    [("LSTM", {}), ("GRU", {}), ("GRU", {"linear_before_reset": 1}), ("RNN", {})],
)
def test_a_run_is_that_of_onnx(tmp_path: Path, operator: str, attributes: dict[str, Any]) -> None:
    content = model(operator, weights(operator), **attributes)
    (tmp_path / "a.onnx").write_bytes(content)
    inputs = np.random.default_rng(0).standard_normal((5, 1, INPUTS))
    feeds = {name: np.zeros((1, 1, H)) for name in ("h", "c")[: 1 + (operator == "LSTM")]}
    shown = ReferenceEvaluator(content).run(None, {"X": inputs, **feeds})[0]
    assert_allclose(run_file(tmp_path / "a.onnx", inputs), shown[0], atol=1e-6)


def test_an_rnn_is_its_matrix(tmp_path: Path) -> None:
    arrays = weights("RNN", scale=0.5)
    content = model("RNN", arrays, activations=["Relu"])
    recurrence = read_only_layer(tmp_path / "a.onnx", content)
    assert recurrence.dense.activation == "relu"
    assert recurrence.assumptions == ()
    assert_allclose(recurrence.dense.matrix, arrays["R"][0], rtol=0)
    assert_allclose(recurrence.readin.real, arrays["W"][0], rtol=0)
    odd = read_only_layer(tmp_path / "b.onnx", model("RNN", arrays, activations=["Softsign"]))
    assert "Softsign is not modelled" in odd.assumptions[-1]


def test_hard_gates_have_the_slope_of_their_direction(tmp_path: Path) -> None:
    arrays = weights("GRU", directions=2, scale=0.3)
    content = model(
        "GRU",
        arrays,
        direction="bidirectional",
        activations=["HardSigmoid", "LeakyRelu", "HardSigmoid", "Tanh"],
        activation_alpha=[0.25, 0.01, 0.4],
        activation_beta=[0.5, 0.6],
    )
    (tmp_path / "a.onnx").write_bytes(content)
    layers = read_layers(tmp_path / "a.onnx")
    for index, (slope, offset) in enumerate(((0.25, 0.5), (0.4, 0.6))):
        recurrence = layers[f"n/{DIRECTIONS[index]}"]
        bias = arrays["B"][index].astype(float).reshape(2, 3, H)[:, 0].sum(axis=0)
        slope, offset = float(np.float32(slope)), float(np.float32(offset))
        ours = np.exp(recurrence.log_eigenvalues.real)
        assert_allclose(ours, slope * bias + offset, rtol=1e-12)
        assert not recurrence.stable_by_construction


def test_what_is_not_read_is_refused_or_said(tmp_path: Path) -> None:
    arrays = weights("LSTM")
    with pytest.raises(TensorError, match="input_forget"):
        read_only_layer(tmp_path / "a.onnx", model("LSTM", arrays, input_forget=1))
    softsign = ["Softsign", "Tanh", "Tanh"]
    with pytest.raises(TensorError, match="activation Softsign"):
        read_only_layer(tmp_path / "b.onnx", model("LSTM", arrays, activations=softsign))
    recurrence = read_only_layer(tmp_path / "c.onnx", model("LSTM", arrays, clip=3.0))
    assert "clips" in recurrence.assumptions[0]


@pytest.mark.parametrize("peepholes", [False, True])
def test_the_state_of_an_lstm_against_the_evaluator(tmp_path: Path, peepholes: bool) -> None:
    arrays = {name: array.astype(np.float64) for name, array in weights("LSTM").items()}
    if peepholes:
        arrays["P"] = np.random.default_rng(3).standard_normal((1, 3 * H))
    recurrence = read_only_layer(tmp_path / "p.onnx", model("LSTM", arrays))
    assert ["peepholes" in said for said in recurrence.assumptions] == [True] * peepholes
    assert recurrence.stable_by_construction != peepholes
    moved = [stepped("LSTM", arrays, kick, 1) for kick in (1e-6, -1e-6)]
    kept = np.exp(recurrence.log_eigenvalues)
    assert_allclose((moved[0] - moved[1]) / 2e-6, kept, rtol=1e-6)
