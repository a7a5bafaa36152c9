"""The QRNN against a plain loop of pytorch-qrnn's layer, in the names of three libraries."""

from __future__ import annotations

import numpy as np
import pytest
from families.derivatives import match_of, read_layer
from families.simulated_gates import check_bands, drive_of, gates_of
from numpy.testing import assert_allclose

from memcurse_cli.checkpoints.memory import MemoryStore
from memcurse_cli.families.selective.mixing import QRNN

H, INPUTS = 4, 3


def linear(inputs: int = INPUTS, parts: int = 3) -> dict[str, np.ndarray]:
    generator = np.random.default_rng(inputs)
    return {
        "weight": generator.normal(size=(parts * H, inputs)),
        "bias": generator.normal(size=parts * H),
    }


def named(pattern: str, arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {pattern.format(name): array for name, array in arrays.items()}


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def run(arrays: dict[str, np.ndarray], inputs: np.ndarray, state: np.ndarray) -> np.ndarray:
    """The last c, as QRNNLayer.forward with ForgetMult computes it."""
    for x in inputs:
        z, f, *_ = np.split(arrays["weight"] @ x + arrays["bias"], len(arrays["bias"]) // H)
        state = sigmoid(f) * np.tanh(z) + (1 - sigmoid(f)) * state
    return state


@pytest.mark.parametrize("parts", [2, 3])
def test_two_states_come_together_by_the_gate_that_writes(parts: int) -> None:
    arrays = linear(parts=parts)
    gate = {"output_gate": "no"} if parts == 2 else {"output_gate": "yes"}
    recurrence = read_layer(named("qrnn.layers.0.linear.{}", arrays), QRNN(), **gate)
    assert recurrence.name == "qrnn.layers.0"
    silence = np.zeros((5, INPUTS))
    apart = run(arrays, silence, np.ones(H)) - run(arrays, silence, np.zeros(H))
    assert_allclose(apart, np.exp(5 * recurrence.log_eigenvalues.real), rtol=1e-12)
    first = run(arrays, silence[:1], np.zeros(H))
    z = np.tanh(arrays["bias"][:H])
    assert_allclose(first, np.exp(recurrence.log_gain.real) * z, rtol=1e-12)


@pytest.mark.parametrize(
    ("arrays", "layer"),
    [
        (
            named("layers.0.linear.{}", linear()) | named("layers.1.linear.{}", linear(H)),
            "layers.0",
        ),
        (
            named("rnns.0.layers.0.linear.module.{}", linear())
            | {"rnns.0.layers.0.linear.weight_raw": linear()["weight"]},
            "rnns.0.layers.0",
        ),
        (
            {
                "encoder.rnns.0.linear.module.bias": linear()["bias"],
                "encoder.rnns.0.linear.module.weight_raw": linear()["weight"],
            },
            "encoder.rnns.0",
        ),
    ],
    ids=["pytorch-qrnn", "fastai", "awd-lstm-lm"],
)
def test_namings(arrays: dict[str, np.ndarray], layer: str) -> None:
    recurrence = read_layer(arrays, QRNN())
    assert recurrence.name == layer
    assert_allclose(np.exp(recurrence.log_eigenvalues), 1 - sigmoid(linear()["bias"][H : 2 * H]))
    assert any("output_gate=yes" in sentence for sentence in recurrence.assumptions)


def test_a_layer_whose_rows_are_no_three_parts_has_no_output_gate() -> None:
    recurrence = read_layer(named("qrnn.layers.0.linear.{}", linear(parts=2)), QRNN())
    assert recurrence.size == H
    assert recurrence.assumptions == ()


def test_what_else_has_a_linear_in_a_list_is_not_taken() -> None:
    perceptron = named("layers.0.linear.{}", linear()) | named("layers.1.linear.{}", linear(3 * H))
    assert match_of(perceptron, QRNN()) == []
    alone = named("layers.0.linear.{}", linear())
    assert match_of(alone, QRNN()) == []
    # A recurrent network whose layers hold more than a linear is another one.
    beside = named("rnn.layers.0.linear.{}", linear()) | {
        "rnn.layers.0.cell.weight_hh": np.zeros((H, H))
    }
    assert match_of(beside, QRNN()) == []


@pytest.mark.parametrize("window", [1, 2])
def test_the_bands_are_those_of_the_gate_that_writes(window: int) -> None:
    arrays = named("qrnn.layers.0.linear.{}", linear(window * INPUTS))
    drive_of(MemoryStore(arrays), QRNN())
    x = np.random.default_rng(1).standard_normal((20_001, INPUTS))
    source = np.concatenate([x[1:], x[:-1]], axis=1) if window == 2 else x
    weight, bias = (arrays[f"qrnn.layers.0.linear.{name}"] for name in ("weight", "bias"))
    z = source @ weight[H : 2 * H].T + bias[H : 2 * H]
    check_bands(gates_of(arrays), 1 - sigmoid(z), 0.02)
