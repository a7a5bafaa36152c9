"""SRU, QRNN and the minimal RNNs against loops of their own steps."""

from __future__ import annotations

import numpy as np
import pytest
from families.derivatives import match_of, read_layer
from families.oracles import sigmoid
from families.selective.layers import min_rnn, sru
from families.simulated_gates import check_bands, gates_of, joint_drive_of
from numpy.testing import assert_allclose

from memcurse_cli.checkpoints.open import MemoryStore
from memcurse_cli.families.selective.mixing import QRNN, SRU, MinLSTM

Arrays = dict[str, np.ndarray]
N, INPUTS = 3, 4


def shares(arrays: Arrays, inputs: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """λ of a minLSTM, as minGRU-pytorch has it in its log space, and both pre-activations."""
    both = inputs @ arrays["to_hidden_and_f_i_gate.weight"].T
    _, forget, opened = np.split(both + arrays["to_hidden_and_f_i_gate.bias"], 3, axis=-1)
    balance = np.logaddexp(0, -forget) - np.logaddexp(0, -opened)
    return np.exp(-np.logaddexp(0, balance)), forget, opened


@pytest.mark.parametrize(("fused", "scale"), [(True, 0.4), (False, 0.4), (True, 0.8)])
def test_the_bands_of_a_min_lstm(scale: float, fused: bool) -> None:
    arrays = min_rnn(2, fused=fused, scale=scale)
    joint_drive_of(MemoryStore(arrays), MinLSTM())
    inputs = 1.5 * np.random.default_rng(1).standard_normal((40_000, 4))
    kept, forget, opened = shares(min_rnn(2, scale=scale), inputs)
    gates = gates_of(arrays, input_scale=1.5)
    check_bands(gates, kept, 0.01)
    spreads = np.concatenate([forget.std(axis=0), opened.std(axis=0)])
    assert_allclose(gates.spread.p50, np.median(spreads), rtol=0.02)
    # For a white drive the moments are means of the gates.
    expected = ((1 - kept) ** 2).mean(axis=0) / (1 - (kept**2).mean(axis=0))
    assert_allclose(gates.second_moment.moving.p50, np.median(expected), rtol=0.02)


def test_both_directions_of_an_sru_stand_in_each_half() -> None:
    # A bidirectional layer has (2, directions, n) biases: forget of both, then reset of both.
    arrays = sru(3, width=2 * N)
    forget = arrays["bias"].reshape(2, 2, N)[0].ravel()
    assert_allclose(np.exp(read_layer(arrays, SRU()).log_eigenvalues), sigmoid(forget))


def test_old_srus_without_weight_c_are_told_by_their_list() -> None:
    old = {name: array for name, array in sru().items() if name in ("weight", "bias")}
    (match,) = match_of({f"encoder.rnn_lst.3.{name}": a for name, a in old.items()}, SRU())
    assert match.layer == "encoder.rnn_lst.3"
    # A linear layer and a normalisation have a weight and a bias as well.
    assert match_of({f"encoder.layers.3.{name}": a for name, a in old.items()}, SRU()) == []
    unfit = {"rnn_lst.0.weight": np.zeros((4, 5)), "rnn_lst.0.bias": np.zeros(6)}
    assert match_of(unfit, SRU()) == []


def test_sru_plus_plus_changes_the_projection_only() -> None:
    arrays = {f"rnn_lst.0.{name}": array for name, array in sru().items() if name != "weight"} | {
        "rnn_lst.0.transform_module.linear1.weight": np.zeros((2, INPUTS)),
        "rnn_lst.0.transform_module.linear3.weight": sru()["weight"].T,
        "rnn_lst.0.layer_norm.weight": np.ones(INPUTS),
    }
    recurrence = read_layer(arrays, SRU())
    assert_allclose(np.exp(recurrence.log_eigenvalues), sigmoid(sru()["bias"][:N]))
    assert "layer normalisation" in recurrence.assumptions[1]
    assert "attention" in (gates_of(arrays).reason or "")
    unfit = sru() | {"weight": np.ones((INPUTS, 5 * N)), "weight_c": np.zeros(2 * N)}
    assert "three or four" in (gates_of(unfit).reason or "")


def forgotten(driven: np.ndarray, own: np.ndarray, bias: np.ndarray) -> np.ndarray:
    """σ(z + v c + b) of every step but the first, of driven (steps, units, [u, z, …])."""
    c, gates = np.zeros(driven.shape[1]), []
    for u, z in zip(driven[:, :, 0], driven[:, :, 1], strict=True):
        forget = sigmoid(z + own * c + bias)
        c = forget * c + (1 - forget) * u
        gates.append(forget)
    return np.array(gates[500:])


@pytest.mark.parametrize(
    ("weight", "normalised"), [(0.0, True), (0.5, False), (1.0, False), (1.0, True)]
)
def test_the_bands_of_an_sru_that_sees_its_own_state(weight: float, normalised: bool) -> None:
    """Weights of 40 inputs, so that a normalised input of theirs is nearly Gaussian."""
    random = np.random.default_rng(12)
    units, inputs, steps = 32, 40, 20_000
    arrays = {
        "weight": random.normal(size=(inputs, 3 * units)) / inputs**0.5,
        "weight_c": weight * random.normal(size=2 * units),
        "bias": 1.5 + random.normal(size=2 * units),
    }
    x = 2 * random.normal(size=(steps, inputs))
    if normalised:
        arrays["layer_norm.weight"] = 1 + 0.3 * random.normal(size=inputs)
        arrays["layer_norm.bias"] = 0.5 * random.normal(size=inputs)
        x = (x - x.mean(1, keepdims=True)) / x.std(1, keepdims=True)
        x = x * arrays["layer_norm.weight"] + arrays["layer_norm.bias"]
    driven = (x @ arrays["weight"]).reshape(steps, units, 3)
    found = gates_of(arrays, input_scale=2.0)
    assert (found.second_moment is None) == (weight != 0)
    assert (weight != 0) == ("its own unit's state" in (found.reason or ""))
    seen = forgotten(driven, arrays["weight_c"][:units], arrays["bias"][:units])
    check_bands(found, seen, reason=found.reason)


H = 4


def linear(inputs: int = 3, *, name: str = "{}") -> Arrays:
    """A QRNN's only layer, under names of a pattern."""
    generator = np.random.default_rng(inputs)
    shapes = {"weight": (3 * H, inputs), "bias": (3 * H,)}
    return {name.format(role): generator.normal(size=shape) for role, shape in shapes.items()}


@pytest.mark.parametrize(
    ("arrays", "layer"),
    [
        (linear(name="layers.0.linear.{}") | linear(H, name="layers.1.linear.{}"), "layers.0"),
        (
            linear(name="rnns.0.layers.0.linear.module.{}")
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
def test_namings_of_a_qrnn(arrays: Arrays, layer: str) -> None:
    recurrence = read_layer(arrays, QRNN())
    assert recurrence.name == layer
    assert_allclose(np.exp(recurrence.log_eigenvalues), 1 - sigmoid(linear()["bias"][H : 2 * H]))
    assert any("output_gate=yes" in sentence for sentence in recurrence.assumptions)


def test_what_else_has_a_linear_in_a_list_is_no_qrnn() -> None:
    alone = linear(name="layers.0.linear.{}")
    assert match_of(alone, QRNN()) == []
    assert match_of(alone | linear(3 * H, name="layers.1.linear.{}"), QRNN()) == []
    # A recurrent network whose layers hold more than a linear is another one.
    beside = {"rnn.layers.0.cell.weight_hh": np.zeros((H, H))}
    assert match_of(linear(name="rnn.layers.0.linear.{}") | beside, QRNN()) == []
