"""RWKV, the RG-LRU, the mLSTM and lightning attention as transformers runs them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from families.derivatives import match_of, read_layer
from families.selective.layers import MLSTM_FUSED, MLSTM_LARGE, RG_LRU
from families.simulated_gates import drive_of
from numpy.testing import assert_allclose
from transformers import MiniMaxConfig, RecurrentGemmaConfig, RwkvConfig, RwkvModel, xLSTMConfig
from transformers.models.minimax.modeling_minimax import MiniMaxCache, MiniMaxLightningAttention
from transformers.models.recurrent_gemma.modeling_recurrent_gemma import RecurrentGemmaRglru
from transformers.models.rwkv.modeling_rwkv import rwkv_linear_attention_cpu
from transformers.models.xlstm.modeling_xlstm import xLSTMLayer

from memcurse_cli.checkpoints.open import MemoryStore
from memcurse_cli.errors import TensorError
from memcurse_cli.families.selective.linear_attention import LightningAttention
from memcurse_cli.families.selective.mixing import RGLRU
from memcurse_cli.families.selective.rwkv import RWKV
from memcurse_cli.families.selective.xlstm import MLSTM

WIDTH = 6


def test_the_state_of_rwkv() -> None:
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


def test_the_state_and_the_gates_of_the_rg_lru() -> None:
    config = RecurrentGemmaConfig(
        vocab_size=8, hidden_size=WIDTH, lru_width=WIDTH, num_attention_heads=2
    )
    layer = RecurrentGemmaRglru(config).double()
    torch.manual_seed(0)
    with torch.no_grad():
        for name, parameter in layer.named_parameters():
            parameter.normal_()
            if name in RG_LRU and not name.endswith("weight"):
                parameter.copy_(torch.from_numpy(RG_LRU[name]))
    arrays = {f"rg_lru.{name}": tensor.numpy() for name, tensor in layer.state_dict().items()}
    drive = drive_of(MemoryStore(arrays), RGLRU())
    for gate, of in ((drive.gate, "recurrent"), (drive.write_gate, "input")):
        weights = arrays[f"rg_lru.{of}_gate_weight"]
        assert_allclose(gate.inputs, (weights**2).sum(1).ravel(), rtol=1e-12)
    for of in ("recurrent", "input"):
        layer.get_parameter(f"{of}_gate_weight").data.zero_()
    recurrence = read_layer(dict(layer.state_dict(prefix="rg_lru.")), RGLRU())
    impulse = torch.zeros(1, 9, WIDTH, dtype=torch.float64)
    impulse[0, 0] = 1.0
    with torch.no_grad():
        states = layer(impulse, torch.arange(1, 10)[None])[0].numpy()
    expected = np.exp(
        np.outer(np.arange(9), recurrence.log_eigenvalues.real) + recurrence.log_gain.real
    )
    # The library accumulates in float32.
    assert_allclose(states, expected, rtol=3e-6)
    assert recurrence.name == "rg_lru"
    assert recurrence.input_dependent


@pytest.mark.parametrize("weight_mode", ["single", "fused"])
def test_the_state_of_the_mlstm(weight_mode: str) -> None:
    torch.manual_seed(1)
    config = xLSTMConfig(
        vocab_size=8, hidden_size=8, num_heads=2, num_hidden_layers=1, mode="inference",
        qk_dim_factor=0.5, weight_mode=weight_mode, chunk_size=16,
    )  # fmt: skip
    layer = xLSTMLayer(config).double()
    arrays = MLSTM_LARGE if weight_mode == "single" else MLSTM_FUSED
    with torch.no_grad():
        for name, parameter in layer.named_parameters():
            if name in arrays and name.endswith("bias"):
                parameter.copy_(torch.from_numpy(arrays[name]))
    (match,) = match_of(layer.state_dict(), MLSTM())
    recurrence = read_layer(layer.state_dict(), MLSTM())
    assert match.layer == "mlstm"
    assert recurrence.multiplicity == 2 * 4  # keys × values of a head
    kicked = torch.ones(1, 2, 2, 4)
    state = (kicked, torch.zeros(1, 2, 2), torch.zeros(1, 2, 1))
    with torch.no_grad():
        _, (cell, _, log_scale) = layer(torch.zeros(1, 5, 8, dtype=torch.float64), state)
    real = cell[0, :, 0, 0].double().numpy() * np.exp(log_scale.double().numpy()).reshape(2)
    # The library keeps its state in float32.
    assert_allclose(real, np.exp(5 * recurrence.log_eigenvalues.real), rtol=1e-5)
    gates = layer.fgate_preact if weight_mode == "single" else layer.ifgate_preact
    squares = (gates.weight.detach().numpy()[-2:] ** 2).sum(1)
    drive = drive_of(MemoryStore(dict(layer.state_dict())), MLSTM())
    assert_allclose(drive.gate.inputs, squares, rtol=1e-6)


@pytest.mark.parametrize("number", range(3))
def test_the_state_of_lightning_attention(number: int) -> None:
    config = MiniMaxConfig(
        vocab_size=8, hidden_size=16, num_hidden_layers=3, num_attention_heads=4,
        head_dim=3, block_size=16, layer_types=["linear_attention"] * 3,
    )  # fmt: skip
    torch.manual_seed(4)
    layer = MiniMaxLightningAttention(config, layer_idx=number).double()
    prefix = f"model.layers.{number}.self_attn."
    stored = {f"{prefix}{n}": a.numpy() for n, a in layer.state_dict().items()}
    recurrence = read_layer(stored, LightningAttention())
    states = []
    for length in (1, 6):
        impulse = torch.zeros(1, length, 16, dtype=torch.float64)
        impulse[0, 0] = torch.linspace(-1, 1, 16)
        cache = MiniMaxCache()
        with torch.no_grad():
            layer(impulse, None, None, cache)
        states.append(cache.get_linear_cache(number)[0].numpy())
    ratio = states[1] / states[0]
    expected = np.exp(5 * recurrence.log_eigenvalues.real)
    assert_allclose(ratio, np.broadcast_to(expected[:, None, None], ratio.shape), rtol=1e-5)
    assert recurrence.multiplicity == 3 * 3
    assert recurrence.stable_by_construction
    assert recurrence.parameters == ()
    # A rate that is not stored is the library's, whose buffer is in single precision.
    weights = {name: array for name, array in stored.items() if name.endswith(".weight")}
    sizes = {"num_attention_heads": 4, "num_hidden_layers": 3}
    computed = read_layer(weights, LightningAttention(), config=sizes)
    assert_allclose(computed.log_eigenvalues, recurrence.log_eigenvalues, rtol=2e-6)
    assert computed.multiplicity == recurrence.multiplicity
    for short in ({}, sizes | {"num_hidden_layers": number}, sizes | {"num_attention_heads": 0}):
        with pytest.raises(TensorError, match="slope_rate beside it is not stored"):
            read_layer(weights, LightningAttention(), config=short)
