"""The RG-LRU of recurrentgemma and of its copies, against their steps written out."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from families.derivatives import match_of, read_layer
from families.oracles import original_layer
from families.selective.layers import GRIFFIN_TORCH, RECURRENT_GEMMA, RG_LRU, TURNING
from numpy.testing import assert_allclose
from numpy.typing import NDArray

from memcurse_cli.checkpoints.memory import MemoryStore
from memcurse_cli.families.detect import detect
from memcurse_cli.families.family import ReadOptions
from memcurse_cli.families.gate_inputs import NoDrive
from memcurse_cli.families.recurrence import Recurrence
from memcurse_cli.families.selective.rg_lru import RGLRU, Hawk


def test_a_complex_layer_turns_by_its_gated_angle() -> None:
    real, turning = read_layer(RECURRENT_GEMMA, RGLRU()), read_layer(TURNING, RGLRU())
    gate = 1 / (1 + np.exp(-RECURRENT_GEMMA["a_gate.b"].ravel()))
    rate = 8 * np.log1p(np.exp(RECURRENT_GEMMA["a_param"]))
    expected = np.exp(gate * (-rate + 1j * TURNING["a_imag_param"]))
    assert_allclose(np.exp(turning.log_eigenvalues), expected, rtol=1e-13)
    assert_allclose(turning.log_gain, real.log_gain, rtol=0)
    store = MemoryStore(TURNING)
    drive = RGLRU().read(store, RGLRU().find(store.tensors)[0], ReadOptions(gates=True)).gate
    assert isinstance(drive, NoDrive)


@pytest.mark.parametrize("separator", "./,")
def test_both_namings_give_the_same_recurrence(separator: str) -> None:
    nested = {
        f"blocks.0.rg_lru.{name}".replace(".", separator): array
        for name, array in RECURRENT_GEMMA.items()
    }
    ours, theirs = read_layer(RG_LRU, RGLRU()), read_layer(nested, RGLRU())
    assert theirs.name == f"blocks{separator}0{separator}rg_lru"
    assert_allclose(ours.log_eigenvalues, theirs.log_eigenvalues, rtol=0)
    assert_allclose(ours.log_gain, theirs.log_gain, rtol=0)


def test_the_gain_keeps_full_precision_where_the_state_hardly_decays() -> None:
    arrays = RG_LRU | {"recurrent_param": np.array([-30.0, -800.0, 800.0, -30.0, 0.0, 0.0])}
    recurrence = read_layer(arrays, RGLRU())
    assert np.isfinite(recurrence.log_gain).all()
    gate = 1 / (1 + np.exp(-RG_LRU["recurrent_gate_bias"].ravel()[0]))
    opened = 1 / (1 + np.exp(-RG_LRU["input_gate_bias"].ravel()[0]))
    decay = 8 * np.exp(-30.0) * gate
    assert_allclose(-recurrence.log_eigenvalues[0].real, decay, rtol=1e-12)
    assert_allclose(np.exp(recurrence.log_gain[0].real), np.sqrt(2 * decay) * opened, rtol=1e-12)


def test_a_gate_alone_is_not_it() -> None:
    assert match_of({"a_param": np.zeros(3), "a_gate.b": np.zeros(3)}, RGLRU()) == []


def test_the_original_layer(paper: Path) -> None:
    arrays, stored = original_layer(paper, "rglru")
    recurrence = read_layer(arrays, RGLRU())
    # The stored λ are those of its inputs; at zero input the gate's weights do not act.
    gate = np.einsum(
        "bthi,hij->bthj", stored["x"].reshape(2, 16, 2, 4), arrays["a_gate.w"]
    ).reshape(2, 16, 8)
    at_zero = np.log(stored["lambda_t"]) * (1 + np.exp(-gate)) / 2
    assert_allclose(
        at_zero, np.broadcast_to(recurrence.log_eigenvalues.real, gate.shape), rtol=1e-5
    )


N, STEPS = 5, 9


RANDOM = np.random.default_rng(31)


def sigmoid(x: NDArray) -> NDArray:
    return 1 / (1 + np.exp(-x))


def hippogriff(scale: float = np.log(8)) -> dict[str, NDArray]:
    layer = {
        "input.weight": RANDOM.normal(size=(2 * N, 4)),
        "conv.weight": RANDOM.normal(size=(N, 1, 4)),
        "gates.weight": RANDOM.normal(size=(2 * N, N)),
        "gates.bias": RANDOM.normal(size=2 * N),
        "forget_base": RANDOM.uniform(-9, -4, N),
        "alpha_log_scale": np.array([scale]),
        "output.weight": RANDOM.normal(size=(4, N)),
    }
    return {f"layers.0.hawk.{name}": values for name, values in layer.items()}


def states(alpha: NDArray, beta: NDArray) -> NDArray:
    """The state after an impulse of one into every unit, at gates that see no input."""
    h, found = np.zeros(N), []
    for step in range(STEPS):
        h = alpha * h + beta * (step == 0)
        found.append(h)
    return np.stack(found)


def predicted(recurrence: Recurrence) -> NDArray:
    powers = np.outer(np.arange(STEPS), recurrence.log_eigenvalues.real)
    return np.exp(powers + recurrence.log_gain.real)


@pytest.mark.parametrize("stored", [np.log(8), -8.0, np.log(14)])
def test_hippogriff(stored: float) -> None:
    layer = hippogriff(stored)
    ((family, match),) = detect(MemoryStore(layer).tensors)
    assert (family.name, match.layer) == ("hawk", "layers.0.hawk")
    recurrence = read_layer(layer, Hawk())
    forget, opened = np.split(layer["layers.0.hawk.gates.bias"], 2)
    base = np.log1p(np.exp(layer["layers.0.hawk.forget_base"]))
    negative = stored if stored < 0 else -np.exp(stored)
    alpha = np.exp(negative * base * sigmoid(forget))
    beta = np.sqrt(1 - alpha**2 + 1e-6) * sigmoid(opened)
    assert_allclose(predicted(recurrence), states(alpha, beta), rtol=1e-12)


def test_griffin_torch() -> None:
    layer = GRIFFIN_TORCH
    ((family, match),) = detect(MemoryStore(layer).tensors)
    assert (family.name, match.layer) == ("hawk", "rglru")
    alpha = sigmoid(layer["rglru.Lambda"]) / 8 ** sigmoid(layer["rglru.ba"])
    beta = np.sqrt(1 - alpha**2) * sigmoid(layer["rglru.bx"])
    assert_allclose(predicted(read_layer(layer, Hawk())), states(alpha, beta), rtol=1e-12)


def test_a_complex_diagonal_is_not_it() -> None:
    assert match_of({"Lambda": np.ones(N) + 0j, "B": np.ones((N, 2)) + 0j}, Hawk()) == []
