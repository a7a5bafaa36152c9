"""RWKV-4, 5 and 6 against transformers' own recurrence, a plain loop, and differences."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from families.derivatives import check_derivatives, match_of, read_layer
from numpy.testing import assert_allclose
from transformers import RwkvConfig, RwkvModel
from transformers.models.rwkv.modeling_rwkv import rwkv_linear_attention_cpu

from memcurse_cli.checkpoints.open import open_checkpoint
from memcurse_cli.errors import TensorError
from memcurse_cli.families.family import ReadOptions
from memcurse_cli.families.selective.rwkv import RWKV

HEADS, SIZE, WIDTH = 2, 3, 6
RANDOM = np.random.default_rng(12)
DECAY = RANDOM.uniform(-6, 1, WIDTH)
SQUARE = np.zeros((WIDTH, WIDTH))

VERSIONS: dict[str, tuple[dict[str, np.ndarray], int, bool]] = {
    "RWKV-4": (
        {
            "time_decay": DECAY,
            "time_first": np.zeros(WIDTH),
            "key.weight": SQUARE,
            "value.weight": SQUARE,
        },
        2,
        False,
    ),
    "RWKV-5": (
        {
            "time_decay": DECAY.reshape(HEADS, SIZE),
            "time_faaaa": np.zeros((HEADS, SIZE)),
            "key.weight": SQUARE,
            "value.weight": SQUARE,
        },
        SIZE,
        False,
    ),
    "RWKV-5 by head": (
        {
            "time_decay": DECAY[:HEADS],
            "time_first": np.zeros(HEADS),
            "key.weight": SQUARE,
            "value.weight": SQUARE,
        },
        SIZE**2,
        False,
    ),
    "RWKV-6": (
        {
            "time_decay": DECAY.reshape(1, 1, WIDTH),
            "time_faaaa": np.zeros((HEADS, SIZE)),
            "time_decay_w1": np.zeros((WIDTH, 4)),
            "key.weight": SQUARE,
            "value.weight": SQUARE,
        },
        SIZE,
        True,
    ),
    "flash-linear-attention": (
        {
            "w_proj.linear.lora.0.weight": np.zeros((4, WIDTH)),
            "w_proj.linear.lora.2.bias": DECAY,
            "bonus": np.zeros((HEADS, SIZE)),
            "k_proj.linear.weight": SQUARE,
            "v_proj.linear.weight": np.zeros((2 * WIDTH, WIDTH)),
        },
        2 * SIZE,
        True,
    ),
    "llama.cpp": (
        {
            "time_mix_decay.weight": DECAY,
            "time_mix_decay_w1.weight": np.zeros((4, WIDTH)),
            "time_mix_first.weight": np.zeros((HEADS, SIZE)),
            "time_mix_key.weight": SQUARE,
            "time_mix_value.weight": SQUARE,
        },
        SIZE,
        True,
    ),
}


@pytest.mark.parametrize("version", VERSIONS)
def test_every_version_is_read(version: str) -> None:
    arrays, multiplicity, input_dependent = VERSIONS[version]
    recurrence = read_layer({f"blocks.3.att.{name}": a for name, a in arrays.items()}, RWKV())
    assert recurrence.name == "blocks.3.att"
    assert recurrence.multiplicity == multiplicity
    assert recurrence.input_dependent is input_dependent
    assert bool(recurrence.assumptions) is input_dependent
    assert_allclose(recurrence.log_eigenvalues, -np.exp(DECAY[: recurrence.size]), rtol=1e-15)


@pytest.mark.parametrize("version", VERSIONS)
def test_derivatives(version: str) -> None:
    check_derivatives(VERSIONS[version][0], RWKV())


TRUE = np.exp(-np.exp(DECAY))
CONVERTED = {
    "RWKV-4": -np.exp(DECAY),
    "RWKV-5": TRUE.reshape(HEADS, SIZE, 1),
    "RWKV-5 by head": TRUE[:HEADS].reshape(HEADS, 1, 1),
    "RWKV-6": DECAY.reshape(HEADS, SIZE, 1),
}
TRANSPOSED = {"ffn.key.weight": np.zeros((WIDTH, 4 * WIDTH))}


@pytest.mark.parametrize("version", CONVERTED)
@pytest.mark.parametrize("mark", ["zip", "legacy", "transposed"])
def test_what_the_rwkv_package_converted_has_the_eigenvalues_of_its_source(
    version: str, mark: str, tmp_path: Path
) -> None:
    arrays, multiplicity, _ = VERSIONS[version]
    stored = {f"att.{name}": a for name, a in arrays.items()} | {
        "att.time_decay": CONVERTED[version],
        "ffn.key.weight": np.zeros((4 * WIDTH, WIDTH)),
    }
    if mark == "transposed":
        recurrence = read_layer(stored | TRANSPOSED, RWKV())
    else:
        path = tmp_path / "converted.pth"
        torch.save(
            {name: torch.tensor(a) for name, a in stored.items()}
            | {"_strategy": "cpu fp32", "_rescale_layer": 0, "_version": "0.7"},
            path,
            _use_new_zipfile_serialization=mark == "zip",
        )
        with open_checkpoint(path) as store:
            recurrence = RWKV().read(store, RWKV().find(store.tensors)[0], ReadOptions())
    assert_allclose(np.exp(recurrence.log_eigenvalues), TRUE[: recurrence.size], rtol=1e-12)
    assert recurrence.multiplicity == multiplicity
    assert ("converter" in recurrence.assumptions[0]) is (version != "RWKV-6")


@pytest.mark.parametrize("version", ["RWKV-4", "RWKV-5"])
def test_derivatives_by_what_the_converter_stored(version: str) -> None:
    # Away from 0 and 1, beyond which a perturbed value is refused.
    decay = np.linspace(-2, 0.5, WIDTH)
    rate = np.exp(decay)
    stored = -rate if version == "RWKV-4" else np.exp(-rate).reshape(HEADS, SIZE, 1)
    first = np.zeros(WIDTH)
    check_derivatives({"att.time_decay": stored, "att.time_first": first, **TRANSPOSED}, RWKV())


@pytest.mark.parametrize("stored", [np.array([0.1, -1.0]), np.array([[[1.1]], [[0.5]]])])
def test_what_no_converter_writes_is_refused(stored: np.ndarray) -> None:
    arrays = {"att.time_decay": stored, "att.time_first": np.zeros(2), **TRANSPOSED}
    with pytest.raises(TensorError, match="has converted this file"):
        read_layer(arrays, RWKV())


def test_the_state_decays_as_the_library_lets_it() -> None:
    torch.manual_seed(0)
    config = RwkvConfig(
        vocab_size=8, context_length=16, hidden_size=WIDTH, num_hidden_layers=2, intermediate_size=8
    )
    model = RwkvModel(config).double()
    arrays = dict(model.state_dict())
    assert [match.layer for match in match_of(arrays, RWKV())] == [
        "blocks.0.attention",
        "blocks.1.attention",
    ]
    recurrence = read_layer(arrays, RWKV(), layer=1)
    attention = model.blocks[1].attention
    steps = 9
    key = torch.full((1, steps, WIDTH), -1e30, dtype=torch.float64)
    key[:, 0] = 0.0  # one token writes, the others do not
    value = torch.ones(1, steps, WIDTH, dtype=torch.float64)
    with torch.no_grad():
        _, state = rwkv_linear_attention_cpu(
            attention.time_decay, attention.time_first, key, value, return_state=True
        )
    numerator, denominator, log_scale = (part.double().numpy()[0] for part in state)
    decayed = np.exp((steps - 1) * recurrence.log_eigenvalues.real)
    # The library accumulates in float32.
    assert_allclose(numerator * np.exp(log_scale), decayed, rtol=1e-5)
    assert_allclose(denominator * np.exp(log_scale), decayed, rtol=1e-5)


def test_extremes_stay_finite() -> None:
    arrays = {"time_decay": np.array([-800.0, 800.0]), "time_first": np.zeros(2)}
    recurrence = read_layer(arrays, RWKV())
    assert np.isfinite(recurrence.log_eigenvalues).all()
    assert np.isfinite(recurrence.parameters[0].eigenvalue_derivative).all()


def test_what_does_not_fit_is_named() -> None:
    arrays = {"time_decay": np.array([1.0, np.nan]), "time_first": np.zeros(2)}
    with pytest.raises(TensorError, match="time_decay: 1 NaN of its 2 values"):
        read_layer(arrays, RWKV())
    assert match_of({"time_decay": np.zeros(2)}, RWKV()) == []
