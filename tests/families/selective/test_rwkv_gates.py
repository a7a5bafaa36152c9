"""The bands of RWKV-6 and RWKV-7 against their own formulas on random inputs, in every naming."""

from __future__ import annotations

import numpy as np
import pytest
from families.simulated_gates import check_bands, drive_of, gates_of
from numpy.testing import assert_allclose

from memcurse_cli.checkpoints.memory import MemoryStore
from memcurse_cli.families.family import ReadOptions
from memcurse_cli.families.gate_inputs import NoDrive, tanh_covariance
from memcurse_cli.families.selective.rwkv import RWKV, RWKV7

WIDTH, RANK, HEADS, STEPS = 32, 8, 4, 20_000


RANDOM = np.random.default_rng(31)


BASE = RANDOM.normal(-1.5, 0.5, WIDTH)


INNER = RANDOM.normal(0.0, 0.25, (WIDTH, RANK))


OUTER = RANDOM.normal(0.0, 0.4, (RANK, WIDTH))


MIXING = RANDOM.uniform(0.0, 1.0, WIDTH)


OWN_MIXING = RANDOM.uniform(0.0, 1.0, WIDTH)


# w, k, v, r, g, as RWKV-LM has them.
MOVING_INNER = RANDOM.normal(0.0, 0.25, (WIDTH, 5 * RANK))


MOVING_OUTER = RANDOM.normal(0.0, 0.2, (5, RANK, WIDTH))


SQUARE = np.zeros((WIDTH, WIDTH))


HEAD = (HEADS, WIDTH // HEADS)


def reordered(parts: np.ndarray) -> np.ndarray:
    """w, k, v, r, g as r, w, k, v, g."""
    return parts[[3, 0, 1, 2, 4]]


def fla_outer() -> np.ndarray:
    return reordered(MOVING_OUTER).transpose(2, 0, 1).reshape(WIDTH, 5 * RANK)


def fla_inner() -> np.ndarray:
    return reordered(MOVING_INNER.T.reshape(5, RANK, WIDTH)).reshape(5 * RANK, WIDTH)


NAMINGS6: dict[str, dict[str, np.ndarray]] = {
    "RWKV-LM": {
        "time_decay": BASE.reshape(1, 1, WIDTH),
        "time_faaaa": np.zeros(HEAD),
        "time_decay_w1": INNER,
        "time_decay_w2": OUTER,
        "time_maa_x": OWN_MIXING.reshape(1, 1, WIDTH),
        "time_maa_w": MIXING.reshape(1, 1, WIDTH),
        "time_maa_w1": MOVING_INNER,
        "time_maa_w2": MOVING_OUTER,
        "key.weight": SQUARE,
        "value.weight": SQUARE,
    },
    "flash-linear-attention": {
        "w_proj.linear.lora.2.bias": BASE,
        "bonus": np.zeros(HEAD),
        "w_proj.linear.lora.0.weight": INNER.T,
        "w_proj.linear.lora.2.weight": OUTER.T,
        "x_bias": np.stack([np.zeros(WIDTH), MIXING, *np.zeros((3, WIDTH))]),
        "x_proj.0.linear.weight": fla_inner(),
        "x_proj.0.mu": OWN_MIXING,
        "x_proj.2.weight": fla_outer(),
        "k_proj.linear.weight": SQUARE,
        "v_proj.linear.weight": SQUARE,
    },
    "llama.cpp": {
        "time_mix_decay.weight": BASE,
        "time_mix_first.weight": np.zeros(HEAD),
        "time_mix_decay_w1.weight": INNER.T,
        "time_mix_decay_w2.weight": OUTER.T,
        "time_mix_lerp_x.weight": OWN_MIXING.reshape(1, 1, WIDTH),
        "time_mix_lerp_fused.weight": np.concatenate([MIXING, np.zeros(4 * WIDTH)]).reshape(
            5, 1, 1, WIDTH
        ),
        "time_mix_w1.weight": MOVING_INNER.T,
        "time_mix_w2.weight": MOVING_OUTER.swapaxes(1, 2),
        "time_mix_key.weight": SQUARE,
        "time_mix_value.weight": SQUARE,
    },
}


NAMINGS7: dict[str, dict[str, np.ndarray]] = {
    "RWKV-LM": {
        "w0": BASE.reshape(1, 1, WIDTH),
        "w1": INNER,
        "w2": OUTER,
        "x_w": MIXING.reshape(1, 1, WIDTH),
        "k_k": np.ones((1, 1, WIDTH)),
        "r_k": np.zeros(HEAD),
    },
    "flash-linear-attention": {
        "w_lora.lora.2.bias": BASE,
        "w_lora.lora.0.weight": INNER.T,
        "w_lora.lora.2.weight": OUTER.T,
        "x_w": MIXING.reshape(1, 1, WIDTH),
        "k_k": np.ones(WIDTH),
        "r_k": np.zeros(HEAD),
    },
    "llama.cpp": {
        "time_mix_w0.weight": BASE,
        "time_mix_w1.weight": INNER.T,
        "time_mix_w2.weight": OUTER.T,
        "time_mix_lerp_fused.weight": np.stack([SQUARE[0], MIXING, *SQUARE[:4]]).reshape(
            6, 1, 1, WIDTH
        ),
        "time_mix_k_k.weight": np.ones(WIDTH),
        "time_mix_r_k.weight": np.zeros(HEAD),
    },
}


def inputs(scale: float) -> tuple[np.ndarray, np.ndarray]:
    x = scale * np.random.default_rng(7).standard_normal((STEPS + 1, WIDTH))
    return x[1:], x[:-1] - x[1:]


def simulated7(scale: float) -> np.ndarray:
    x, shift = inputs(scale)
    z = BASE + np.tanh((x + shift * MIXING) @ INNER) @ OUTER
    return np.exp(-np.exp(-0.5) / (1 + np.exp(-z)))


def simulated6(scale: float) -> np.ndarray:
    x, shift = inputs(scale)
    low = np.tanh((x + shift * OWN_MIXING) @ MOVING_INNER).reshape(STEPS, 5, RANK)
    moved = low[:, 0] @ MOVING_OUTER[0]
    z = BASE + np.tanh((x + shift * (MIXING + moved)) @ INNER) @ OUTER
    return np.exp(-np.exp(z))


@pytest.mark.parametrize("naming", NAMINGS7)
@pytest.mark.parametrize("scale", [1.0, 3.0])
def test_the_bands_of_rwkv7(naming: str, scale: float) -> None:
    arrays = {f"att.{name}": array for name, array in NAMINGS7[naming].items()}
    drive_of(MemoryStore(arrays), RWKV7())
    check_bands(gates_of(arrays, input_scale=scale), simulated7(scale))


@pytest.mark.parametrize("naming", NAMINGS6)
@pytest.mark.parametrize("scale", [1.0, 3.0])
def test_the_bands_of_rwkv6(naming: str, scale: float) -> None:
    arrays = {f"att.{name}": array for name, array in NAMINGS6[naming].items()}
    drive_of(MemoryStore(arrays), RWKV())
    check_bands(gates_of(arrays, input_scale=scale), simulated6(scale))


def test_the_spread_is_that_of_the_preactivation() -> None:
    drive = drive_of(MemoryStore(NAMINGS6["RWKV-LM"]), RWKV())
    z = np.log(-np.log(simulated6(1.0)))
    assert_allclose(np.sqrt(drive.gate.variance(1.0, 0.0)), z.std(axis=0), rtol=0.05)


def test_what_two_units_share() -> None:
    covariance = np.array([[4.0, 1.5, 0.0], [1.5, 1.0, 0.0], [0.0, 0.0, 0.0]])
    z = RANDOM.multivariate_normal(np.zeros(3), covariance, 1_000_000)
    assert_allclose(tanh_covariance(covariance), np.cov(np.tanh(z).T), atol=2e-3)


@pytest.mark.parametrize("missing", ["w2", "x_w"])
def test_without_the_low_rank_layer_there_is_a_reason(missing: str) -> None:
    arrays = {name: array for name, array in NAMINGS7["RWKV-LM"].items() if name != missing}
    store = MemoryStore(arrays)
    (match,) = RWKV7().find(store.tensors)
    gate = RWKV7().read(store, match, ReadOptions(gates=True)).gate
    assert isinstance(gate, NoDrive)
    assert "is not in the file" in (gates_of(arrays).reason or "")


def test_rwkv5_has_gates_that_stay() -> None:
    arrays = {"time_decay": BASE.reshape(HEAD), "time_faaaa": np.zeros(HEAD)}
    store = MemoryStore(arrays)
    (match,) = RWKV().find(store.tensors)
    assert RWKV().read(store, match, ReadOptions(gates=True)).gate is None
