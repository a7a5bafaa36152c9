"""Other people's readers of the same files: what the tests compare with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import shared
import torch
from numpy.typing import NDArray

from memcurse_cli.checkpoints.store import TensorStore
from memcurse_cli.checkpoints.untrusted.source import LocalFile


def files(*endings: str) -> list[Path]:
    """The shared checkpoints with these extensions."""
    if not shared.available():
        return []
    found = [
        path
        for folder in ("zoo", "trained", "paper")
        for path in (shared.SHARED_DATA / folder).rglob("*")
        if path.suffix.lstrip(".") in endings and path.is_file()
    ]
    return sorted(found)


def label(path: Path) -> str:
    return path.relative_to(shared.SHARED_DATA).as_posix()


def double(tensor: Any) -> NDArray[Any]:
    """A torch tensor or NumPy array as float64 or complex128."""
    if isinstance(tensor, torch.Tensor):
        tensor = tensor.detach().resolve_conj().resolve_neg()
        tensor = tensor.to(torch.complex128 if tensor.is_complex() else torch.float64).numpy()
    return tensor.astype(np.complex128 if tensor.dtype.kind == "c" else np.float64)


def same(store: TensorStore, expected: dict[str, Any]) -> None:
    """The store has these tensors, as their library has read or made them, and no other."""
    assert set(store.tensors) == set(expected)
    for name, reference in expected.items():
        spec, array = store.tensors[name], store.read(name)
        assert spec.shape == tuple(reference.shape) == array.shape
        assert spec.dtype == str(reference.dtype).removeprefix("torch.")
        assert spec.bytes == reference.nbytes
        np.testing.assert_array_equal(array, double(reference), strict=True)
    sizes = [spec.bytes for name, spec in store.tensors.items() if name not in store.aliases]
    assert store.bytes_read == sum(sizes)


def lengths_read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How long each piece is that is read of a file from here on."""
    touched: list[int] = []
    read = LocalFile.read

    def counted(file: LocalFile, offset: int, length: int) -> bytearray:
        touched.append(length)
        return read(file, offset, length)

    monkeypatch.setattr(LocalFile, "read", counted)
    return touched


def arrays_of(module: torch.nn.Module, prefix: str = "") -> dict[str, NDArray[Any]]:
    """A copy of what a module holds, as a layer stores it under ``prefix``."""
    state = {f"{prefix}{name}": tensor for name, tensor in module.state_dict().items()}
    return {name: tensor.detach().numpy().copy() for name, tensor in state.items()}
