"""RetNet in two libraries' names and lightning attention: constant decays."""

from __future__ import annotations

import numpy as np
import pytest
from families.derivatives import match_of, read_layer
from numpy.testing import assert_allclose

from memcurse_cli import inspect
from memcurse_cli.checkpoints.memory import MemoryStore
from memcurse_cli.errors import TensorError
from memcurse_cli.families.family import ReadOptions
from memcurse_cli.families.selective.retention import LightningAttention, RetNet, TorchscaleRetNet

HEADS, KEYS, VALUES, WIDTH = 3, 2, 4, 6


RETNET = {
    "q_proj.weight": np.zeros((HEADS * KEYS, WIDTH)),
    "k_proj.weight": np.zeros((HEADS * KEYS, WIDTH)),
    "v_proj.weight": np.zeros((HEADS * VALUES, WIDTH)),
    "g_proj.weight": np.zeros((HEADS * VALUES, WIDTH)),
    "o_proj.weight": np.zeros((WIDTH, HEADS * VALUES)),
    "g_norm.weight": np.ones(VALUES),
}


@pytest.mark.parametrize("norm", ["g_norm.weight", "g_norm_swish_gate.weight"])
def test_every_head_has_its_constant_decay(norm: str) -> None:
    arrays = {f"layers.0.attn.{name}": array for name, array in RETNET.items()}
    arrays[f"layers.0.attn.{norm}"] = arrays.pop("layers.0.attn.g_norm.weight")
    arrays["layers.0.attn_norm.weight"] = np.ones(WIDTH)
    recurrence = read_layer(arrays, RetNet())
    assert recurrence.name == "layers.0.attn"
    assert_allclose(np.exp(recurrence.log_eigenvalues), [1 - 1 / 32, 1 - 1 / 64, 1 - 1 / 128])
    assert recurrence.multiplicity == KEYS * VALUES
    assert not recurrence.input_dependent
    assert recurrence.stable_by_construction
    assert "not stored" in recurrence.assumptions[0]


@pytest.mark.parametrize(
    "change",
    [
        {"gk_proj.0.weight": np.zeros((4, WIDTH))},
        {"rotary.inv_freq": np.zeros(1)},
        {"g_norm.weight": np.ones(5)},
        {"g_norm.weight": np.ones((VALUES, 1))},
        {"f.weight": np.zeros((2, 2))},
    ],
)
def test_other_layers_are_not_it(change: dict[str, np.ndarray]) -> None:
    assert match_of(RETNET | change, RetNet()) == []


DECAY = np.log(1 - 2.0 ** (-5 - np.arange(HEADS, dtype=np.float32))).astype(np.float32)


LAYER = {
    "q_proj.weight": np.zeros((HEADS * KEYS, WIDTH)),
    "k_proj.weight": np.zeros((HEADS * KEYS, WIDTH)),
    "v_proj.weight": np.zeros((HEADS * VALUES, WIDTH)),
    "g_proj.weight": np.zeros((HEADS * VALUES, WIDTH)),
    "out_proj.weight": np.zeros((WIDTH, HEADS * VALUES)),
}


def model(prefix: str = "decoder.", layers: int = 2) -> dict[str, np.ndarray]:
    arrays = {f"{prefix}retnet_rel_pos.decay": DECAY, f"{prefix}retnet_rel_pos.angle": np.ones(2)}
    for layer in range(layers):
        for name, array in LAYER.items():
            arrays[f"{prefix}layers.{layer}.retention.{name}"] = array
    return arrays


@pytest.mark.parametrize("prefix", ["", "decoder.", "model.decoder."])
def test_every_layer_has_the_decays_of_its_decoder(prefix: str) -> None:
    report = inspect(model(prefix), values=True)
    assert [layer.name for layer in report.layers] == [
        f"{prefix}layers.{layer}.retention" for layer in range(2)
    ]
    assert {layer.family for layer in report.layers} == {"torchscale_retnet"}
    eigenvalues = report.layers[0].eigenvalues.values
    assert eigenvalues is not None
    assert_allclose([real for real, _ in eigenvalues], 1 - 2.0 ** np.array([-5, -6, -7]), rtol=1e-7)


def test_the_decays_are_read_not_assumed() -> None:
    arrays = model(layers=1) | {"decoder.retnet_rel_pos.decay": np.array([-0.1, -0.01, -np.inf])}
    arrays["decoder.retnet_rel_pos.decay"][2] = -3.0
    (match,) = match_of(arrays, TorchscaleRetNet())
    recurrence = TorchscaleRetNet().read(MemoryStore(arrays), match, ReadOptions())
    assert_allclose(recurrence.log_eigenvalues, [-0.1, -0.01, -3.0])
    assert recurrence.multiplicity == KEYS * VALUES


def test_two_decoders_keep_their_own() -> None:
    arrays = model("a.", 1) | model("b.", 1) | {"b.retnet_rel_pos.decay": DECAY / 2}
    decays = {
        match.layer: match.tensors["retnet_rel_pos.decay"]
        for match in match_of(arrays, TorchscaleRetNet())
    }
    assert decays == {f"{one}.layers.0.retention": f"{one}.retnet_rel_pos.decay" for one in "ab"}


def test_without_a_buffer_it_is_attention() -> None:
    arrays = model()
    del arrays["decoder.retnet_rel_pos.decay"]
    assert match_of(arrays, TorchscaleRetNet()) == []


def test_a_decay_that_grows_is_refused() -> None:
    arrays = model(layers=1) | {"decoder.retnet_rel_pos.decay": -DECAY}
    (match,) = match_of(arrays, TorchscaleRetNet())
    with pytest.raises(TensorError, match="positive"):
        TorchscaleRetNet().read(MemoryStore(arrays), match, ReadOptions())


def test_a_rate_without_the_projection_is_not_it() -> None:
    assert match_of({"slope_rate": np.ones(HEADS)}, LightningAttention()) == []


def test_a_negative_rate_is_not_called_stable() -> None:
    arrays = {"slope_rate": np.array([0.1, -0.1]), "qkv_proj.weight": np.zeros((12, 4))}
    assert not read_layer(arrays, LightningAttention()).stable_by_construction
