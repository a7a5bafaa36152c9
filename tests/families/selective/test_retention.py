"""RetNet in two libraries' names and lightning attention: constant decays."""

from __future__ import annotations

import numpy as np
import pytest
from families.derivatives import match_of, read_layer
from families.selective.layers import LIGHTNING, RETNET, TORCHSCALE, WIDTH

from memcurse_cli import inspect
from memcurse_cli.errors import TensorError
from memcurse_cli.families.selective.linear_attention import (
    LightningAttention,
    RetNet,
    TorchscaleRetNet,
)


def test_nothing_trained_moves_a_head_of_a_retnet() -> None:
    arrays = {f"layers.0.attn.{name}": array for name, array in RETNET.items()}
    arrays["layers.0.attn.g_norm_swish_gate.weight"] = arrays.pop("layers.0.attn.g_norm.weight")
    arrays["layers.0.attn_norm.weight"] = np.ones(WIDTH)
    recurrence = read_layer(arrays, RetNet())
    assert recurrence.name == "layers.0.attn"
    assert recurrence.stable_by_construction
    assert "not stored" in recurrence.assumptions[0]


def test_every_layer_has_the_decays_of_its_decoder() -> None:
    stem, decay = "decoder.layers.0.retention.", "retnet_rel_pos.decay"
    layers = {n.removeprefix(stem): a for n, a in TORCHSCALE.items() if n.startswith(stem)}
    decoders = {f"{of}{decay}": TORCHSCALE[f"decoder.{decay}"] for of in ("", "a.", "m.decoder.")}
    arrays = dict(decoders)
    for decoder, layer in (("", 0), ("a.", 0), ("a.", 1), ("m.decoder.", 0)):
        arrays |= {f"{decoder}layers.{layer}.retention.{n}": a for n, a in layers.items()}
    found = {each.layer: each.tensors[decay] for each in match_of(arrays, TorchscaleRetNet())}
    assert found == {
        "layers.0.retention": decay,
        "a.layers.0.retention": f"a.{decay}",
        "a.layers.1.retention": f"a.{decay}",
        "m.decoder.layers.0.retention": f"m.decoder.{decay}",
    }
    assert {layer.family for layer in inspect(arrays).layers} == {"torchscale_retnet"}
    attention = {name: array for name, array in arrays.items() if name not in decoders}
    assert match_of(attention, TorchscaleRetNet()) == []


def test_a_decay_that_grows_is_refused() -> None:
    with pytest.raises(TensorError, match="positive"):
        read_layer(TORCHSCALE | {"decoder.retnet_rel_pos.decay": np.ones(2)}, TorchscaleRetNet())


def test_a_rate_of_lightning_attention() -> None:
    assert match_of({"slope_rate": np.ones(2)}, LightningAttention()) == []
    growing = LIGHTNING | {"slope_rate": np.array([0.1, -0.1])}
    assert not read_layer(growing, LightningAttention()).stable_by_construction
