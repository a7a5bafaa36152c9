"""Tensors under several names, in files that the libraries wrote, and lies about them."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn.utils.parametrizations import weight_norm

from memcurse_cli.checkpoints.memory import MemoryStore
from memcurse_cli.checkpoints.open import open_checkpoint
from memcurse_cli.checkpoints.optimizer.state import adam_state
from memcurse_cli.checkpoints.rewrites import restore_names
from memcurse_cli.checkpoints.store import LazyTensor, TensorSpec, TensorStore

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


def state_dict(model: nn.Module, path: Path) -> Path:
    torch.save(model.state_dict(), path / "model.pt")
    return path / "model.pt"


def legacy(model: nn.Module, path: Path) -> Path:
    torch.save(model.state_dict(), path / "model.pth", _use_new_zipfile_serialization=False)
    return path / "model.pth"


def module(model: nn.Module, path: Path) -> Path:
    torch.save(model, path / "module.pt")
    return path / "module.pt"


def plain_pickle(model: nn.Module, path: Path) -> Path:
    (path / "module.pkl").write_bytes(pickle.dumps(model))
    return path / "module.pkl"


def saved_model(model: nn.Module, path: Path) -> Path:
    safetensors.torch.save_model(model, str(path / "model.safetensors"))
    return path / "model.safetensors"


WRITERS = (state_dict, legacy, module, plain_pickle, saved_model)


@pytest.mark.parametrize("write", WRITERS)
def test_every_name_is_read_and_each_tensor_is_counted_once(
    write: Callable[[nn.Module, Path], Path], tmp_path: Path
) -> None:
    model = Twice()
    with open_checkpoint(write(model, tmp_path)) as store:
        assert dict(store.aliases) == TIED
        expected = model.state_dict()
        assert set(store.tensors) == set(expected)
        assert set(store.stored) == set(expected) - set(TIED)
        for name, tensor in expected.items():
            np.testing.assert_array_equal(store.read(name), tensor.double().numpy())
        assert store.bytes_read == sum(weight.nbytes for weight in model.parameters())


def test_a_state_dict_in_memory_has_the_same_aliases() -> None:
    assert dict(MemoryStore(Twice().state_dict()).aliases) == TIED


def test_torchscript_has_the_same_aliases(tmp_path: Path) -> None:
    class Runs(Twice):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            result: torch.Tensor = self.head(self.b(self.a(x)[0][..., :3])[0])
            return result

    torch.jit.trace(Runs(), torch.zeros(2, 1, 3)).save(tmp_path / "model.jit")
    with open_checkpoint(tmp_path / "model.jit") as store:
        shared = {name: holder for name, holder in TIED.items() if name.startswith("b.")}
        assert shared.items() <= dict(store.aliases).items()


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
    for store in (open_checkpoint(tmp_path / "views.pt"), MemoryStore(views)):
        assert dict(store.aliases) == {"again": "whole"}
        for name, tensor in views.items():
            np.testing.assert_array_equal(store.read(name), tensor.numpy())


def test_a_conjugate_view_is_another_tensor() -> None:
    values = torch.tensor([1 + 2j, 3 - 1j])
    store = MemoryStore({"a": values, "b": values.conj(), "c": values.view(2)})
    assert dict(store.aliases) == {"c": "a"}
    np.testing.assert_array_equal(store.read("b"), values.numpy().conj())


def test_arrays_of_other_libraries_are_not_called_shared() -> None:
    # A tree of JAX may begin with one array in two places, and trains two.
    array = np.eye(3)
    assert not MemoryStore({"a": array, "b": array}).aliases


def test_a_plain_pickle_of_a_state_dict_stores_each_name(tmp_path: Path) -> None:
    # So does pickle.load give two tensors, which do not share their memory.
    (tmp_path / "a.pkl").write_bytes(pickle.dumps(Twice().state_dict()))
    assert not open_checkpoint(tmp_path / "a.pkl").aliases


@pytest.mark.parametrize("write", [state_dict, saved_model])
def test_weights_made_of_shared_parts_are_shared(
    write: Callable[[nn.Module, Path], Path], tmp_path: Path
) -> None:
    model = nn.ModuleDict({"a": weight_norm(nn.RNN(3, 4), "weight_hh_l0")})
    model["b"] = model["a"]
    with open_checkpoint(write(model, tmp_path)) as store:
        assert store.aliases["b.weight_hh_l0"] == "a.weight_hh_l0"
        expected = model["a"].weight_hh_l0.detach().double().numpy()
        np.testing.assert_allclose(store.read("b.weight_hh_l0"), expected, rtol=1e-6)


def test_an_optimiser_has_a_shared_weight_once(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Twice()
    optimiser = torch.optim.Adam(model.parameters())
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter)
    optimiser.step()
    checkpoint = {"model": model.state_dict(), "optimizer": optimiser.state_dict()}
    torch.save(checkpoint, tmp_path / "train.pt")
    with open_checkpoint(tmp_path / "train.pt") as store:
        state = adam_state(store)
        assert state is not None
        assert not state.refused
        assert set(state.slots) == {name for name, _ in model.named_parameters()}
        for name, parameter in model.named_parameters():
            moment = optimiser.state[parameter]["exp_avg_sq"].double().numpy()
            np.testing.assert_array_equal(state.slots[name].second_moment.load(), moment)


def lazy(value: float) -> LazyTensor:
    return LazyTensor(TensorSpec((1,), "float32", 4), lambda: np.array([value]))


NAMES = st.sampled_from(["a.w", "a.b", "b.w", "b.b", "c", "format", "pt", ""])


@given(st.lists(NAMES, unique=True), st.dictionaries(NAMES, NAMES))
def test_metadata_add_names_of_stored_tensors_and_nothing_else(
    stored: list[str], metadata: dict[str, str]
) -> None:
    entries = {name: lazy(float(index)) for index, name in enumerate(stored)}
    store = TensorStore(path="x", bytes=4, tensors=entries, listed_names=metadata)
    made = restore_names(store).entries
    expected = {
        name: holder for name, holder in metadata.items() if name not in stored and holder in stored
    }
    assert store.aliases == expected
    assert list(made) == [*stored, *sorted(expected)]
    for name, entry in made.items():
        assert entry.load()[0] == stored.index(expected.get(name, name))


def test_a_tensor_that_is_not_there_is_told_where_its_module_is(tmp_path: Path) -> None:
    tensors = {"b.weight_hh_l0": torch.eye(3)}
    metadata = {"format": "pt", "b.bias_hh_l0": "a.bias_hh_l0", "z.bias": "a.bias"}
    safetensors.torch.save_file(tensors, tmp_path / "a.safetensors", metadata)
    (note,) = open_checkpoint(tmp_path / "a.safetensors").notes
    assert note == (
        "b.bias_hh_l0 should be stored as a.bias_hh_l0, which is not in the file: its layer is "
        "read without"
    )


def test_only_what_is_shared_has_a_note(tmp_path: Path) -> None:
    safetensors.torch.save_file({"w": torch.eye(3)}, tmp_path / "a.safetensors", {"format": "pt"})
    assert open_checkpoint(tmp_path / "a.safetensors").notes == ()
    note = open_checkpoint(saved_model(Twice(), tmp_path)).notes
    assert len(note) == 1
    assert "stored under one name" in note[0]


def test_a_store_counts_what_it_reads_by_what_is_stored() -> None:
    one = LazyTensor(TensorSpec((1,), "float32", 4), lambda: np.ones(1), identity="one")
    tensors = {"a": one, "b": one, "c": lazy(2.0), "d": lazy(3.0)}
    store = TensorStore(path="x", format="x", bytes=12, tensors=tensors)
    for name in ("b", "a", "b", "c", "d", "c"):
        store.read(name)
    assert store.bytes_read == 12
