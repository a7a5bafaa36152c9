"""Kimi delta attention against transformers' own layers, both gates, and differences."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from families.cached_state import decay_of_the_state
from families.derivatives import check_derivatives, match_of, read_configured, read_layer
from families.simulated_gates import check_bands, drive_of, gates_of
from numpy.testing import assert_allclose
from transformers import BailingHybridConfig, KimiLinearConfig
from transformers.models.bailing_hybrid.modeling_bailing_hybrid import BailingHybridForgetGate
from transformers.models.kimi_linear.modeling_kimi_linear import KimiLinearDeltaAttention

from memcurse_cli.checkpoints.memory import MemoryStore
from memcurse_cli.errors import UsageError
from memcurse_cli.families.selective.delta_rule import KDA, DeltaNet, GatedDeltaNet

HEADS, KEYS, WIDTH = 2, 3, 8
RANDOM = np.random.default_rng(17)
RATE, BIAS = RANDOM.normal(size=HEADS), RANDOM.normal(size=HEADS * KEYS) - 2
ARRAYS = {
    "A_log": RATE.reshape(1, 1, HEADS, 1),
    "dt_bias": BIAS,
    "b_proj.weight": np.zeros((HEADS, WIDTH)),
    "v_proj.weight": np.zeros((HEADS * 4, WIDTH)),
}


@pytest.mark.parametrize("bound", ["0", "-5"])
def test_derivatives(bound: str) -> None:
    check_derivatives(ARRAYS, KDA(), kda_lower_bound=bound)


@pytest.mark.parametrize(
    ("config", "bound"),
    [
        ({"kda_safe_gate": True, "kda_lower_bound": -4.0}, "-4"),
        ({"kda_safe_gate": False, "kda_lower_bound": -4.0}, "0"),
        ({"safe_gate": False, "lower_bound": None}, "0"),
        ({"linear_lower_bound": -5}, "-5"),
        ({"text_config": {"linear_attn_config": {"gate_lower_bound": -5.0}}}, "-5"),
        ({"linear_lower_bound": 5}, "0"),
        ({"linear_lower_bound": "-5"}, "0"),
    ],
)
def test_the_configuration_tells_a_safe_gate(config: dict[str, Any], bound: str) -> None:
    recurrence = read_configured(ARRAYS, KDA(), config)
    expected = read_layer(ARRAYS, KDA(), kda_lower_bound=bound)
    assert_allclose(recurrence.log_eigenvalues, expected.log_eigenvalues, rtol=1e-15)
    given = read_configured(ARRAYS, KDA(), config, kda_lower_bound="-1")
    assert "kda_lower_bound=-1 (as given)" in given.assumptions[0]


@pytest.mark.parametrize("key", ["allow_neg_eigval", "linear_allow_neg_eigval"])
def test_the_configuration_tells_how_strongly_is_written(key: str) -> None:
    recurrence = read_configured(ARRAYS, KDA(), {key: True})
    assert_allclose(recurrence.log_gain, 0)
    assert "negative_eigenvalues=true (from config.json)" in recurrence.assumptions[1]


def test_one_rate_moves_the_channels_of_its_head() -> None:
    recurrence = read_layer({f"self_attn.{n}": a for n, a in ARRAYS.items()}, KDA())
    expected = -np.repeat(np.exp(RATE), KEYS) * np.log1p(np.exp(BIAS))
    assert_allclose(recurrence.log_eigenvalues, expected, rtol=1e-13)
    assert recurrence.multiplicity == 4
    assert recurrence.parameters[0].size == HEADS
    assert recurrence.parameters[0].scalar.tolist() == [0, 0, 0, 1, 1, 1]
    assert match_of(ARRAYS, GatedDeltaNet()) == []


def test_the_state_decays_as_kimi_linear_lets_it() -> None:
    config = KimiLinearConfig(
        vocab_size=8, hidden_size=WIDTH, num_hidden_layers=2, pad_token_id=0,
        linear_num_heads=HEADS, linear_head_dim=KEYS,
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
    config = BailingHybridConfig(
        vocab_size=8, hidden_size=WIDTH, linear_num_heads=HEADS, linear_head_dim=KEYS,
        kda_safe_gate=safe, kda_lower_bound=-5.0, pad_token_id=0,
    )  # fmt: skip
    gate = BailingHybridForgetGate(config).double()
    with torch.no_grad():
        gate.A_log.copy_(torch.from_numpy(RATE))
        gate.dt_bias.copy_(torch.from_numpy(BIAS))
        decay = gate(torch.zeros(1, 1, WIDTH, dtype=torch.float64)).ravel().numpy()
    recurrence = read_layer(ARRAYS, KDA(), kda_lower_bound="-5" if safe else "0")
    assert_allclose(recurrence.log_eigenvalues.real, decay, rtol=1e-6)


@pytest.mark.parametrize("safe", [True, False])
def test_the_bands_are_those_of_the_gate_of_bailing(safe: bool) -> None:
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
        seen = gate(torch.randn(1, 20_000, width, dtype=torch.float64)).exp().numpy()
    arrays = {name: tensor.numpy() for name, tensor in gate.state_dict().items()}
    arrays |= {
        "b_proj.weight": RANDOM.normal(size=(heads, width)),
        "v_proj.weight": np.zeros((heads * 4, width)),
    }
    store = MemoryStore(arrays)
    store.config = {"kda_safe_gate": safe, "kda_lower_bound": -5.0}
    drive_of(store, KDA())
    assume = {"kda_lower_bound": -5 if safe else 0}
    check_bands(gates_of(arrays, assume=assume), seen.reshape(20_000, heads * keys), 0.01)


def test_a_positive_lower_bound_is_refused() -> None:
    with pytest.raises(UsageError, match="5 is not a value of kda_lower_bound"):
        read_layer(ARRAYS, KDA(), kda_lower_bound="5")
