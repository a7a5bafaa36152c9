"""FastGRNN, LEM and the multiplicative LSTM: their gates against their own runs, and oddities."""

from __future__ import annotations

import numpy as np
import pytest
from families.cell_steps import CASES, H
from families.derivatives import read_found, read_layer
from families.oracles import sigmoid
from families.simulated_gates import check_bands, drive_of, gates_of
from numpy.testing import assert_allclose

from memcurse_cli.checkpoints.open import MemoryStore
from memcurse_cli.families.cells.papers import LEM, MULTIPLICATIVE_LSTM, FastGRNN


def test_the_band_and_the_state_of_a_fast_grnn() -> None:
    size, inputs, rank, nu = 64, 16, 8, -4.0
    random = np.random.default_rng(2)
    arrays = {
        "bias_gate": 1 + random.normal(size=(1, size)),
        "bias_update": 0.3 * random.normal(size=(1, size)),
        "zeta": np.array([[1.0]]),
        "nu": np.array([[nu]]),
        "W1": random.normal(size=(rank, inputs)) / 4,
        "W2": random.normal(size=(size, rank)) / 3,
        "U1": random.normal(size=(rank, size)) / 8,
        "U2": random.normal(size=(size, rank)) / 20,
    }
    w, u = arrays["W2"] @ arrays["W1"], arrays["U2"] @ arrays["U1"]
    h, gates, squares = np.zeros(size), [], []
    for driven in (w @ random.normal(size=(inputs, 20_000))).T:
        both = driven + u @ h
        z = sigmoid(both + arrays["bias_gate"][0])
        opened = sigmoid(1.0) * (1 - z) + sigmoid(nu)
        h = z * h + opened * np.tanh(both + arrays["bias_update"][0])
        gates.append(z)
        squares.append(np.mean(h**2))
    assert drive_of(MemoryStore(arrays), FastGRNN()).state is not None
    bands = gates_of(arrays)
    check_bands(bands, np.array(gates[500:]))
    assert_allclose(bands.hidden_second_moment, np.mean(squares[500:]), rtol=0.1)
    del arrays["W1"]
    assert "weights are not in the file" in (gates_of(arrays).reason or "")


def test_the_constant_of_a_long_expressive_memory() -> None:
    arrays = CASES["lem"].arrays()
    given = read_layer(arrays, LEM, dt="0.5")
    recurrence = read_layer(arrays | {"cell.dt": np.array(0.5)}, LEM)
    assert_allclose(recurrence.log_eigenvalues, given.log_eigenvalues, rtol=0)
    assert "dt=0.5 (stored as cell.dt)" in " ".join(recurrence.assumptions)
    arrays["cell.inp2hid.bias"] = np.full(4 * H, -60.0)
    arrays["cell.hid2hid.bias"] = np.zeros(3 * H)
    long = read_layer(arrays, LEM).log_eigenvalues.real
    assert_allclose(long, -np.exp(-60.0), rtol=1e-12)


CASE = CASES["multiplicative_lstm"]
WEIGHTS = {name.removeprefix(CASE.module): array for name, array in CASE.arrays().items()}


def ported(suffix: str) -> dict[str, np.ndarray]:
    """The same under the names of a torch port, whose weights are transposed."""
    arrays = {f"{name}.{suffix}": array.T for name, array in WEIGHTS.items() if name != "b"}
    return arrays | {"wh.bias": WEIGHTS["b"]}


NAMINGS = {
    "unirep": ({f"rnn_mlstm_{n}:0": a for n, a in WEIGHTS.items()}, "rnn_mlstm"),
    "port": ({f"layer_0.{n}": a for n, a in ported("weight").items()}, "layer_0"),
    "tape": (
        {f"encoder.mlstm_cell.{n}": a for n, a in ported("weight_v").items()},
        "encoder.mlstm_cell",
    ),
    "norm": (ported("parametrizations.weight.original1"), "multiplicative_lstm"),
}


@pytest.mark.parametrize("naming", NAMINGS)
def test_every_naming_of_a_multiplicative_lstm(naming: str) -> None:
    arrays, layer = NAMINGS[naming]
    recurrence = read_found(arrays, gates=True)
    assert (recurrence.family, recurrence.name) == (MULTIPLICATIVE_LSTM.name, layer)
    expected = read_layer(CASE.arrays(), MULTIPLICATIVE_LSTM)
    assert_allclose(recurrence.log_eigenvalues, expected.log_eigenvalues, rtol=1e-15)
    assert_allclose(recurrence.log_gain, expected.log_gain, rtol=1e-15)
    # Weights whose norm is apart have no figures.
    assert (recurrence.gate is None) == (naming in ("tape", "norm"))


def simulated(w: dict[str, np.ndarray], steps: int = 20_000) -> tuple[np.ndarray, np.ndarray]:
    """The forget gates (steps, units) and h² of encoder.mlstm under standard normal inputs."""
    x = np.random.default_rng(8).standard_normal((steps, len(w["wmx"])))
    units = len(w["wmh"])
    h, c = np.zeros(units), np.zeros(units)
    gates, squares = np.empty((steps, units)), np.empty((steps, units))
    for step, (driven, product) in enumerate(zip(x @ w["wx"] + w["b"], x @ w["wmx"], strict=True)):
        i, f, o, u = np.split(driven + (product * (h @ w["wmh"])) @ w["wh"], 4)
        gates[step] = sigmoid(f)
        c = gates[step] * c + np.tanh(u) * sigmoid(i)
        h = np.tanh(c) * sigmoid(o)
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
    logits = np.log(gates / (1 - gates))
    assert_allclose(bands.spread.p50, np.median(logits.std(axis=0)), rtol=0.05)
    assert_allclose(bands.hidden_second_moment, squares.mean(), rtol=0.1)
