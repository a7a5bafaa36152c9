"""Every shared checkpoint has the names, shapes, types and values that its own library reads."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import shared
import torch
from checkpoints import readers
from safetensors import safe_open
from safetensors.torch import load_file

from memcurse_cli.checkpoints.open import open_checkpoint
from memcurse_cli.checkpoints.store import TensorStore

pytestmark = pytest.mark.skipif(not shared.available(), reason=shared.REASON)

# What the files hold beside the model's weights, by the first keys of its path.
LEFT_OUT = ("optimizer", "optimizer_states", "optimizer_state_dict", "ema")
CONTAINERS = ("model", "state_dict", "model_state_dict")


def same(store: TensorStore, expected: dict[str, Any]) -> None:
    assert isinstance(store, TensorStore)
    assert set(store.tensors) == set(expected)
    read = 0
    for name, reference in expected.items():
        spec, array = store.tensors[name], store.read(name)
        assert spec.shape == tuple(reference.shape) == array.shape
        assert spec.dtype == str(reference.dtype).removeprefix("torch.")
        assert spec.bytes == reference.itemsize * int(np.prod(reference.shape))
        np.testing.assert_array_equal(array, readers.double(reference), strict=True)
        read += 0 if name in store.aliases else spec.bytes
    assert store.bytes_read == read


@pytest.mark.parametrize("path", readers.files("safetensors"), ids=readers.label)
def test_safetensors_agrees_with_its_library(path: Path) -> None:
    with open_checkpoint(path) as store:
        assert store.format == "safetensors"
        assert store.bytes == path.stat().st_size
        assert store.bytes_read == 0
        expected = load_file(path)
        with safe_open(path, "pt") as library:
            said = library.metadata() or {}
        tied = {name: kept for name, kept in said.items() if kept in expected}
        assert dict(store.aliases) == tied
        same(store, {**expected, **{name: expected[kept] for name, kept in tied.items()}})


@pytest.mark.parametrize("path", readers.files("npz"), ids=readers.label)
def test_npz_agrees_with_numpy(path: Path) -> None:
    with open_checkpoint(path) as store, np.load(path, allow_pickle=False) as reference:
        slots = {name for name in reference.files if "/Adam" in name}
        kept = {
            name: reference[name]
            for name in reference.files
            if name not in slots and name != "dale_ratio" and reference[name].dtype.kind in "fiucb"
        }
        assert store.format == "NumPy .npz"
        same(store, kept)
        assert any("optimiser" in note for note in store.notes) == bool(slots)


def torch_reference(path: Path) -> dict[str, torch.Tensor]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            loaded = torch.load(path, weights_only=True, map_location="cpu")
    except Exception:
        if path.suffix == ".jit":
            return dict(torch.jit.load(path, map_location="cpu").state_dict())
        loaded = torch.load(path, weights_only=False, map_location="cpu").state_dict()
    found = {}
    for keys, tensor in readers.leaves(loaded).items():
        if keys[0] not in LEFT_OUT:
            found[".".join(keys[1:] if keys[0] in CONTAINERS else keys)] = tensor
    return found


TORCH_FILES = readers.files("pt", "pth", "bin", "ckpt", "tar", "jit")


# One has a class that is not installed, one a weight that is stored as its parts.
OTHERS = ("mambabeat", "weight_norm")


@pytest.mark.parametrize(
    "path",
    [p for p in TORCH_FILES if not any(part in p.as_posix() for part in OTHERS)],
    ids=readers.label,
)
def test_pytorch_agrees_with_torch(path: Path) -> None:
    reference = torch_reference(path)
    with open_checkpoint(path) as store:
        assert store.format in ("PyTorch", "PyTorch legacy")
        if path.suffix == ".jit":
            # TorchScript keeps attributes that its state_dict does not list.
            attributes = set(store.tensors) - set(reference)
            assert attributes == {"_state", "_context"}
            for name in reference:
                np.testing.assert_array_equal(store.read(name), readers.double(reference[name]))
        else:
            same(store, reference)
            places = {name: (t.data_ptr(), t.shape, t.stride()) for name, t in reference.items()}
            tied = {(a, b) for a in places for b in places if places[a] == places[b] and a != b}
            assert set(store.aliases) == {a for a, _ in tied} - set(store.stored)
            assert all((name, holder) in tied for name, holder in store.aliases.items())


@pytest.mark.parametrize("name", ["model_MambaBEAT.pth", "binary_MambaBEAT.pth"])
def test_a_pickled_module_whose_class_is_not_installed_is_read(trained: Path, name: str) -> None:
    folder = trained / "mambabeat_pickledmodule"
    oracle = json.loads((folder / "oracle.json").read_text())["layers"][f"{name}:layers.0"]
    with open_checkpoint(folder / name) as store:
        assert store.tensors["layers.0.A_log"].dtype == "float64"
        assert any("src.modules.mamba.MambaBEAT is a pickled module" in n for n in store.notes)
        rate = np.exp(store.read("layers.0.A_log"))
        step = np.logaddexp(0.0, store.read("layers.0.dt_proj.bias"))
    eigenvalues = np.exp(-rate * step[:, None])
    assert eigenvalues.size == oracle["n_modes"]
    assert eigenvalues.max() == pytest.approx(oracle["spectral_radius"], rel=1e-12)


def test_shards_agree_with_the_single_file(zoo: Path) -> None:
    for family in ("hf_mamba", "hf_rwkv"):
        directory = zoo / family / "sharded"
        whole = load_file(zoo / family / "fp32" / "model.safetensors")
        for path in (directory, directory / "model.safetensors.index.json"):
            with open_checkpoint(path) as store:
                assert store.path == str(path)
                assert store.format == "Hugging Face shards"
                assert set(store.tensors) == set(whole)
                for name, tensor in whole.items():
                    assert store.tensors[name].shape == tuple(tensor.shape)
                read = store.read(next(iter(whole)))
                assert store.bytes_read == read.size * 4
