"""Arrays in memory: PyTorch, JAX and NumPy, without importing a framework."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import torch
from checkpoints import readers

from memcurse_cli.checkpoints.memory import MemoryStore
from memcurse_cli.checkpoints.store import TensorStore
from memcurse_cli.errors import CheckpointError


@pytest.mark.parametrize(
    "array",
    [
        torch.randn(3, 4).to(torch.bfloat16),
        torch.nn.Parameter(torch.randn(3, 4)),
        torch.randn(3, 4, dtype=torch.complex64).conj().T,
        torch.arange(4),
        torch.ones(3).to(torch.float8_e4m3fn),
    ],
    ids=lambda array: str(array.dtype),
)
def test_torch(array: torch.Tensor) -> None:
    store = MemoryStore({"w": array})
    assert isinstance(store, TensorStore)
    assert f"torch.{store.tensors['w'].dtype}" == str(array.dtype)
    assert store.tensors["w"].shape == tuple(array.shape)
    np.testing.assert_array_equal(store.read("w"), readers.double(array), strict=True)
    assert store.bytes_read == store.bytes == array.nbytes


@pytest.mark.parametrize(
    "array",
    [
        jnp.ones((2, 3), jnp.bfloat16),
        jnp.arange(3.0) * 1j,
        np.ones(3, dtype=">f4"),
        np.ones(3, dtype=ml_dtypes.float8_e5m2),
    ],
    ids=lambda array: str(array.dtype),
)
def test_jax_and_numpy(array: Any) -> None:
    store = MemoryStore({"params": {"lstm": {"kernel": array}}, "step": 3})
    assert list(store.tensors) == ["params/lstm/kernel"]
    expected = readers.double(np.asarray(array))
    np.testing.assert_array_equal(store.read("params/lstm/kernel"), expected, strict=True)


def test_a_training_checkpoint_as_loaded() -> None:
    module = torch.nn.GRU(2, 3)
    optimizer = torch.optim.Adam(module.parameters())
    module(torch.ones(1, 2))[0].sum().backward()
    optimizer.step()
    store = MemoryStore({"net": module.state_dict(), "o": optimizer.state_dict(), "epoch": 1})
    assert list(store.tensors) == list(module.state_dict())
    assert "optimiser state" in store.notes[0]


def test_what_is_no_tree_of_arrays_is_refused() -> None:
    cyclic: dict[str, Any] = {}
    cyclic["self"] = cyclic
    for argument, expected in (
        (torch.nn.GRU(2, 3), "a GRU is not a mapping"),
        ({"a": 1}, "holds no array"),
        (cyclic, "nested more than"),
    ):
        with pytest.raises(CheckpointError, match=expected):
            MemoryStore(argument)  # type: ignore[arg-type]  # the first is wrong on purpose


def test_an_array_that_cannot_be_converted_is_named() -> None:
    store = MemoryStore({"w": torch.eye(3).to_sparse(), "text": np.array(["x"])})
    for name in store.tensors:
        with pytest.raises(CheckpointError, match=f"state_dict: {name}: .*cannot be converted"):
            store.read(name)


def test_no_framework_is_imported() -> None:
    code = (
        "import sys, numpy; from memcurse_cli.checkpoints.memory import MemoryStore\n"
        "MemoryStore({'w': numpy.eye(2)}).read('w')\n"
        "print(sorted({'torch', 'jax', 'scipy', 'ml_dtypes'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
