"""The error of a state that transformers keeps in 16 bits, against the one that is told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from numpy.testing import assert_allclose
from torch import Tensor
from transformers import AutoModelForCausalLM, DynamicCache

from memcurse_cli import inspect

STEPS, WIDTH = 128, 16
SIZES = {"vocab_size": 8, "hidden_size": WIDTH, "num_hidden_layers": 1}
MODELS: dict[str, tuple[dict[str, Any], int]] = {  # and how many sequences are run
    "MambaConfig": ({"state_size": 8}, 96),
    "Mamba2Config": (
        {"state_size": 8, "num_heads": 8, "head_dim": 4, "n_groups": 1, "chunk_size": 8},
        96,
    ),
    "Qwen3NextConfig": (
        {
            "intermediate_size": 16, "num_attention_heads": 2, "num_key_value_heads": 2,
            "head_dim": 8, "num_experts": 0, "mlp_only_layers": [0],
            "linear_num_key_heads": 4, "linear_num_value_heads": 8, "linear_key_head_dim": 8,
            "linear_value_head_dim": 8, "layer_types": ["linear_attention"],
        },
        48,
    ),
    "RecurrentGemmaConfig": (
        {
            "intermediate_size": 16, "num_attention_heads": 2, "block_types": ["recurrent"],
            "w_init_variance_scale": 1.0,
        },
        512,
    ),
}  # fmt: skip
TYPES = torch.bfloat16, torch.float16


def build(kind: str) -> Any:
    """A tiny model with one recurrent layer, of step sizes between 0.01 and 0.1."""
    torch.manual_seed(0)
    config = getattr(transformers, kind)(**SIZES, **MODELS[kind][0])
    model = AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith(("dt_bias", "dt_proj.bias")):
                step = 10 ** torch.empty_like(parameter).uniform_(-2, -1)
                parameter.copy_(step + torch.log(-torch.expm1(-step)))
            elif "in_proj" in name or "x_proj" in name:
                parameter.normal_(0.0, parameter.shape[-1] ** -0.5)
    return model


@torch.no_grad()
def last_states(model: Any, sequences: int) -> Tensor:
    """(1 + types, sequences, states) after white inputs, unrounded and rounded at every step.

    All of them go through the library's own step at once, as parts of a batch.
    """
    copies = 1 + len(TYPES)
    torch.manual_seed(1)
    inputs = torch.randn(sequences, STEPS, WIDTH).repeat(copies, 1, 1)
    cache: Any = DynamicCache(config=model.config)
    kinds = ("linear_attention", "full_attention", "sliding_attention")
    for t in range(STEPS):
        extra: dict[str, Any] = {"cache_params": cache}
        if "mamba" not in model.config.model_type:
            position = torch.full((len(inputs), 1), t)
            extra = {"past_key_values": cache, "position_ids": position}
            extra["attention_mask"] = dict.fromkeys(kinds)
        model.base_model(inputs_embeds=inputs[:, t, None], use_cache=True, **extra)
        if model.config.model_type == "recurrent_gemma":
            state = model.model.layers[0].temporal_block.rg_lru.recurrent_states
        else:
            state = cache.get_recurrent_state(0, state_idx=0)
        states = state.view(copies, sequences, -1)
        for copy, dtype in zip(states[1:], TYPES, strict=True):
            copy.copy_(copy.to(dtype))
    return states.double()


@pytest.mark.parametrize("kind", MODELS)
def test_a_state_of_16_bits_is_as_far_off_as_told(kind: str, tmp_path: Path) -> None:
    model = build(kind)
    model.save_pretrained(tmp_path)
    (layer,) = inspect(tmp_path, horizon=STEPS, values=True, gates=True).layers
    sequences = MODELS[kind][1]
    states = last_states(model, sequences).view(1 + len(TYPES), sequences, -1)
    by_eigenvalue = states.view(*states.shape[:2], layer.eigenvalues.count, -1)
    held = by_eigenvalue[0].square().mean((0, 2))
    assert layer.gates is not None
    for copy, dtype in zip(by_eigenvalue[1:], TYPES, strict=True):
        seen = ((copy - by_eigenvalue[0]).square().mean((0, 2)) / held).sqrt().numpy()
        (told,) = (one for one in layer.gates.storage if f"torch.{one.dtype}" == str(dtype))
        assert told.errors is not None
        assert_allclose(np.median(np.array(told.errors) / seen), 1.0, atol=0.2)
        # Not one figure for all: heads that remember longer lose more.
        assert np.corrcoef(np.log(told.errors), np.log(seen))[0, 1] > 0.8
