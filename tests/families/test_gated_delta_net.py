"""Gated delta nets against transformers' own layers, the range of the delta rule, differences."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from families.cached_state import decay_of_the_state
from families.derivatives import check_derivatives, match_of, read_configured, read_layer
from families.simulated_gates import check_bands, drive_of, gates_of
from numpy.testing import assert_allclose
from safetensors.torch import save_file
from transformers import OlmoHybridConfig, Qwen3_5TextConfig, Qwen3NextConfig
from transformers.models.olmo_hybrid.modeling_olmo_hybrid import OlmoHybridGatedDeltaNet
from transformers.models.qwen3_5.modeling_qwen3_5 import Qwen3_5GatedDeltaNet
from transformers.models.qwen3_next.modeling_qwen3_next import Qwen3NextGatedDeltaNet

from memcurse_cli import inspect
from memcurse_cli.checkpoints.memory import MemoryStore
from memcurse_cli.families.selective.delta_rule import KDA, GatedDeltaNet, delta_rule
from memcurse_cli.families.selective.mamba2 import Mamba2

HEADS, WIDTH = 4, 16
RANDOM = np.random.default_rng(16)
RATE, BIAS = RANDOM.normal(size=HEADS), RANDOM.normal(size=HEADS) - 3
SEPARATE = {
    "A_log": RATE,
    "dt_bias": BIAS,
    "b_proj.weight": np.zeros((HEADS, WIDTH)),
    "k_proj.weight": np.zeros((HEADS * 3, WIDTH)),
    "v_proj.weight": np.zeros((HEADS * 5, WIDTH)),
}
SHAPE = {
    "vocab_size": 8,
    "hidden_size": WIDTH,
    "num_hidden_layers": 2,
    "linear_key_head_dim": 6,
    "linear_value_head_dim": 6,
    "linear_num_value_heads": HEADS,
    "layer_types": ["linear_attention", "full_attention"],
}

LIBRARIES = {
    "Qwen3-Next": (Qwen3NextGatedDeltaNet, Qwen3NextConfig(**SHAPE, linear_num_key_heads=2), 0.5),
    "Qwen3.5": (Qwen3_5GatedDeltaNet, Qwen3_5TextConfig(**SHAPE, linear_num_key_heads=2), 0.5),
    "OLMo-Hybrid": (
        OlmoHybridGatedDeltaNet,
        OlmoHybridConfig(**SHAPE, linear_num_key_heads=HEADS, pad_token_id=0),
        1.0,
    ),
}


@pytest.mark.parametrize("library", LIBRARIES)
def test_the_state_decays_as_the_library_lets_it(library: str) -> None:
    kind, config, strength = LIBRARIES[library]
    torch.manual_seed(2)
    layer = kind(config, layer_idx=0).double()
    with torch.no_grad():
        layer.A_log.copy_(torch.from_numpy(RATE))
        layer.dt_bias.copy_(torch.from_numpy(BIAS))
    arrays = {f"model.layers.0.linear_attn.{n}": a for n, a in layer.state_dict().items()}
    recurrence = read_layer(arrays, GatedDeltaNet())
    assert recurrence.name == "model.layers.0.linear_attn"
    assert recurrence.multiplicity == 6 * 6
    assert match_of(arrays, Mamba2()) == match_of(arrays, KDA()) == []
    ratio = decay_of_the_state(layer, config, 5)
    expected = np.exp(5 * recurrence.log_eigenvalues.real)
    # The library accumulates in float32.
    assert_allclose(ratio, np.broadcast_to(expected[:, None, None], ratio.shape), rtol=2e-4)
    assert_allclose(np.exp(recurrence.log_gain), strength)


def test_derivatives() -> None:
    check_derivatives(SEPARATE, GatedDeltaNet())


def test_flash_linear_attention() -> None:
    recurrence = read_layer({f"attn.{n}": a for n, a in SEPARATE.items()}, GatedDeltaNet())
    expected = -np.exp(RATE) * np.log1p(np.exp(BIAS))
    assert_allclose(recurrence.log_eigenvalues, expected, rtol=1e-13)
    assert recurrence.multiplicity == 3 * 5
    assert_allclose(np.exp(recurrence.log_gain), 0.5)
    assert recurrence.rank_one == delta_rule(negative=False)
    negative = read_layer(SEPARATE, GatedDeltaNet(), negative_eigenvalues="true")
    assert_allclose(negative.log_gain, 0)
    assert negative.rank_one == delta_rule(negative=True)


@pytest.mark.parametrize(
    ("configured", "width"), [({}, 3), ({"head_dim": 6}, 6), ({"head_dim": 9}, 3)]
)
def test_value_heads_that_share_keys_do_not_halve_them(
    configured: dict[str, int], width: int
) -> None:
    """flash-linear-attention's num_v_heads: k_proj has the rows of half as many, wider heads."""
    recurrence = read_configured(SEPARATE, GatedDeltaNet(), configured)
    assert recurrence.multiplicity == width * 5


def test_the_configuration_gives_the_width_of_the_keys() -> None:
    layer = Qwen3NextGatedDeltaNet(Qwen3NextConfig(**SHAPE, linear_num_key_heads=2), layer_idx=0)
    arrays = {name: tensor.detach().numpy() for name, tensor in layer.state_dict().items()}
    for config in ({"linear_key_head_dim": 4}, {"text_config": {"linear_key_head_dim": 4}}):
        recurrence = read_configured(arrays, GatedDeltaNet(), config)
        assert recurrence.multiplicity == 4 * 6
        assert len(recurrence.assumptions) == 1
    for width in (-4, 0, "4", 10**50, 4.0):
        recurrence = read_configured(arrays, GatedDeltaNet(), {"linear_key_head_dim": width})
        assert recurrence.multiplicity == 6 * 6


@pytest.mark.parametrize("negative", [False, True])
def test_the_range_that_the_delta_rule_is_said_to_reach(negative: bool) -> None:
    bound = delta_rule(negative=negative).lowest
    lowest = 1.0
    for _ in range(500):
        decay = RANDOM.uniform(0, 1, 3) ** 0.2
        key = RANDOM.normal(size=3)
        key /= np.linalg.norm(key)
        strength = (2 if negative else 1) * RANDOM.uniform(0, 1) ** 0.2
        values = np.linalg.eigvals((np.eye(3) - strength * np.outer(key, key)) * decay)
        assert_allclose(values.imag, 0, atol=1e-9)
        smallest, *others = np.sort(values.real)
        assert decay.min() - 1e-12 < min(others)
        assert max(others) < decay.max() + 1e-12
        assert smallest > (-decay.max() if negative else 0) - 1e-12
        lowest = min(lowest, smallest)
    assert bound < lowest < bound + 0.1


@pytest.mark.parametrize(
    "change",
    [
        {"A_log_atk": np.zeros(HEADS)},  # preconditioned
        {"Mu_log": np.zeros(HEADS)},  # with momentum
    ],
)
def test_other_rules_are_not_it(change: dict[str, np.ndarray]) -> None:
    assert match_of(SEPARATE | change, GatedDeltaNet()) == []


@pytest.mark.parametrize("key_heads", [1, 2, 4])
def test_step_and_strength_are_ordered_by_key_heads(key_heads: int, tmp_path: Path) -> None:
    config = Qwen3NextConfig(**SHAPE, linear_num_key_heads=key_heads)
    torch.manual_seed(4)
    layer = Qwen3NextGatedDeltaNet(config, layer_idx=0).double()
    x = torch.randn(1, 10_000, WIDTH, dtype=torch.float64)
    with torch.no_grad():
        layer.A_log.copy_(torch.from_numpy(RATE))
        layer.dt_bias.copy_(torch.from_numpy(BIAS + 2))
        layer.in_proj_ba.weight.normal_()
        layer.in_proj_ba.weight *= torch.linspace(0.1, 0.6, 2 * HEADS)[:, None]
        *_, b, a = layer.fix_query_key_value_ordering(layer.in_proj_qkvz(x), layer.in_proj_ba(x))
        decay = layer.A_log.exp() * torch.nn.functional.softplus(a + layer.dt_bias)
    arrays = {name: tensor.numpy() for name, tensor in layer.state_dict().items()}
    store = MemoryStore(arrays)
    store.config = {"linear_num_key_heads": key_heads}
    drive = drive_of(store, GatedDeltaNet())
    assert drive.write_gate is not None
    assert_allclose(np.sqrt(drive.gate.variance(1.0, 0.0)), a[0].std(0), rtol=0.05)
    assert_allclose(np.sqrt(drive.write_gate.variance(1.0, 0.0)), b[0].std(0), rtol=0.05)
    save_file(
        {f"linear_attn.{n}": t for n, t in layer.state_dict().items()},
        tmp_path / "model.safetensors",
    )
    (tmp_path / "config.json").write_text(config.to_json_string())
    (found,) = inspect(tmp_path, gates=True).layers
    assert found.gates is not None
    check_bands(found.gates, np.exp(-decay[0].numpy()), 0.02)
    without = gates_of(arrays)
    assert without.spread is None
    assert "linear_num_key_heads" in (without.reason or "")
