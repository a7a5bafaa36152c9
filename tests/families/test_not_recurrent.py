"""Attention layers are told from recurrent ones, and from what may be recurrent."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import Qwen4ExpForCausalLM, Qwen4ExpTextConfig

from memcurse_cli import inspect
from memcurse_cli.checkpoints.store import TensorSpec
from memcurse_cli.families.detect import attention_layers
from memcurse_cli.schema.report import NotRecurrent


def specs(*names: str, shape: tuple[int, ...] = (4, 4)) -> dict[str, TensorSpec]:
    return {name: TensorSpec(shape, "float32", 64) for name in names}


def weights(module: str, *parts: str) -> dict[str, TensorSpec]:
    return specs(*(f"{module}.{part}.weight" for part in parts))


@pytest.mark.parametrize(
    "parts",
    [
        ("q_proj", "k_proj", "v_proj", "o_proj"),
        ("q_proj", "k_proj", "v_proj", "o_proj", "q_norm", "k_norm"),
        ("Wqkv", "out_proj"),
        ("qkv_proj", "o_proj"),
        ("query_key_value", "dense"),
        ("query", "key", "value"),
        ("q_proj", "k_proj", "v_proj", "o_proj", "relative_k_proj"),
        ("linear_q", "linear_k", "linear_v", "linear_out", "linear_pos"),
        ("att_proj", "out_proj"),
        ("q_proj", "k_proj", "v_proj", "o_proj", "indexer.index_qk_proj", "indexer.q_layernorm"),
        ("q_proj", "kv_a_proj_with_mqa", "kv_b_proj", "dense", "g_proj"),
        ("q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_a_layernorm", "kv_b_proj", "o_proj"),
    ],
)
def test_attention_by_its_projections(parts: tuple[str, ...]) -> None:
    tensors = weights("layers.3.self_attn", *parts)
    assert attention_layers(tensors, ()) == ("layers.3.self_attn",)


@pytest.mark.parametrize(
    "parts",
    [
        ("q_proj", "k_proj", "v_proj", "o_proj", "gk_proj.0"),  # a decay that may not be known
        ("q_proj", "k_proj", "v_proj", "b_proj", "o_norm"),
        ("q_proj", "k_proj", "v_proj", "q_conv1d"),
        ("qkv_proj", "out_proj", "output_gate", "norm"),
        ("q_proj", "k_proj", "v_proj", "o_proj", "gk_proj.0", "indexer.index_qk_proj"),
        ("q_proj", "k_proj"),
        ("up_proj", "down_proj", "gate_proj"),
    ],
)
def test_what_may_have_a_decay_is_not_called_attention(parts: tuple[str, ...]) -> None:
    assert attention_layers(weights("layers.3.attn", *parts), ()) == ()


def test_what_a_family_read_is_not_attention() -> None:
    retention = weights("layers.0.attn", "q_proj", "k_proj", "v_proj", "o_proj")
    softmax = weights("layers.1.attn", "q_proj", "k_proj", "v_proj", "o_proj")
    claimed = ["layers.0.attn.q_proj.weight"]
    assert attention_layers({**retention, **softmax}, claimed) == ("layers.1.attn",)


def test_the_attention_of_torch_and_flax() -> None:
    module = torch.nn.MultiheadAttention(4, 2)
    names = [f"attn.{name}" for name in module.state_dict()]
    assert attention_layers(specs(*names), ()) == ("attn",)
    flax = specs(*(f"block/attn/{part}/kernel" for part in ("query", "key", "value", "out")))
    assert attention_layers(flax, ()) == ("block/attn",)


def test_the_attention_of_keras() -> None:
    archive = ("query_dense", "key_dense", "value_dense", "output_dense")
    numbered = specs(*(f"block/mha/{part}/vars/{index}" for part in archive for index in (0, 1)))
    assert attention_layers(numbered, ()) == ("block/mha",)
    older = ("query", "key", "value", "attention_output")
    named = specs(*(f"mha/{part}/{kind}" for part in older for kind in ("kernel", "bias")))
    assert attention_layers(named, ()) == ("mha",)


def test_a_gated_mlp_named_as_a_mixer_is_not_attention() -> None:
    projected = {"mixer.in_proj.weight": TensorSpec((4, 4), "float32", 64)}
    out = {"mixer.out_proj.weight": TensorSpec((4, 4), "float32", 64)}
    assert attention_layers({**projected, **out}, ()) == ()
    projected["mixer.in_proj.weight"] = TensorSpec((8, 4), "float32", 128)
    assert attention_layers({**projected, **out}, ()) == ("mixer",)
    assert (
        attention_layers(
            {
                name.replace("mixer", "mlp"): TensorSpec((8, 4), "float32", 128)
                for name in (*projected, *out)
            },
            (),
        )
        == ()
    )


def test_the_hybrid_of_mamba_ssm(zoo: Path) -> None:
    report = inspect(zoo / "mamba_ssm" / "mamba2_attn_hybrid")
    assert report.not_recurrent == (NotRecurrent("attention", 1, ("backbone.layers.1.mixer",)),)
    assert [layer.name for layer in report.layers] == [
        "backbone.layers.0.mixer",
        "backbone.layers.2.mixer",
    ]


@pytest.mark.parametrize(
    ("folder", "count"), [("hf_qwen3_next", 1), ("hf_recurrent_gemma", 1), ("hf_xlstm", 0)]
)
def test_hybrids_of_the_zoo(zoo: Path, folder: str, count: int) -> None:
    report = inspect(zoo / folder / "fp32")
    assert sum(other.count for other in report.not_recurrent) == count


def test_attention_that_an_indexer_thins_out(tmp_path: Path) -> None:
    torch.manual_seed(0)
    config = Qwen4ExpTextConfig(
        vocab_size=16,
        hidden_size=8,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=4,
        linear_key_head_dim=4,
        linear_value_head_dim=4,
        linear_num_key_heads=2,
        linear_num_value_heads=2,
        hc_count=2,
        hc_lowrank=2,
        indexer_n_heads=2,
        indexer_kv_heads=1,
        indexer_head_dim=4,
        indexer_budget=4,
        indexer_compress_ratio=2,
        num_experts=2,
        num_experts_per_tok=1,
        moe_intermediate_size=4,
        shared_expert_intermediate_size=4,
        layer_types=["linear_attention", "indexed_attention"],
    )
    Qwen4ExpForCausalLM(config).save_pretrained(tmp_path)
    report = inspect(tmp_path)
    assert [layer.name for layer in report.layers] == ["model.layers.0.linear_attn"]
    assert report.not_recurrent == (NotRecurrent("attention", 1, ("model.layers.1.self_attn",)),)


def test_linear_attention_is_never_called_attention(zoo: Path) -> None:
    for folder in sorted((zoo / "fla").iterdir()):
        if folder.is_dir():
            assert inspect(folder).not_recurrent == ()


def test_attention_is_told_whatever_family_is_asked_for() -> None:
    rng = np.random.default_rng(0)
    tensors = {f"attn.{name}_proj.weight": rng.normal(size=(4, 4)) for name in "qkv"}
    tensors |= {"rnn.weight_hh_l0": 0.1 * rng.normal(size=(4, 4)), "rnn.weight_ih_l0": np.eye(4)}
    assert [other.count for other in inspect(tensors).not_recurrent] == [1]
    assert inspect(tensors, layers=["rnn*"]).not_recurrent[0].examples == ("attn",)
    assert inspect(tensors, family="dense_rnn").not_recurrent[0].examples == ("attn",)
