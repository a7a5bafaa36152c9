"""The multiplicative LSTM against its step, written out in torch, in each of its namings."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from families.derivatives import match_of, read_layer
from families.simulated_gates import check_bands, drive_of, gates_of
from numpy.testing import assert_allclose

from memcurse_cli.checkpoints.memory import MemoryStore
from memcurse_cli.families.cells.papers import MULTIPLICATIVE_LSTM
from memcurse_cli.families.family import ReadOptions

H, INPUTS = 4, 3
SHAPES = {"wx": (INPUTS, 4 * H), "wh": (H, 4 * H), "wmx": (INPUTS, H), "wmh": (H, H), "b": (4 * H,)}


def weights() -> dict[str, np.ndarray]:
    generator = np.random.default_rng(4)
    return {name: generator.normal(size=shape) for name, shape in SHAPES.items()}


def ported(suffix: str) -> dict[str, np.ndarray]:
    """The same under the names of a torch port, whose weights are transposed."""
    arrays = {f"{name}.{suffix}": array.T for name, array in weights().items() if name != "b"}
    return arrays | {"wh.bias": weights()["b"]}


def step(state: torch.Tensor) -> torch.Tensor:
    """[h, c] after one step of encoder.mlstm at zero input."""
    w = {name: torch.tensor(array) for name, array in weights().items()}
    h, c = state[:H], state[H:]
    x = torch.zeros(INPUTS, dtype=h.dtype)
    m = (x @ w["wmx"]) * (h @ w["wmh"])
    i, f, o, u = torch.split(x @ w["wx"] + m @ w["wh"] + w["b"], H)
    c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(u)
    return torch.cat([torch.sigmoid(o) * torch.tanh(c), c])


NAMINGS = {
    "openai": ({f"model/rnn/{n}": a for n, a in weights().items()}, "model/rnn"),
    "unirep": ({f"rnn_mlstm_{n}:0": a for n, a in weights().items()}, "rnn_mlstm"),
    "port": ({f"layer_0.{n}": a for n, a in ported("weight").items()}, "layer_0"),
    "tape": (
        {f"encoder.mlstm_cell.{n}": a for n, a in ported("weight_v").items()},
        "encoder.mlstm_cell",
    ),
    "norm": (ported("parametrizations.weight.original1"), "multiplicative_lstm"),
}


@pytest.mark.parametrize(("arrays", "layer"), NAMINGS.values(), ids=NAMINGS)
def test_every_naming(arrays: dict[str, np.ndarray], layer: str) -> None:
    recurrence = read_layer(arrays, MULTIPLICATIVE_LSTM)
    assert recurrence.name == layer
    jacobian = torch.autograd.functional.jacobian(step, torch.zeros(2 * H, dtype=torch.float64))
    slope = np.diag(jacobian.numpy()[H:, H:])
    assert_allclose(np.exp(recurrence.log_eigenvalues), slope, rtol=1e-12)
    assert_allclose(np.exp(recurrence.log_gain), 1 / (1 + np.exp(-weights()["b"][:H])), rtol=1e-12)


def test_a_matrix_lstm_is_another_family() -> None:
    arrays = {name: array for name, array in weights().items() if name != "wmx"}
    assert match_of(arrays, MULTIPLICATIVE_LSTM) == []


def simulated(w: dict[str, np.ndarray], steps: int = 20_000) -> tuple[np.ndarray, np.ndarray]:
    """The forget gates (steps, units) and h² of encoder.mlstm under standard normal inputs."""
    x = np.random.default_rng(8).standard_normal((steps, len(w["wmx"])))
    units = len(w["wmh"])
    h, c = np.zeros(units), np.zeros(units)
    gates, squares = np.empty((steps, units)), np.empty((steps, units))
    for step, (driven, product) in enumerate(zip(x @ w["wx"] + w["b"], x @ w["wmx"], strict=True)):
        i, f, o, u = np.split(driven + (product * (h @ w["wmh"])) @ w["wh"], 4)
        gates[step] = 1 / (1 + np.exp(-f))
        c = gates[step] * c + np.tanh(u) / (1 + np.exp(-i))
        h = np.tanh(c) / (1 + np.exp(-o))
        squares[step] = h**2
    return gates[100:], squares[100:]


@pytest.mark.parametrize("apart", [False, True], ids=["whole", "lengths apart"])
def test_the_bands_are_those_of_the_gates_that_see_the_product(apart: bool) -> None:
    generator = np.random.default_rng(5)
    units, inputs = 32, 8
    shapes = {"wx": (inputs, 4 * units), "wh": (units, 4 * units), "wmx": (inputs, units)}
    arrays = {n: generator.normal(size=s) / np.sqrt(s[0]) for n, s in shapes.items()}
    arrays["wmh"] = generator.normal(size=(units, units)) / np.sqrt(units) * 1.5
    arrays["wh"] *= 1.5
    whole = arrays | {"b": 0.3 * generator.normal(size=4 * units)}
    stored = dict(whole)
    if apart:
        for name, weight in arrays.items():
            stored[f"g{name[1:]}"] = np.linalg.norm(weight, axis=0)
            stored[name] = weight * generator.uniform(0.5, 2.0, weight.shape[1])
    stored = {f"model/rnn/{name}": array for name, array in stored.items()}
    drive_of(MemoryStore(stored), MULTIPLICATIVE_LSTM)
    gates, squares = simulated(whole)
    bands = gates_of(stored)
    check_bands(bands, gates, 0.02)
    assert bands.spread is not None
    logits = np.log(gates / (1 - gates))
    assert_allclose(bands.spread.p50, np.median(logits.std(axis=0)), rtol=0.05)
    assert_allclose(bands.hidden_second_moment, squares.mean(), rtol=0.1)


@pytest.mark.parametrize("naming", ["tape", "norm"])
def test_weights_in_parts_have_no_figures(naming: str) -> None:
    store = MemoryStore(NAMINGS[naming][0])
    (match,) = MULTIPLICATIVE_LSTM.find(store.tensors)
    assert MULTIPLICATIVE_LSTM.read(store, match, ReadOptions(gates=True)).gate is None
