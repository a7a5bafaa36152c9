"""Directories of torch.distributed.checkpoint, against the tensors that were saved."""

from __future__ import annotations

import pickle
import shutil
import warnings
from collections.abc import Callable
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from attacks.build import MARKER, Executes
from attacks.build import saved as torch_saved
from checkpoints.fuzzing import FUZZ, survives_in_folder
from checkpoints.readers import same
from hypothesis import given
from hypothesis import strategies as st
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)

from memcurse_cli.checkpoints.open import open_checkpoint
from memcurse_cli.errors import CheckpointError


def test_a_training_checkpoint(tmp_path: Path) -> None:
    module = torch.nn.GRU(3, 4)
    optimizer = torch.optim.Adam(module.parameters())
    module(torch.ones(2, 3))[0].sum().backward()
    optimizer.step()
    types = (torch.float64, torch.bfloat16, torch.complex64, torch.int64, torch.bool)
    for dtype in types:
        module.register_buffer(str(dtype).replace(".", "_"), torch.ones(2, 3).to(dtype))
    module.register_buffer("scalar", torch.tensor(2.5))
    content = {"model": module.state_dict(), "optim": optimizer.state_dict(), "step": 3}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dcp.save(content, checkpoint_id=tmp_path / "saved", no_dist=True)
    path = tmp_path / "saved"
    for named in (path, path / ".metadata"):
        with open_checkpoint(named) as store:
            assert store.format == "PyTorch distributed"
            assert "of optimiser state" in store.notes[0]
            assert store.bytes == sum(file.stat().st_size for file in path.iterdir())
            same(store, dict(module.state_dict()))


Change = Callable[[Metadata], object]


def sharded(directory: Path, change: Change = lambda metadata: None) -> Path:
    """A matrix of 5 × 4 as two ranks and two columns of FSDP would have saved it."""
    matrix = torch.arange(20.0).reshape(5, 4)
    chunks, stored = [], {}
    for rank, rows in enumerate((slice(0, 3), slice(3, 5))):
        content = b""
        for columns in (slice(0, 2), slice(2, 4)):
            part = matrix[rows, columns].clone()
            start = torch.Size([rows.start, columns.start])
            piece = torch_saved(part)
            chunks.append(ChunkStorageMetadata(offsets=start, sizes=part.shape))
            place = _StorageInfo(f"__{rank}_0.distcp", len(content), len(piece))
            stored[MetadataIndex("model.w", start, len(chunks) - 1)] = place
            content += piece
        (directory / f"__{rank}_0.distcp").write_bytes(content)
    described = TensorStorageMetadata(
        properties=TensorProperties(dtype=torch.float32), size=matrix.shape, chunks=chunks
    )
    metadata = Metadata(state_dict_metadata={"model.w": described}, storage_data=stored)
    change(metadata)
    (directory / ".metadata").write_bytes(pickle.dumps(metadata))
    return directory


def _relocated(path: str, offset: int = 0, length: int = 1) -> Change:
    def change(metadata: Metadata) -> None:
        for index in metadata.storage_data:
            metadata.storage_data[index] = _StorageInfo(path, offset, length)

    return change


def _described(**changes: Any) -> Change:
    def change(metadata: Metadata) -> None:
        for name, value in changes.items():
            setattr(metadata.state_dict_metadata["model.w"], name, value)

    return change


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (_relocated("../outside.distcp"), "outside the checkpoint's directory"),
        (_relocated("missing.distcp"), "no such file"),
        (_relocated("__0_0.distcp", 10**18), "lies at bytes 1000000000000000000"),
        (_relocated("__0_0.distcp", -1), "not of natural numbers"),
        (_relocated("__0_0.distcp", 0, 9), "more than its chunks"),
        (lambda metadata: metadata.storage_data.clear(), "is not stored"),
        (_described(size=torch.Size([10**9, 10**9])), "do not fill it"),
        (_described(size=torch.Size([4, 4])), "leaves its tensor"),
        (_described(properties=None), "unknown type"),
        (lambda metadata: metadata.state_dict_metadata.clear(), "holds no weights"),
    ],
    ids=range(10),
)
def test_metadata_that_lies_is_named(tmp_path: Path, change: Change, expected: str) -> None:
    with pytest.raises(CheckpointError, match=expected):
        open_checkpoint(sharded(tmp_path, change))


def test_the_shards_of_several_ranks_are_joined_unless_they_are_others(tmp_path: Path) -> None:
    path = sharded(tmp_path)
    with open_checkpoint(path) as store:
        same(store, {"model.w": torch.arange(20.0).reshape(5, 4)})
    content = (path / "__1_0.distcp").read_bytes()
    (path / "__1_0.distcp").write_bytes(bytes(len(content)))
    with open_checkpoint(path) as store, pytest.raises(CheckpointError, match="no file of torch"):
        store.read("model.w")
    sharded(tmp_path, _described(properties=TensorProperties(dtype=torch.int32)))
    with open_checkpoint(path) as store, pytest.raises(CheckpointError, match="not the tensor"):
        store.read("model.w")


def test_a_link_out_of_the_directory_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "inside").mkdir()
    path = sharded(tmp_path / "inside")
    shutil.move(path / "__0_0.distcp", tmp_path / "elsewhere")
    (path / "__0_0.distcp").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(CheckpointError, match="symbolic link leads outside"):
        open_checkpoint(path)


def test_nothing_in_the_metadata_is_executed(tmp_path: Path) -> None:
    def change(metadata: Metadata) -> None:
        metadata.planner_data = {"model.w": ("w",), "evil": Executes(tmp_path)}

    with open_checkpoint(sharded(tmp_path, change)) as store:
        assert list(store.tensors) == ["w"]
    assert not (tmp_path / MARKER).exists()


@cache
def valid() -> Path:
    return sharded(Path(mkdtemp()))


@FUZZ
@given(data=st.data())
def test_a_changed_file(data: st.DataObject) -> None:
    survives_in_folder(valid(), data)
