"""Weights stored otherwise than their layer multiplies: scales, aliases, adapters, parts."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import safetensors.torch
import torch
from attacks.build import entry
from attacks.build import safetensors as safetensors_bytes
from checkpoints.readers import arrays_of, same
from numpy.testing import assert_allclose, assert_array_equal
from safetensors.torch import save_file
from torch import nn
from torch.nn.utils import parametrizations, parametrize, prune
from torch.nn.utils.parametrizations import weight_norm

from memcurse_cli import inspect
from memcurse_cli.checkpoints.open import MemoryStore, open_checkpoint
from memcurse_cli.errors import CheckpointError

H, INPUTS = 5, 3
NAME = "weight_hh_l0"
WAYS: dict[str, Callable[[nn.Module], object]] = {
    "weight_norm": lambda module: parametrizations.weight_norm(module, NAME),
    "weight_norm by column": lambda module: parametrizations.weight_norm(module, NAME, dim=1),
    "weight_norm as a whole": lambda module: parametrizations.weight_norm(module, NAME, dim=None),
    "old weight_norm": lambda module: nn.utils.weight_norm(module, NAME),
    "old weight_norm by column": lambda module: nn.utils.weight_norm(module, NAME, dim=1),
    "old weight_norm as a whole": lambda module: nn.utils.weight_norm(module, NAME, dim=None),
    "spectral_norm": lambda module: parametrizations.spectral_norm(module, NAME),
    "spectral_norm by column": lambda module: parametrizations.spectral_norm(module, NAME, dim=1),
    "old spectral_norm": lambda module: nn.utils.spectral_norm(module, NAME),
    "pruning": lambda module: prune.random_unstructured(module, NAME, amount=0.4),
}


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("way", WAYS)
def test_the_weight_is_what_torch_makes_of_its_parts(way: str) -> None:
    module = nn.LSTM(INPUTS, H, dtype=torch.float64)
    plain = [f"net.{name}" for name in module.state_dict()]
    WAYS[way](module)
    with torch.no_grad():  # moved, as training would
        for parameter in module.parameters():
            parameter.add_(0.1 * torch.rand_like(parameter))
    store = MemoryStore(arrays_of(module.eval(), "net."))
    module(torch.zeros(1, INPUTS, dtype=torch.float64))  # which makes the weight of its parts
    assert sorted(store.tensors) == sorted(plain)
    name = f"net.{NAME}"
    assert store.tensors[name].shape == (4 * H, H)
    assert_allclose(store.read(name), module.weight_hh_l0.detach().numpy(), rtol=1e-13)
    (note,) = store.notes
    assert name in note
    assert "sensitivities are those of the weight itself" in note


@pytest.mark.parametrize("shape", [(4 * H, H), (H, 4 * H), (H, H)])
@pytest.mark.parametrize("trivial", [True, False])
def test_reflections_are_torch_s(shape: tuple[int, int], trivial: bool) -> None:
    module = nn.Module()
    module.weight = nn.Parameter(nn.init.orthogonal_(torch.empty(*shape).double()))
    parametrizations.orthogonal(module, "weight", "householder", use_trivialization=trivial)
    with torch.no_grad():
        original = module.parametrizations.weight.original
        original.add_(0.2 * torch.randn(*shape).double().tril(-1))
    store = MemoryStore(arrays_of(module, "net."))
    if trivial and shape[0] == shape[1]:  # the orthogonal RNN's own
        assert "net.weight" not in store.tensors
        return
    assert_allclose(store.read("net.weight"), module.weight.detach().numpy(), atol=1e-14)


def test_a_parametrisation_without_a_name_is_refused_when_it_is_read() -> None:
    class Halved(torch.nn.Module):
        def forward(self, weight: torch.Tensor) -> torch.Tensor:
            return weight / 2

    module = torch.nn.LSTM(INPUTS, H)
    parametrize.register_parametrization(module, NAME, Halved())
    store = MemoryStore(arrays_of(module, "net."))
    assert store.tensors[f"net.{NAME}"].shape == (4 * H, H)
    with pytest.raises(CheckpointError, match="remove_parametrizations"):
        store.read(f"net.{NAME}")


@pytest.mark.parametrize(
    ("wrapped", "kept"), [("rnns.0.module.", True), ("rnns.0.", True), ("rnns.0.", False)]
)
def test_weights_before_dropout(wrapped: str, kept: bool) -> None:
    """fastai keeps weight_hh_l0_raw above the module that it wraps, Salesforce in it."""
    random = np.random.default_rng(0)
    raw = random.normal(size=(4 * H, H))
    arrays = {
        f"{wrapped}weight_ih_l0": random.normal(size=(4 * H, INPUTS)),
        f"{wrapped}bias_hh_l0": random.normal(size=4 * H),
        "rnns.0.weight_hh_l0_raw": raw,
    }
    if kept:
        arrays[f"{wrapped}weight_hh_l0"] = 2 * raw * (random.random(size=raw.shape) < 0.5)
    store = MemoryStore(arrays)
    assert_allclose(store.read(f"{wrapped}weight_hh_l0"), raw)
    assert "rnns.0.weight_hh_l0_raw" not in store.tensors
    assert "before dropout" in store.notes[0]


def test_names_that_only_look_like_parts_stay() -> None:
    random = np.random.default_rng(0)
    shapes = {
        "cell.W_g": (H, 1),  # a gate that is called g, beside a value's matrix
        "cell.W_v": (H, INPUTS),
        "conv.weight_g": (2, 2),
        "conv.weight_v": (H, INPUTS),
        "masked_orig": (3, 3),
        "masked_mask": (2, 3),
        "image_raw": (3, 3),
        "parametrizations.both.original": (H, H),
        "parametrizations.both.1.base": (H, H),
    }
    store = MemoryStore({name: random.normal(size=shape) for name, shape in shapes.items()})
    assert set(store.tensors) == set(shapes)
    assert store.notes == ()


def test_a_row_of_zeros_stays_zero_and_a_spectral_norm_of_zero_is_refused() -> None:
    direction = np.array([[3.0, 4.0], [0.0, 0.0]])
    store = MemoryStore({"weight_g": np.array([[10.0], [2.0]]), "weight_v": direction})
    assert_allclose(store.read("weight"), [[6.0, 8.0], [0.0, 0.0]])
    arrays = {"weight_orig": np.ones((2, 3)), "weight_u": np.zeros(2), "weight_v": np.ones(3)}
    with pytest.raises(CheckpointError, match="a spectral norm of zero"):
        MemoryStore(arrays).read("weight")


PARAMETERS = ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0")


class Twice(nn.Module):
    """One LSTM under two names, beside one that has the biases in common with it."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.c = nn.LSTM(3, 4), nn.LSTM(3, 4)
        self.b = self.a
        self.c.bias_ih_l0, self.c.bias_hh_l0 = self.a.bias_ih_l0, self.a.bias_hh_l0
        self.head = nn.Linear(4, 2)


TIED = {
    **{f"b.{name}": f"a.{name}" for name in PARAMETERS},
    **{f"c.{name}": f"a.{name}" for name in PARAMETERS[2:]},
}


def into_file(save: Callable[[nn.Module, Path], object]) -> Callable[[nn.Module, Path], Path]:
    def write(model: nn.Module, folder: Path) -> Path:
        save(model, folder / "model")
        return folder / "model"

    return write


WRITERS = {
    "zip": into_file(lambda model, path: torch.save(model.state_dict(), path)),
    "legacy": into_file(
        lambda model, path: torch.save(
            model.state_dict(), path, _use_new_zipfile_serialization=False
        )
    ),
    "module": into_file(torch.save),
    "pickle": into_file(lambda model, path: path.write_bytes(pickle.dumps(model))),
    "safetensors": into_file(lambda model, path: safetensors.torch.save_model(model, str(path))),
}


@pytest.mark.parametrize("write", WRITERS.values(), ids=WRITERS)
def test_every_name_is_read_and_each_tensor_is_counted_once(
    write: Callable[[nn.Module, Path], Path], tmp_path: Path
) -> None:
    model = Twice()
    with open_checkpoint(write(model, tmp_path)) as store:
        assert dict(store.aliases) == TIED
        expected = model.state_dict()
        assert set(store.stored) == set(expected) - set(TIED)
        same(store, expected)
        assert store.bytes_read == sum(weight.nbytes for weight in model.parameters())


def test_views_of_one_storage_that_differ_are_tensors_of_their_own(tmp_path: Path) -> None:
    whole = torch.arange(16.0).reshape(4, 4)
    views = {
        "whole": whole,
        "transposed": whole.T,
        "rows": whole[:2],
        "other_rows": whole[2:],
        "flat": whole.reshape(16),
        "again": whole[:],
    }
    torch.save(views, tmp_path / "views.pt")
    numbers = torch.tensor([1 + 2j, 3 - 1j])
    assert not MemoryStore({"number": numbers, "conjugate": numbers.conj()}).aliases
    for store in (open_checkpoint(tmp_path / "views.pt"), MemoryStore(views)):
        assert dict(store.aliases) == {"again": "whole"}
        for name, tensor in views.items():
            np.testing.assert_array_equal(store.read(name), tensor.numpy())


@pytest.mark.parametrize("kind", ["zip", "safetensors"])
def test_weights_made_of_shared_parts_are_shared(kind: str, tmp_path: Path) -> None:
    model = nn.ModuleDict({"a": weight_norm(nn.RNN(3, 4), "weight_hh_l0")})
    model["b"] = model["a"]
    with open_checkpoint(WRITERS[kind](model, tmp_path)) as store:
        assert store.aliases["b.weight_hh_l0"] == "a.weight_hh_l0"
        expected = model["a"].weight_hh_l0.detach().double().numpy()
        np.testing.assert_allclose(store.read("b.weight_hh_l0"), expected, rtol=1e-6)


def test_a_tensor_that_is_not_there_is_told_where_its_module_is(tmp_path: Path) -> None:
    tensors = {"b.weight_hh_l0": torch.eye(3)}
    metadata = {"format": "pt", "b.bias_hh_l0": "a.bias_hh_l0", "z.bias": "a.bias"}
    safetensors.torch.save_file(tensors, tmp_path / "a.safetensors", metadata)
    (note,) = open_checkpoint(tmp_path / "a.safetensors").notes
    assert note == (
        "b.bias_hh_l0 should be stored as a.bias_hh_l0, which is not in the file: its layer is "
        "read without"
    )


HEADS, WIDTH = 2, 4


def mixer(wrapped: str) -> dict[str, np.ndarray]:
    """A Mamba-2 mixer of two heads, one group and two states."""
    rows = 2 * WIDTH + 2 * 2 + HEADS
    return {
        "mixer.A_log": np.zeros(HEADS),
        "mixer.D": np.ones(HEADS),
        "mixer.dt_bias": np.array([-1.0, -3.0]),
        "mixer.conv1d.weight": np.ones((WIDTH + 4, 1, 4)),
        f"mixer.in_proj.{wrapped}weight": np.ones((rows, WIDTH)),
    }


def test_a_mixer_with_an_adapter_is_read_as_without() -> None:
    update = {
        "mixer.in_proj.lora_A.default.weight": np.ones((2, WIDTH)),
        "mixer.in_proj.lora_B.default.weight": np.ones((14, 2)),
    }
    alone = inspect(mixer(""), values=True)
    adapted = inspect(mixer("base_layer.") | update, values=True)
    (layer,) = adapted.layers
    assert (layer.name, layer.family) == ("mixer", "mamba2")
    assert layer.eigenvalues == alone.layers[0].eigenvalues
    (note,) = adapted.checkpoint.notes
    assert note.startswith("an adapter's update is not added to mixer.in_proj.weight, since")
    assert alone.checkpoint.notes == ()


H = 6
NO_SCALE = "read without a scale, of which the file has none or none that fits"
SCALED = "multiplied by the scales beside them"


def quantised(*shape: int) -> torch.Tensor:
    return (torch.randn(shape, generator=torch.manual_seed(0)) * 20).to(torch.float8_e4m3fn)


def test_every_number_of_4_bits_is_read_and_those_of_6_are_left_out(tmp_path: Path) -> None:
    packed = torch.arange(256, dtype=torch.uint8).reshape(16, 16)
    scale = torch.full((16, 2), 3.0).to(torch.float8_e8m0fnu)
    tensors = {"w": packed.view(torch.float4_e2m1fn_x2), "w_scale": scale}
    save_file(tensors, tmp_path / "a.safetensors")
    codes = np.stack((packed.numpy() & 15, packed.numpy() >> 4), -1).reshape(16, 32)
    expected = codes.view(ml_dtypes.float4_e2m1fn).astype(float)
    with open_checkpoint(tmp_path / "a.safetensors") as store:
        assert store.tensors["w"].shape == (16, 32)
        assert store.tensors["w"].bytes == 256
        assert_array_equal(store.read("w"), expected * float(scale[0, 0].float()))
        assert store.bytes_read == 256
    header = {"a": entry([4], 0, 3, "F6_E2M3"), "w": entry([1], 3, 7)}
    (tmp_path / "a").write_bytes(safetensors_bytes(header, bytes(7)))
    with open_checkpoint(tmp_path / "a") as store:
        assert list(store.tensors) == ["w"]
        assert store.notes == ("1 tensor of 6-bit numbers (such as a): left out",)


@pytest.mark.parametrize(
    ("scale", "ending", "block"),
    [
        (torch.tensor(0.25), "_scale", (24, 6)),
        (torch.tensor([[0.25]]), "_scale_inv", (24, 6)),
        (torch.rand(24, 1), "_scale", (1, 6)),
        (torch.rand(4, 2), "_scale_inv", (6, 3)),
        (torch.rand(24, 1).to(torch.bfloat16), "_scale", (1, 6)),
        (torch.rand(2, 3), "_scale_inv", (128, 128)),  # of blocks that the edge cuts off
    ],
)
def test_each_kind_of_scale_multiplies(
    tmp_path: Path, scale: Any, ending: str, block: tuple[int, int]
) -> None:
    stored = quantised(200, 300) if block[0] == 128 else quantised(24, 6)
    save_file({"w": stored, f"w{ending}": scale}, tmp_path / "a.safetensors")
    rows, columns = stored.shape
    factor = np.kron(np.atleast_2d(scale.double().numpy()), np.ones(block))[:rows, :columns]
    with open_checkpoint(tmp_path / "a.safetensors") as store:
        assert_allclose(store.read("w"), stored.double().numpy() * factor, rtol=1e-15)
        assert store.notes[0].endswith(SCALED)


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
