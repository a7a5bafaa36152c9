"""HDF5 of libver='latest', compared with what h5py reads from the same file."""

from __future__ import annotations

import itertools
from functools import cache
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from checkpoints.fuzzing import survives

from memcurse_cli.checkpoints.hdf5 import dataset as hdf5_dataset
from memcurse_cli.checkpoints.hdf5.dataset import chunks_of
from memcurse_cli.checkpoints.open import open_checkpoint
from memcurse_cli.errors import CheckpointError

VERSIONS = ("earliest", "v108", "v110", "v112", "v114", "v200", "latest")


def written(path: Path, version: str = "latest") -> h5py.File:
    return h5py.File(path, "w", libver=(version, "latest" if version == "earliest" else version))


def check(path: Path, expected: int) -> None:
    """Every dataset is what h5py says, and the file has so many."""
    found: dict[str, Any] = {}
    with h5py.File(path) as file:
        file.visititems(
            lambda name, node: found.update({name: node[()]} if hasattr(node, "shape") else {})
        )
    with open_checkpoint(path) as store:
        assert set(store.tensors) == set(found)
        assert len(found) == expected
        for name, array in found.items():
            np.testing.assert_array_equal(store.read(name), array.astype(float), strict=True)


@pytest.mark.parametrize("version", VERSIONS)
def test_groups_and_datasets_of_every_version(tmp_path: Path, version: str) -> None:
    made = np.random.default_rng(0)
    with written(tmp_path / "a.h5", version) as file:
        file.attrs["keras_version"] = "2.3.1"
        for layer in range(3):
            group = file.create_group(f"layer_{layer}", track_order=layer == 1)
            group.attrs["name"] = f"gru_{layer}"
            group["kernel"] = made.random((3, 5))
            group.create_dataset("bias", data=made.random(70).astype("f4"), compression="gzip")
            group.create_dataset("scalar", data=3.0)
            group.create_dataset("none", shape=(0, 4), dtype="f4")
            group.create_dataset("big", data=made.integers(-9, 9, (4, 5)).astype(">i2"))
    check(tmp_path / "a.h5", 15)
    with open_checkpoint(tmp_path / "a.h5") as store:
        assert store.metadata == {"keras_version": "2.3.1"}


FILTERS: tuple[dict[str, Any], ...] = (
    {},
    {"compression": "gzip", "shuffle": True},
    {"fletcher32": True},
)
SHAPES = [
    ((7, 5), (7, 5), None),  # one chunk
    ((7, 5), (9, 6), (9, 6)),
    ((70, 50), (7, 9), None),  # a fixed array
    ((70, 50), (7, 9), (90, 80)),
    ((300, 40), (3, 3), None),  # in pages
    ((50,), (4,), (None,)),  # an extensible array
    ((20, 30), (3, 4), (20, None)),
    ((20, 30), (3, 4), (None, 100)),
    ((4000,), (1,), (None,)),  # with super blocks
    ((20, 30), (3, 4), (None, None)),  # a version 2 B-tree
    ((300, 40), (3, 3), (None, None)),
]


@pytest.mark.parametrize("filters", FILTERS, ids=["plain", "gzip", "fletcher32"])
@pytest.mark.parametrize(("shape", "chunks", "limits"), SHAPES)
@pytest.mark.parametrize("version", ["v110", "latest"])
def test_every_index_of_chunks(
    tmp_path: Path,
    shape: tuple[int, ...],
    chunks: tuple[int, ...],
    limits: tuple[int | None, ...] | None,
    filters: dict[str, Any],
    version: str,
) -> None:
    array = np.random.default_rng(0).random(shape)
    with written(tmp_path / "a.h5", version) as file:
        file.create_dataset("w", data=array, chunks=chunks, maxshape=limits, **filters)
    check(tmp_path / "a.h5", 1)


def test_an_extensible_array_in_pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written_chunks = [0, 5, *range(600, 131_000, 7_000), *range(131_500, 140_000, 900)]
    with written(tmp_path / "a.h5") as file:
        made = file.create_dataset("w", (140_000,), "u1", chunks=(1,), maxshape=(None,))
        for at in written_chunks:
            made[at] = 1
        file["filler"] = np.zeros(150_000)  # so many chunks would not fit into a smaller file
        expected = sorted(
            (info.chunk_offset, info.byte_offset)
            for info in map(made.id.get_chunk_info, range(made.id.get_num_chunks()))
        )
    found: list[Any] = []

    def remembered(*arguments: Any) -> Any:
        found.extend(chunks_of(*arguments))
        return found

    monkeypatch.setattr(hdf5_dataset, "chunks_of", remembered)
    with (
        open_checkpoint(tmp_path / "a.h5") as store,
        pytest.raises(CheckpointError, match="of the"),
    ):
        store.read("w")
    assert [(chunk.corner, chunk.address) for chunk in found] == expected
    assert len(found) == len(written_chunks)


@pytest.mark.parametrize("limits", [None, (None,)])
def test_a_dataset_that_has_grown(tmp_path: Path, limits: Any) -> None:
    with written(tmp_path / "a.h5") as file:
        made = file.create_dataset("w", (10,), "f4", chunks=(4,), maxshape=limits or (1000,))
        made[:] = 1
        made.resize((500,))
        made[:] = np.arange(500)
    check(tmp_path / "a.h5", 1)


def implicit(path: Path) -> None:
    """Chunks that are all allocated at once need no index."""
    with written(path) as file:
        space = h5py.h5s.create_simple((20, 30), (30, 50))
        options = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        options.set_chunk((6, 7))
        options.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
        made = h5py.h5d.create(file.id, b"w", h5py.h5t.IEEE_F64LE, space, options)
        made.write(h5py.h5s.ALL, h5py.h5s.ALL, np.random.default_rng(0).random((20, 30)))


def test_chunks_without_an_index(tmp_path: Path) -> None:
    implicit(tmp_path / "a.h5")
    check(tmp_path / "a.h5", 1)


@pytest.mark.parametrize("count", [9, 100, 3000])
@pytest.mark.parametrize("length", [1, 60])
def test_many_links_lie_in_a_heap(tmp_path: Path, count: int, length: int) -> None:
    with written(tmp_path / "a.h5") as file:
        for index in range(count):
            file[f"{'n' * length}{index}"] = float(index)
    check(tmp_path / "a.h5", count)


def test_many_attributes_lie_in_a_heap(tmp_path: Path) -> None:
    config = '{"class_name": "Sequential", "config": {}}'
    with written(tmp_path / "a.h5") as file:
        for index in range(50):
            file.attrs[f"other {index}"] = "x" * index
        file.attrs["model_config"] = config
        file["w"] = np.eye(2)
        file.attrs["long"] = np.bytes_(b"x" * 70_000)
    with open_checkpoint(tmp_path / "a.h5") as store:
        assert store.metadata == {"model_config": config}


@pytest.mark.parametrize("limits", [(40,), (None,), (None, None)])
def test_chunks_that_were_never_written_are_missed(tmp_path: Path, limits: Any) -> None:
    path = tmp_path / "a.h5"
    with written(path) as file:
        file.create_dataset(
            "w", (40,) * len(limits), "f4", chunks=(4,) * len(limits), maxshape=limits
        )
        file["filler"] = np.ones(2000)
    with open_checkpoint(path) as store, pytest.raises(CheckpointError, match="has 0 chunks of"):
        store.read("w")


@cache
def valid(kind: str) -> bytes:
    """A small file for each structure that the others do not have."""
    path = Path(f"{kind}.h5")
    image = h5py.File(path, "w", libver="latest", driver="core", backing_store=False)
    ones = np.ones((20, 30))
    with image as file:
        if kind == "links":
            for index in range(60):
                file[f"{index}" * 20] = 1.0
        elif kind == "attributes":
            file["w"] = ones
            for index in range(60):
                file.attrs[f"a{index}"] = "x" * 30
        else:
            limits = {"fixed": None, "extensible": (None, 30), "tree": (None, None)}[kind]
            file.create_dataset("w", data=ones, chunks=(2, 3), maxshape=limits, compression="gzip")
        file.flush()
        content: bytes = file.id.get_file_image()
    return content


KINDS = ("links", "attributes", "fixed", "extensible", "tree")


@pytest.mark.parametrize("kind", KINDS)
def test_every_byte_of_its_structures_may_be_wrong(kind: str) -> None:
    content = valid(kind)
    marks = [
        at
        for mark in (
            b"OHDR",
            b"BTHD",
            b"BTLF",
            b"BTIN",
            b"FRHP",
            b"FHIB",
            b"FADB",
            b"EAIB",
            b"EASB",
        )
        for at in range(len(content))
        if content.startswith(mark, at)
    ]
    for at, byte in itertools.product(marks[:12], range(0, 150, 3)):
        wrong = bytearray(content)
        if at + byte < len(wrong):
            wrong[at + byte] ^= 0xFF
            survives(bytes(wrong))
