"""Every shared checkpoint has the names, shapes, types and values that its own library reads."""

from __future__ import annotations

import warnings
from pathlib import Path

import jax
import numpy as np
import pytest
import shared
import torch
from checkpoints import readers
from checkpoints.readers import same
from safetensors import safe_open
from safetensors.torch import load_file

from memcurse_cli.checkpoints.open import open_checkpoint

pytestmark = pytest.mark.skipif(not shared.available(), reason=shared.REASON)

# What the files hold beside the model's weights, by the first keys of its path.
LEFT_OUT = ("optimizer", "optimizer_states", "optimizer_state_dict", "ema")
CONTAINERS = ("model", "state_dict", "model_state_dict")


@pytest.mark.parametrize("path", readers.files("safetensors"), ids=readers.label)
def test_safetensors_agrees_with_its_library(path: Path) -> None:
    with open_checkpoint(path) as store, safe_open(path, "pt") as library:
        expected = load_file(path)
        said = library.metadata() or {}
        tied = {name: kept for name, kept in said.items() if kept in expected}
        assert dict(store.aliases) == tied
        same(store, {**expected, **{name: expected[kept] for name, kept in tied.items()}})


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
    for path_of_keys, leaf in jax.tree_util.tree_leaves_with_path(loaded):
        keys = [jax.tree_util.keystr((key,), simple=True) for key in path_of_keys]
        if isinstance(leaf, torch.Tensor) and keys[0] not in LEFT_OUT:
            found[".".join(keys[1:] if keys[0] in CONTAINERS else keys)] = leaf
    return found


# One has a class that is not installed, one a weight that is stored as its parts.
OTHERS = ("mambabeat", "weight_norm")
TORCH_FILES = [
    path
    for path in readers.files("pt", "pth", "bin", "ckpt", "tar", "jit")
    if not any(part in path.as_posix() for part in OTHERS)
]


@pytest.mark.parametrize("path", TORCH_FILES, ids=readers.label)
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
