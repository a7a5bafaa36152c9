"""torch.distributed.checkpoint (DCP, FSDP): a pickle ``.metadata`` beside files of shards.

The metadata says, for each tensor, of which chunks it is made, and for each chunk in which file
and at which bytes it lies, as a torch.save of its own
(torch/distributed/checkpoint/metadata.py and filesystem.py). Both kinds of pickle are run as data.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from memcurse_cli.checkpoints.registry import open_known
from memcurse_cli.checkpoints.select import MAX_TENSORS, Path, name_torch
from memcurse_cli.checkpoints.store import (
    LazyTensor,
    TensorSpec,
    TensorStore,
    element_count,
    spec_of,
)
from memcurse_cli.checkpoints.torch.pickle_machine import Global, Record
from memcurse_cli.checkpoints.torch.pickled_tensors import torch_type
from memcurse_cli.checkpoints.torch.pickled_tree import machine, no_persistent
from memcurse_cli.checkpoints.untrusted.names import printable
from memcurse_cli.checkpoints.untrusted.source import (
    ByteRange,
    DataFile,
    File,
    LocalDirectory,
    Part,
    directory_here,
    naturals,
)
from memcurse_cli.errors import CheckpointError

MODULE = "torch.distributed.checkpoint.metadata"
TENSOR = Global(MODULE, "TensorStorageMetadata")
MAX_METADATA_BYTES = 1 << 28

Shape = tuple[int, ...]


def open_file(file: File) -> TensorStore:
    """Read the metadata."""
    directory = directory_here(file)
    if file.size > MAX_METADATA_BYTES:
        raise ValueError(f"its metadata has {file.size} bytes")
    metadata = _state(machine(file, no_persistent).load())
    paths = _mapping(metadata.get("planner_data"))
    found, files = _tensors(metadata, directory)
    contents = {_path(name, paths): tensor for name, tensor in found.items()}
    tensors, notes = name_torch(contents)
    file.close()
    return TensorStore(
        path=file.path,
        bytes=file.size + sum(data.size for data in files.values()),
        tensors=tensors,
        notes=notes,
        contents=contents,
    )


@dataclass(frozen=True)
class _Chunk:
    """A part of a tensor: where it begins in it, its shape, and where its torch.save lies."""

    start: Shape
    shape: Shape
    file: DataFile
    offset: int
    length: int


def _joined(spec: TensorSpec, chunks: list[_Chunk]) -> NDArray[Any]:
    kind = np.complex128 if spec.dtype.startswith("complex") else np.float64
    array = np.zeros(spec.shape, kind)
    for chunk in chunks:
        room = tuple(slice(a, a + n) for a, n in zip(chunk.start, chunk.shape, strict=True))
        array[room] = _read(chunk, spec.dtype)
    return array


def _read(chunk: _Chunk, dtype: str) -> NDArray[Any]:
    part = Part(ByteRange(chunk.file, chunk.offset, chunk.length), chunk.file)
    store = open_known(part, ("PyTorch",))
    if store is None:
        raise CheckpointError("a chunk is no file of torch.save", remedy="copy it again")
    with store:
        (name, spec), *others = store.tensors.items() or [("", TensorSpec((), "", 0))]
        if others or (spec.shape, spec.dtype) != (chunk.shape, dtype):
            raise CheckpointError(
                "a chunk is not the tensor that the metadata describes", remedy="copy it again"
            )
        return store.read(name)


def _tensors(
    metadata: dict[Any, Any], directory: LocalDirectory
) -> tuple[dict[str, LazyTensor], dict[str, DataFile]]:
    described = _mapping(metadata.get("state_dict_metadata"))
    if len(described) > MAX_TENSORS:
        raise ValueError(f"it has more than {MAX_TENSORS} entries")
    stored = _stored(metadata)
    files: dict[str, DataFile] = {}
    found: dict[str, LazyTensor] = {}
    for name, entry in described.items():
        if not isinstance(name, str) or not isinstance(entry, Record) or entry.function != TENSOR:
            continue
        state = _state(entry)
        shape = _shape(state.get("size"))
        spec = spec_of(shape, _dtype(state.get("properties")))
        chunks = []
        for part in _sequence(state.get("chunks")):
            start, extent = _shape(_state(part).get("offsets")), _shape(_state(part).get("sizes"))
            if not len(start) == len(extent) == len(shape) or any(
                a + n > total for a, n, total in zip(start, extent, shape, strict=True)
            ):
                raise ValueError(f"a chunk of {printable(name, 60)} leaves its tensor")
            info = stored.get((name, start)) or stored.get((name, None))
            if info is None:
                raise ValueError(f"a chunk of {printable(name, 60)} is not stored")
            path, offset, length = info
            file = files.setdefault(path, DataFile(directory, path))
            if offset + length > file.size:
                raise ValueError(
                    f"a chunk of {printable(name, 60)} lies at bytes {offset} to {offset + length}"
                    f" of {file.size}"
                )
            chunks.append(_Chunk(start, extent, file, offset, length))
        if sum(element_count(chunk.shape) for chunk in chunks) != element_count(shape):
            raise ValueError(f"the chunks of {printable(name, 60)} do not fill it")
        # A chunk is not compressed, so that it has at least the bytes of its elements.
        if spec.bytes > sum(chunk.length for chunk in chunks):
            claim = printable(str(spec.bytes), 40)
            raise ValueError(f"{printable(name, 60)} claims {claim} bytes, more than its chunks")
        found[name] = LazyTensor(spec, partial(_joined, spec, chunks))
    return found, files


def _stored(metadata: dict[Any, Any]) -> dict[tuple[str, Shape | None], tuple[str, int, int]]:
    """File, offset and length of each chunk, by the tensor's name and where the chunk begins."""
    stored: dict[tuple[str, Shape | None], tuple[str, int, int]] = {}
    for key, value in _mapping(metadata.get("storage_data")).items():
        # The machine keeps a key that is an object inside a record of its own.
        index = _state(key.function) if isinstance(key, Record) else {}
        info = _state(value)
        name, start = index.get("fqn"), index.get("offset")
        path, offset, length = (info.get(k) for k in ("relative_path", "offset", "length"))
        if info.get("transform_descriptors"):
            raise ValueError("its files are compressed or otherwise transformed")
        if not isinstance(name, str) or not isinstance(path, str):
            raise ValueError("it describes a chunk wrongly")
        (first, count) = _shape((offset, length))
        stored[name, None if start is None else _shape(start)] = path, first, count
    return stored


def _path(name: str, paths: dict[Any, Any]) -> Path:
    path = paths.get(name)
    if isinstance(path, tuple) and path and all(isinstance(part, str | int) for part in path):
        return tuple(str(part) for part in path)
    return (name,)


def _state(node: object) -> dict[Any, Any]:
    if isinstance(node, Record) and isinstance(node.state, dict):
        return node.state
    raise ValueError("its metadata is malformed")


def _mapping(node: object) -> dict[Any, Any]:
    return node if isinstance(node, dict) else {}


def _sequence(node: object) -> list[Any] | tuple[Any, ...]:
    return node if isinstance(node, list | tuple) else ()


def _dtype(properties: object) -> str:
    # TensorProperties pickles itself as a tuple that its dtype leads, and once as its attributes.
    state = properties.state if isinstance(properties, Record) else None
    if isinstance(state, dict):
        return torch_type(state.get("dtype"))
    return torch_type(state[0] if isinstance(state, tuple) and state else None)


def _shape(values: object) -> Shape:
    sizes = naturals(values)
    if sizes is None:
        raise ValueError("it has a shape or offset that is not of natural numbers")
    return sizes
