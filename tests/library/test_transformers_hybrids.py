"""Every model of transformers with Mamba layers: written by the library, read, and run by it."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from library.cached_state import states_after_an_impulse
from numpy.testing import assert_allclose
from transformers import AutoModelForCausalLM

from memcurse_cli import inspect

STATE, HEADS, HEAD_DIMENSION, GROUPS = 3, 4, 4, 2
SIZES = {"vocab_size": 16, "hidden_size": 8}
ATTENTION = SIZES | {"intermediate_size": 16, "num_attention_heads": 2, "num_key_value_heads": 2}
EXPERTS = {"num_experts_per_tok": 1}
SSD = {"mamba_d_state": STATE, "mamba_n_heads": HEADS, "mamba_n_groups": GROUPS}
STEPS = 3


@dataclass(frozen=True)
class Architecture:
    """A model of transformers with recurrent layers."""

    config: str
    family: str
    recurrent: tuple[int, ...]  # the numbers of the layers that have a mixer
    sizes: dict[str, Any] = field(hash=False)
    inside: str = "mamba"  # the mixer's module within its layer
    attention: int = 0  # blocks of attention that are stored; Zamba's layers share theirs


def layers(count: int, **others: Any) -> dict[str, Any]:
    """A number of layers, and other arguments of a configuration."""
    return {"num_hidden_layers": count, **others}


MAMBA = SIZES | layers(2, state_size=STATE, time_step_rank=2)
SHARED = layers(4, layers_block_type=["mamba", "hybrid"] * 2, mamba_d_state=STATE)
ARCHITECTURES = (
    Architecture("MambaConfig", "mamba", (0, 1), MAMBA, "mixer"),
    Architecture("FalconMambaConfig", "mamba", (0, 1), MAMBA, "mixer"),
    Architecture(
        "JambaConfig",
        "mamba",
        (0, 2),
        {**ATTENTION, **EXPERTS, "mamba_d_state": STATE, "mamba_dt_rank": 2}
        | layers(3, attn_layer_period=3, attn_layer_offset=1, num_experts=2),
        attention=1,
    ),
    Architecture(
        "ZambaConfig",
        "mamba",
        (0, 1, 2, 3),
        {**ATTENTION, **SHARED, "mamba_dt_rank": 2, "n_mamba_heads": 2}
        | {"attention_hidden_size": 16, "attention_head_dim": 8},
        attention=1,
    ),
    Architecture(
        "Mamba2Config",
        "mamba2",
        (0, 1),
        SIZES
        | layers(2, state_size=STATE, num_heads=HEADS, head_dim=HEAD_DIMENSION, n_groups=GROUPS),
        "mixer",
    ),
    Architecture(
        "Zamba2Config",
        "mamba2",
        (0, 1, 2, 3),
        {**ATTENTION, **SHARED, "n_mamba_heads": HEADS, "mamba_ngroups": GROUPS}
        | {"num_mem_blocks": 1},
        attention=1,
    ),
    Architecture(
        "BambaConfig",
        "mamba2",
        (0, 2),
        {**ATTENTION, **SSD, "attn_layer_indices": [1]}
        | layers(3, mamba_d_head=HEAD_DIMENSION, mamba_proj_bias=True),
        attention=1,
    ),
    Architecture(
        "FalconH1Config",
        "mamba2",
        (0, 1),
        {**ATTENTION, **SSD, "mamba_d_ssm": HEADS * HEAD_DIMENSION, "head_dim": 4}
        | layers(2, mamba_d_head=HEAD_DIMENSION, mamba_proj_bias=True)
        | {"ssm_multipliers": [1.0, 1.0, 1.0, 1.0, 0.3]},
        attention=2,
    ),
    Architecture(
        "NemotronHConfig",
        "mamba2",
        (0, 2),
        {**ATTENTION, **EXPERTS, "layers_block_type": ["mamba", "attention", "mamba", "moe"]}
        | {"head_dim": 4, "ssm_state_size": STATE, "mamba_num_heads": HEADS, "n_groups": GROUPS}
        | {"mamba_head_dim": HEAD_DIMENSION, "n_routed_experts": 2, "moe_intermediate_size": 4}
        | {"moe_shared_expert_intermediate_size": 4},
        "mixer",
        attention=1,
    ),
    Architecture(
        "GraniteMoeHybridConfig",
        "mamba2",
        (0, 2),
        {**ATTENTION, **EXPERTS, **SSD, "layer_types": ["mamba", "attention", "mamba"]}
        | layers(3, mamba_d_head=HEAD_DIMENSION, num_local_experts=2, shared_intermediate_size=8),
        attention=1,
    ),
)


def awakened(architecture: Architecture) -> torch.nn.Module:
    """A tiny model with rates and step sizes away from where they start."""
    torch.manual_seed(0)
    config = getattr(transformers, architecture.config)(**architecture.sizes)
    model = AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("A_log"):
                parameter += 0.3 * torch.randn_like(parameter)
            elif name.endswith(("dt_bias", "dt_proj.bias", "dt_proj_bias")):
                parameter.uniform_(-4, 1)
            elif name.endswith("conv1d.bias"):
                parameter.zero_()  # so that a zero token leaves Δ at its own bias
            elif name.endswith("in_proj.bias"):
                parameter.zero_()
                parameter[-HEADS:] = torch.randn(HEADS)
    return model


def test_no_model_of_the_library_is_left_out() -> None:
    models = Path(transformers.models.__file__).parent
    with_mixers = {
        source.parent.name
        for source in models.glob("*/modeling_*.py")
        if {"A_log", "ssm_state_size"} <= set(re.findall(r"\w+", source.read_text()))
    }
    listed = (getattr(transformers, each.config).model_type for each in ARCHITECTURES)
    assert with_mixers == set(listed)


@pytest.mark.parametrize("architecture", ARCHITECTURES, ids=lambda each: each.config)
def test_every_mixer_is_found_and_its_state_decays_as_reported(
    architecture: Architecture, tmp_path: Path
) -> None:
    model = awakened(architecture)
    model.save_pretrained(tmp_path)
    report = inspect(tmp_path, values=True)
    assert not report.skipped
    counts = [other.count for other in report.not_recurrent]
    assert counts == ([architecture.attention] if architecture.attention else [])
    ssd = architecture.family == "mamba2"
    numbers = []
    for layer in report.layers:
        assert layer.family == architecture.family
        assert layer.name.split(".")[-1] == architecture.inside
        assert all(tensor.startswith(f"{layer.name}.") for tensor in layer.tensors)
        assert not any("beside it" in each for each in layer.assumptions)
        assert layer.eigenvalues.multiplicity == (HEAD_DIMENSION * STATE if ssd else 1)
        groups = [sentence for sentence in layer.assumptions if sentence.startswith("groups=")]
        assert [f"groups={GROUPS} (from config.json)" in each for each in groups] == [True] * ssd
        (number,) = re.findall(r"\.layers\.(\d+)\.", layer.name)
        numbers.append(int(number))
        (mixer,) = (
            module
            for name, module in model.named_modules()
            if hasattr(module, "A_log") and f".layers.{number}." in f".{name}."
        )
        earlier, later = states_after_an_impulse(mixer.double(), model.config, STEPS)
        decay = np.array(layer.eigenvalues.values)[:, 0] ** STEPS
        # One λ per state of Mamba, in the state's order; one per head of Mamba-2.
        decay = decay.reshape((HEADS, 1, 1) if ssd else earlier.shape)
        # The library's scan is in single precision.
        assert_allclose(later, decay * earlier, rtol=0, atol=1e-6 * np.abs(earlier).max())
    assert tuple(sorted(numbers)) == architecture.recurrent
