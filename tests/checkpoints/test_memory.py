"""Arrays in memory: PyTorch, JAX and NumPy, without importing a framework."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import torch
from checkpoints import readers

from memcurse_cli.checkpoints.open import MemoryStore
from memcurse_cli.errors import CheckpointError


@pytest.mark.parametrize(
    "array",
    [
        torch.randn(3, 4).to(torch.bfloat16),
        torch.nn.Parameter(torch.randn(3, 4)),
        torch.randn(3, 4, dtype=torch.complex64).conj().T,
        torch.arange(4),
        torch.ones(3).to(torch.float8_e4m3fn),
        jnp.ones((2, 3), jnp.bfloat16),
        jnp.arange(3.0) * 1j,
        np.ones(3, dtype=">f4"),
        np.ones(3, dtype=ml_dtypes.float8_e5m2),
    ],
    ids=lambda array: str(array.dtype),
)
def test_every_kind_of_array(array: Any) -> None:
    store = MemoryStore({"params": {"lstm": {"kernel": array}}, "step": 3})
    ((name, spec),) = store.tensors.items()
    assert name.endswith("kernel")
    stored = array.dtype if isinstance(array, torch.Tensor) else np.asarray(array).dtype.name
    assert spec.dtype == str(stored).removeprefix("torch.")
    plain = array if isinstance(array, torch.Tensor) else np.asarray(array)
    np.testing.assert_array_equal(store.read(name), readers.double(plain), strict=True)
    assert store.bytes_read == store.bytes == array.nbytes


def test_what_is_no_tree_of_arrays_or_no_plain_array_is_refused() -> None:
    cyclic: dict[str, Any] = {}
    cyclic["self"] = cyclic
    for argument, expected in (
        (torch.nn.GRU(2, 3), "a GRU is not a mapping"),
        ({"a": 1}, "holds no array"),
        (cyclic, "nested more than"),
    ):
        with pytest.raises(CheckpointError, match=expected):
            MemoryStore(argument)
    store = MemoryStore({"w": torch.eye(3).to_sparse(), "text": np.array(["x"])})
    for name in store.tensors:
        with pytest.raises(CheckpointError, match=f"state_dict: {name}: .*cannot be converted"):
            store.read(name)
