"""Weights of 8 and 4 bits in safetensors, with their scales, up to the report."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal
from safetensors.torch import save_file

from memcurse_cli.checkpoints.open import open_checkpoint
from memcurse_cli.diagnosis.inspection import inspect

H = 6
TYPES = {
    "float8_e4m3fn": torch.float8_e4m3fn,
    "float8_e5m2": torch.float8_e5m2,
    "float8_e4m3fnuz": torch.float8_e4m3fnuz,
    "float8_e5m2fnuz": torch.float8_e5m2fnuz,
}
NO_SCALE = "read without a scale, of which the file has none or none that fits"
SCALED = "multiplied by the scales beside them"


def quantised(*shape: int, kind: torch.dtype = torch.float8_e4m3fn) -> torch.Tensor:
    return (torch.randn(shape, generator=torch.manual_seed(0)) * 20).to(kind)


@pytest.mark.parametrize("name", TYPES)
def test_types_of_8_bits(tmp_path: Path, name: str) -> None:
    stored = quantised(H, 4, kind=TYPES[name])
    save_file({"w": stored}, tmp_path / "a.safetensors")
    with open_checkpoint(tmp_path / "a.safetensors") as store:
        assert store.tensors["w"].dtype == name
        assert_array_equal(store.read("w"), stored.double().numpy())
        assert store.notes == (f"1 tensor of 8 bits or fewer (such as w): {NO_SCALE}",)


def test_every_number_of_4_bits(tmp_path: Path) -> None:
    packed = torch.arange(256, dtype=torch.uint8).reshape(16, 16)
    scale = torch.full((16, 2), 3.0).to(torch.float8_e8m0fnu)
    tensors = {"w": packed.view(torch.float4_e2m1fn_x2), "w_scale": scale}
    save_file(tensors, tmp_path / "a.safetensors")
    import ml_dtypes

    codes = np.stack((packed.numpy() & 15, packed.numpy() >> 4), -1).reshape(16, 32)
    expected = codes.view(ml_dtypes.float4_e2m1fn).astype(float)
    with open_checkpoint(tmp_path / "a.safetensors") as store:
        assert store.tensors["w"].shape == (16, 32)
        assert store.tensors["w"].bytes == 256
        assert_array_equal(store.read("w"), expected * float(scale[0, 0].float()))
        assert store.bytes_read == 256


def test_a_scale_that_overflows_is_no_warning(tmp_path: Path) -> None:
    tensors = {"w": torch.zeros(H, H).to(torch.float8_e4m3fn), "w_scale": torch.tensor(torch.inf)}
    save_file(tensors, tmp_path / "a.safetensors")
    with open_checkpoint(tmp_path / "a.safetensors") as store:
        assert np.isnan(store.read("w")).all()


@pytest.mark.parametrize(
    ("scale", "ending"),
    [
        (torch.tensor(0.25), "_scale"),
        (torch.tensor([0.25]), "_scale_inv"),
        (torch.rand(4 * H, 1), "_scale"),
        (torch.rand(4 * H), "_scale"),
        (torch.rand(4, 2), "_scale_inv"),
        (torch.rand(4 * H, 1).to(torch.bfloat16), "_scale"),
    ],
)
def test_each_kind_of_scale_multiplies(tmp_path: Path, scale: Any, ending: str) -> None:
    stored = quantised(4 * H, H)
    save_file({"w": stored, f"w{ending}": scale}, tmp_path / "a.safetensors")
    factor = scale.double().numpy()
    if factor.shape == (4 * H,):
        factor = factor[:, None]
    if factor.shape == (4, 2):
        factor = np.kron(factor, np.ones((H, H // 2)))
    with open_checkpoint(tmp_path / "a.safetensors") as store:
        assert_allclose(store.read("w"), stored.double().numpy() * factor, rtol=1e-15)
        assert store.notes[0].endswith(SCALED)


def test_blocks_of_128_may_be_cut_off_at_the_edge(tmp_path: Path) -> None:
    stored, scale = quantised(200, 300), torch.rand(2, 3)
    save_file({"m.weight": stored, "m.weight_scale_inv": scale}, tmp_path / "a.safetensors")
    factor = np.kron(scale.double().numpy(), np.ones((128, 128)))[:200, :300]
    with open_checkpoint(tmp_path / "a.safetensors") as store:
        assert_allclose(store.read("m.weight"), stored.double().numpy() * factor, rtol=1e-15)


@pytest.mark.parametrize(
    "scales",
    [
        {"w_scale": torch.rand(H)},  # of rows or of columns?
        {"w_scale": torch.rand(4)},
        {"w_scale": torch.rand(1, 4)},
        {"w_scale": torch.tensor(2.0), "w_scale_inv": torch.tensor(0.5)},
        {"w_scale": torch.rand(0, 1)},
        {"w_scale": torch.rand(2, 2, 2)},
    ],
)
def test_a_scale_that_is_not_clear_is_not_used(tmp_path: Path, scales: dict[str, Any]) -> None:
    stored = quantised(H, H)
    save_file({"w": stored, **scales}, tmp_path / "a.safetensors")
    with open_checkpoint(tmp_path / "a.safetensors") as store:
        assert_array_equal(store.read("w"), stored.double().numpy())
        assert NO_SCALE in store.notes[0]


def test_an_elman_layer_of_8_bits_has_the_eigenvalues_of_its_scaled_matrix(tmp_path: Path) -> None:
    matrix = torch.randn(H, H, generator=torch.manual_seed(1)) / 4
    scale = matrix.abs().amax(1, keepdim=True) / 448
    stored = (matrix / scale).to(torch.float8_e4m3fn)
    tensors = {
        "rnn.weight_hh_l0": stored,
        "rnn.weight_hh_l0_scale": scale,
        "rnn.weight_ih_l0": torch.ones(H, 2),
        "rnn.bias_hh_l0": torch.zeros(H),
        "rnn.bias_ih_l0": torch.zeros(H),
    }
    save_file(tensors, tmp_path / "a.safetensors")
    report = inspect(tmp_path / "a.safetensors", values=True)
    (layer,) = report.layers
    expected = np.linalg.eigvals(stored.double().numpy() * scale.double().numpy())
    assert layer.eigenvalues.values is not None
    ours = np.abs([complex(*value) for value in layer.eigenvalues.values])
    assert_allclose(np.sort(ours), np.sort(np.abs(expected)), rtol=1e-12)
    assert report.checkpoint.notes[0].endswith(SCALED)


def test_the_gates_of_an_lstm_of_8_bits_are_those_of_its_scaled_biases(tmp_path: Path) -> None:
    module = torch.nn.LSTM(3, H)
    tensors = {name: value.detach() for name, value in module.state_dict().items()}
    scaled = tensors | {
        "bias_hh_l0": (tensors["bias_hh_l0"] * 64).to(torch.float8_e5m2),
        "bias_hh_l0_scale": torch.tensor(1 / 64),
    }
    plain = tensors | {"bias_hh_l0": scaled["bias_hh_l0"].float() / 64}
    save_file(scaled, tmp_path / "a.safetensors")
    save_file(plain, tmp_path / "b.safetensors")
    ours, theirs = (inspect(tmp_path / f"{n}.safetensors", values=True) for n in "ab")
    assert ours.layers[0].eigenvalues == theirs.layers[0].eigenvalues


def test_tensors_of_6_bits_are_left_out(tmp_path: Path) -> None:
    import json

    entries = {
        "a": {"dtype": "F6_E2M3", "shape": [4], "data_offsets": [0, 3]},
        "w": {"dtype": "F32", "shape": [1], "data_offsets": [3, 7]},
    }
    text = json.dumps(entries).encode()
    (tmp_path / "a").write_bytes(len(text).to_bytes(8, "little") + text + bytes(7))
    with open_checkpoint(tmp_path / "a") as store:
        assert list(store.tensors) == ["w"]
        assert store.notes == ("1 tensor of 6-bit numbers (such as a): left out",)
