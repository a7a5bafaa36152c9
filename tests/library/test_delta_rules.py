"""Gated delta nets and KDA as transformers runs them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from checkpoints.readers import arrays_of
from families.derivatives import match_of, read_layer
from families.simulated_gates import drive_of, gates_of
from library.cached_state import decay_of_the_state
from numpy.testing import assert_allclose
from transformers import (
    BailingHybridConfig,
    KimiLinearConfig,
    OlmoHybridConfig,
    Qwen3_5TextConfig,
    Qwen3NextConfig,
)
from transformers.models.bailing_hybrid.modeling_bailing_hybrid import BailingHybridForgetGate
from transformers.models.kimi_linear.modeling_kimi_linear import KimiLinearDeltaAttention
from transformers.models.olmo_hybrid.modeling_olmo_hybrid import OlmoHybridGatedDeltaNet
from transformers.models.qwen3_5.modeling_qwen3_5 import Qwen3_5GatedDeltaNet
from transformers.models.qwen3_next.modeling_qwen3_next import Qwen3NextGatedDeltaNet

from memcurse_cli.checkpoints.open import MemoryStore
from memcurse_cli.families.selective.delta_rule import KDA, DeltaNet, GatedDeltaNet
from memcurse_cli.families.selective.mamba import Mamba2

HEADS, WIDTH = 4, 16
RANDOM = np.random.default_rng(16)
RATE, BIAS = RANDOM.normal(size=HEADS), RANDOM.normal(size=HEADS) - 3
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


@pytest.mark.parametrize("key_heads", [1, 2, 4])
def test_step_and_strength_are_ordered_by_key_heads(key_heads: int) -> None:
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
    arrays = arrays_of(layer)
    store = MemoryStore(arrays)
    store.config = {"linear_num_key_heads": key_heads}
    drive = drive_of(store, GatedDeltaNet())
    assert_allclose(np.sqrt(drive.gate.variance(1.0, 0.0)), a[0].std(0), rtol=0.05)
    assert_allclose(np.sqrt(drive.write_gate.variance(1.0, 0.0)), b[0].std(0), rtol=0.05)
    without = gates_of(arrays)
    assert without.spread is None
    assert "linear_num_key_heads" in (without.reason or "")


def test_the_state_decays_as_kimi_linear_lets_it() -> None:
    config = KimiLinearConfig(
        vocab_size=8, hidden_size=8, num_hidden_layers=2, pad_token_id=0,
        linear_num_heads=2, linear_head_dim=3,
    )  # fmt: skip
    torch.manual_seed(3)
    layer = KimiLinearDeltaAttention(config, layer_idx=0).double()
    heads = layer.forget_gate.A_log.numel()
    keys = layer.forget_gate.dt_bias.numel() // heads
    with torch.no_grad():
        layer.forget_gate.A_log.copy_(torch.linspace(-1, 1, heads).view(1, 1, heads, 1))
        layer.forget_gate.dt_bias.copy_(torch.linspace(-4, 0, heads * keys))
    # `save_pretrained` writes the gate's tensors as the layer's own, `state_dict` does not.
    nested = dict(layer.state_dict())
    arrays = {n.replace("forget_gate.", ""): a for n, a in nested.items()}
    assert match_of(nested, DeltaNet()) == match_of(arrays, DeltaNet()) == []
    recurrence = read_layer(arrays, KDA())
    in_memory = read_layer(nested, KDA())
    assert_allclose(in_memory.log_eigenvalues, recurrence.log_eigenvalues, rtol=0)
    assert in_memory.multiplicity == recurrence.multiplicity
    ratio = decay_of_the_state(layer, config, 3)
    expected = np.exp(3 * recurrence.log_eigenvalues.real).reshape(heads, keys, 1)
    # The library accumulates in float32.
    assert_allclose(ratio, np.broadcast_to(expected, ratio.shape), rtol=2e-3)


@pytest.mark.parametrize("safe", [True, False])
def test_the_gate_of_bailing(safe: bool) -> None:
    heads, keys, width = 4, 16, 32
    config = BailingHybridConfig(
        vocab_size=8, hidden_size=width, linear_num_heads=heads, linear_head_dim=keys,
        kda_safe_gate=safe, kda_lower_bound=-5.0, pad_token_id=0,
    )  # fmt: skip
    torch.manual_seed(5)
    gate = BailingHybridForgetGate(config).double()
    with torch.no_grad():
        gate.A_log.normal_(0.0, 0.3)
        gate.dt_bias.normal_(-2.0, 0.5)
        gate.f_proj.weight.normal_(0.0, 0.2)
        still = gate(torch.zeros(1, 1, width, dtype=torch.float64)).ravel().numpy()
    arrays = arrays_of(gate) | {
        "b_proj.weight": RANDOM.normal(size=(heads, width)),
        "v_proj.weight": np.zeros((heads * 4, width)),
    }
    recurrence = read_layer(arrays, KDA(), kda_lower_bound="-5" if safe else "0")
    assert_allclose(recurrence.log_eigenvalues.real, still, rtol=1e-6)
    store = MemoryStore(arrays)
    store.config = {"kda_safe_gate": safe, "kda_lower_bound": -5.0}
    drive = drive_of(store, KDA())
    rate = np.repeat(np.exp(2 * arrays["A_log"].ravel()), keys) if safe else 1.0
    expected = rate * (arrays["f_proj.weight"] ** 2).sum(1)
    assert_allclose(drive.gate.inputs, expected, rtol=1e-6)
