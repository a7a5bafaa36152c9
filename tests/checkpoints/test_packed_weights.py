"""Quantised modules of torch, against the weights that the modules themselves unpack."""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.testing import assert_array_equal
from torch.ao.quantization import quantize_dynamic

from memcurse_cli.checkpoints.memory import MemoryStore, lazy
from memcurse_cli.checkpoints.open import open_checkpoint
from memcurse_cli.checkpoints.store import TensorStore
from memcurse_cli.checkpoints.torch.pickle_machine import Global
from memcurse_cli.checkpoints.torch.pickled_tensors import dequantised
from memcurse_cli.errors import CheckpointError
from memcurse_cli.families.detect import detect
from memcurse_cli.families.family import ReadOptions

H, INPUTS = 4, 3
ROW = lazy(np.ones(2))
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")


class Network(torch.nn.Module):
    """Recurrent layers and a linear."""

    def __init__(self, rnn: torch.nn.RNNBase) -> None:
        super().__init__()
        self.rnn = rnn
        self.out = torch.nn.Linear(H * (1 + rnn.bidirectional), 2)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        shown: torch.Tensor = self.out(self.rnn(inputs)[0])
        return shown


def quantised(module: torch.nn.Module, dtype: torch.dtype = torch.qint8) -> torch.nn.Module:
    kinds = {type(part) for part in (module, *module.children())} - {Network}
    return quantize_dynamic(module, kinds, dtype=dtype)


def number(tensor: torch.Tensor) -> np.ndarray:
    """A tensor in double precision; torch dequantises in single."""
    if tensor.is_quantized:
        return np.asarray((tensor.int_repr().double() - tensor.q_zero_point()) * tensor.q_scale())
    return tensor.double().detach().numpy()


def unpacked(module: torch.nn.Module) -> dict[str, np.ndarray]:
    """What a quantised network's own _weight_bias gives."""
    kinds = module._weight_bias()
    return {name: number(tensor) for held in kinds.values() for name, tensor in held.items()}


def save(module: torch.nn.Module, how: str, path: Path) -> Path:
    if how == "state_dict":
        torch.save(module.state_dict(), path)
    elif how == "module":
        torch.save(module, path)
    else:
        torch.jit.save(torch.jit.script(module), path)
    return path


def layers(store: TensorStore) -> dict[str, np.ndarray]:
    return {
        match.layer: np.exp(family.read(store, match, ReadOptions()).log_eigenvalues.real)
        for family, match in detect(store.tensors)
    }


@pytest.mark.parametrize("how", ["state_dict", "module", "script"])
@pytest.mark.parametrize("dtype", [torch.qint8, torch.float16])
@pytest.mark.parametrize("kind", [torch.nn.LSTM, torch.nn.GRU])
@pytest.mark.parametrize(("depth", "both"), [(1, False), (1, True), (2, False), (2, True)])
def test_a_network_has_the_names_and_numbers_of_before(
    tmp_path: Path,
    how: str,
    dtype: torch.dtype,
    kind: type[torch.nn.RNNBase],
    depth: int,
    both: bool,
) -> None:
    torch.manual_seed(0)
    plain = Network(kind(INPUTS, H, depth, bidirectional=both))
    module = quantised(plain, dtype)
    expected = {f"rnn.{name}": array for name, array in unpacked(module.rnn).items()}
    with open_checkpoint(save(module, how, tmp_path / "model.pt")) as store:
        for name, array in expected.items():
            assert_array_equal(store.read(name), array, err_msg=name)
        for name, tensor in plain.state_dict().items():
            scale = 1e-2 if "weight" in name else 1e-6
            np.testing.assert_allclose(store.read(name), tensor.numpy(), atol=scale)
        assert any("quantised" in note for note in store.notes) == (dtype == torch.qint8)
        found = layers(store)
    before = layers(MemoryStore(plain.state_dict()))
    assert found.keys() == before.keys()
    for name, eigenvalues in found.items():
        np.testing.assert_allclose(eigenvalues, before[name], rtol=1e-6)


@pytest.mark.parametrize("how", ["state_dict", "module"])
@pytest.mark.parametrize("kind", [torch.nn.LSTMCell, torch.nn.GRUCell, torch.nn.RNNCell])
def test_a_cell(tmp_path: Path, how: str, kind: type[torch.nn.RNNCellBase]) -> None:
    torch.manual_seed(0)
    plain = torch.nn.Sequential()
    plain.add_module("cell", kind(INPUTS, H))
    module = quantised(plain)
    with open_checkpoint(save(module, how, tmp_path / "model.pt")) as store:
        cell = module.cell
        for side in ("ih", "hh"):
            weight, bias = getattr(cell, f"_packed_weight_{side}").unpack()
            assert_array_equal(store.read(f"cell.weight_{side}"), number(weight))
            assert_array_equal(store.read(f"cell.bias_{side}"), number(bias))
        assert set(layers(store)) == {"cell"}


def test_one_scale_for_each_row(tmp_path: Path) -> None:
    torch.manual_seed(0)
    scales = torch.tensor([0.1, 0.2, 0.5], dtype=torch.double)
    zeros = torch.tensor([0, 3, -2])
    tensor = torch.quantize_per_channel(torch.randn(2, 3, 4), scales, zeros, 1, torch.qint8)
    torch.save({"weight": tensor}, tmp_path / "rows.pt")
    with open_checkpoint(tmp_path / "rows.pt") as store:
        expected = (tensor.int_repr().double() - zeros[:, None]) * scales[:, None]
        np.testing.assert_allclose(store.read("weight"), expected.numpy(), rtol=1e-15)
        assert store.tensors["weight"].dtype == "int8"


@pytest.mark.parametrize(
    "quantiser",
    [
        None,
        (),
        (Global("torch", "per_channel_affine_float_qparams"), ROW, ROW, 0),
        (Global("torch", "per_tensor_affine"), float("inf"), 0),
        (Global("torch", "per_tensor_affine"), 0.5, 0.5),
        (Global("torch", "per_tensor_affine"), 0.5),
        (Global("torch", "per_channel_affine"), ROW, ROW, 1),
        (Global("torch", "per_channel_affine"), ROW, ROW, -2),
        (Global("torch", "per_channel_affine"), ROW, 0.5, 0),
    ],
)
def test_another_scheme_is_not_guessed(quantiser: object) -> None:
    with pytest.raises(CheckpointError, match="quantised in another way"):
        dequantised(lazy(np.ones((2, 3), np.int8)), quantiser).load()


def test_a_tensor_quantised_in_another_way_is_refused_when_it_is_read(tmp_path: Path) -> None:
    scales, zeros = torch.tensor([0.1, 0.2]), torch.zeros(2)
    tensor = torch.quantize_per_channel(torch.randn(2, 3), scales, zeros, 0, torch.quint8)
    torch.save({"weight": tensor}, tmp_path / "rows.pt")
    content = (tmp_path / "rows.pt").read_bytes()
    assert content.count(b"per_channel_affine") == 1
    other = tmp_path / "other.pt"
    with zipfile.ZipFile(tmp_path / "rows.pt") as old, zipfile.ZipFile(other, "w") as new:
        for name in old.namelist():
            new.writestr(name, old.read(name).replace(b"channel_affine", b"channel_afline"))
    with open_checkpoint(other) as store:
        assert store.tensors["weight"].shape == (2, 3)
        with pytest.raises(CheckpointError, match="quantised in another way"):
            store.read("weight")
