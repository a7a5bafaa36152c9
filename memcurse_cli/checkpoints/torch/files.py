"""The files that hold PyTorch's pickles: of torch.save, old and new, plain ones, and archives.

The pickle is run as data by `pickle_machine`, so that no file needs torch to be read and none can
run code; storages are read by range. Nothing is extracted from an archive.
"""

from __future__ import annotations

import tarfile
from contextlib import suppress
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
from memcurse_cli.checkpoints.torch.pickle_machine import (
    EscapedBytes,
    Global,
    Machine,
    PickleError,
    Record,
    begins_like_a_pickle,
)
from memcurse_cli.checkpoints.torch.pickled_tensors import (
    CONSTRUCTORS,
    Storage,
    described_storage,
    torch_type,
)
from memcurse_cli.checkpoints.torch.pickled_tree import store_of
from memcurse_cli.checkpoints.untrusted.archive import LARGE_BLOCK, Archive, Stream, inflate
from memcurse_cli.checkpoints.untrusted.names import (
    MAX_JSON_BYTES,
    NOT_FINITE,
    parse_object,
    printable,
)
from memcurse_cli.checkpoints.untrusted.source import (
    ByteRange,
    Bytes,
    DataFile,
    File,
    InlineBytes,
    LocalDirectory,
    Part,
    directory_here,
    naturals,
)
from memcurse_cli.errors import CheckpointError


def open_legacy(file: File) -> TensorStore:
    """Read the pickles and find the storages."""
    return store_of(load_legacy(file), file)


def load_legacy(source: Bytes) -> object:
    """What the file holds, its storages placed."""
    storages: dict[str, Storage] = {}
    big_endian = False

    def persistent(identity: object) -> object:
        if isinstance(identity, tuple) and len(identity) > 1 and identity[0] == "module":
            return identity[1]  # a class and its source text: the name is enough
        key, dtype, count, rest = described_storage(identity)
        if rest and rest[0] is not None:
            raise PickleError("its storages are views of others, as only PyTorch 0.1 wrote them")
        known = storages.setdefault(key, Storage(dtype, count, big_endian=big_endian))
        if (known.dtype, known.count) != (dtype, count):
            raise PickleError(f"it describes the storage {printable(key, 40)} in two ways")
        return known

    header = Machine(source, CONSTRUCTORS)
    _magic, _version, system = header.load(), header.load(), header.load()
    big_endian = isinstance(system, dict) and system.get("little_endian") is False
    body = Machine(source, CONSTRUCTORS, persistent, header.position)
    root, keys = body.load(), body.load()
    if not isinstance(keys, list) or not all(isinstance(key, str) for key in keys):
        raise PickleError("its list of storages is malformed")
    _place(source, body.position, keys, storages)
    return root


def _place(source: Bytes, position: int, keys: list[str], storages: dict[str, Storage]) -> None:
    # Each storage is preceded by its number of elements.
    for key in keys:
        shown, storage = f"the storage {printable(key, 40)}", storages.get(key)
        if storage is None:
            raise PickleError(f"it lists {shown}, which no tensor uses")
        content = ByteRange(source, position, max(0, source.size - position))
        count = int.from_bytes(content.read(0, 8), "big" if storage.big_endian else "little")
        if count != storage.count:
            raise PickleError(f"{shown} has another length than it claims")
        left = content.size - 8
        if storage.bytes > left:
            claim = f"{shown} claims {storage.bytes} bytes"
            raise PickleError(f"{claim} and the file has {left} left; it is truncated")
        storage.place(ByteRange(source, position + 8, storage.bytes))
        position += 8 + storage.bytes


def _load_from_bytes(content: object) -> object:
    if isinstance(content, EscapedBytes):  # decoded once, not for every field of the file
        content = content.read(0, content.size)
    if isinstance(content, bytes):
        content = InlineBytes(content)
    if not isinstance(content, ByteRange | InlineBytes):
        raise PickleError("it has a storage without bytes")
    return load_legacy(content)


# A plain pickle carries each storage as a legacy file of its own.
STORAGE_CONSTRUCTORS = {Global("torch.storage", "_load_from_bytes"): _load_from_bytes}


PICKLE = "data.pkl"
MAX_PICKLE_BYTES = 1 << 28


def open_zip(file: File, archive: Archive) -> TensorStore:
    """Run the pickle on inert data, and find the storages that lie beside it."""
    pickles = [name for name in archive.names if name.endswith(f"/{PICKLE}")]
    root = min(pickles, key=lambda name: name.count("/")).removesuffix(PICKLE)
    order = f"{root}byteorder"
    big_endian = order in archive and bytes(archive.read(order, 0, 3)) == b"big"
    # Tensors that share their elements refer to one storage.
    storages: dict[tuple[str, str, int], Storage] = {}

    def persistent(identity: object) -> Storage:
        key, dtype, count, _ = described_storage(identity)
        member = f"{root}data/{key}"
        if member not in archive:
            raise PickleError(f"the storage {printable(key, 40)} is not in the archive")
        if (key, dtype, count) not in storages:
            storage = Storage(dtype, count, big_endian=big_endian)
            storage.place(archive.member(member))
            storages[key, dtype, count] = storage
        return storages[key, dtype, count]

    pickle = archive.member(f"{root}{PICKLE}")
    if pickle.size > MAX_PICKLE_BYTES:
        raise PickleError(f"it has {pickle.size} bytes")
    return store_of(Machine(pickle, CONSTRUCTORS, persistent).load(), file)


def recognises(head: bytes, file: File) -> bool:
    """The mark of protocols 2 to 5, or what stands where protocols 0 and 1 have none."""
    return head.startswith(b"\x80") or begins_like_a_pickle(head)


def open_pickle(file: File) -> TensorStore:
    """Run the pickle on inert data."""
    return store_of(Machine(file, CONSTRUCTORS | STORAGE_CONSTRUCTORS).load(), file)


WEIGHTS = "model_weights.ckpt"
MAX_TAR_MEMBERS = 10_000
# Trained weights reach 10 to 1; what a small archive may be inflated to is bounded by itself.
MAX_RATIO = 10
GZIP_MAGIC = b"\x1f\x8b"


def open_nemo(file: File) -> TensorStore:
    """Find the weights in the tar, and read them as the PyTorch file that they are."""
    content: Bytes = file
    if bytes(file.read(0, 2)) == GZIP_MAGIC:
        limit = max(LARGE_BLOCK, MAX_RATIO * file.size)
        content = InlineBytes(inflate(bytes(file.read(0, file.size)), limit))
    weights = _weights(content)
    return _open_inside(file, WEIGHTS, weights, "save the model again with model.save_to()")


def _open_inside(file: File, name: str, content: Bytes, remedy: str) -> TensorStore:
    inside = Part(content, file, f"{file.path}: {name}")
    store = open_known(inside, ("PyTorch", "PyTorch legacy"))
    if store is None:
        raise CheckpointError(
            f"its member {name} is not a file of torch.save", where=file.path, remedy=remedy
        )
    store.bytes, store.path = file.size, file.path
    return store


def _weights(content: Bytes) -> ByteRange:
    try:
        with tarfile.TarFile(fileobj=Stream(content)) as archive:
            for count, member in enumerate(archive):
                if count >= MAX_TAR_MEMBERS:
                    raise ValueError(f"it has more than {MAX_TAR_MEMBERS} members")
                if member.name.removeprefix("./") != WEIGHTS:
                    continue
                if not member.isreg() or member.sparse is not None:
                    raise ValueError(f"its {WEIGHTS} is a link or of another kind than a file")
                if member.offset_data + member.size > content.size:
                    raise ValueError(f"its {WEIGHTS} claims {member.size} bytes, beyond its end")
                return ByteRange(content, member.offset_data, member.size)
    except (tarfile.TarError, OSError, EOFError, OverflowError) as error:
        raise ValueError("it is truncated or corrupt") from error
    raise ValueError(f"it holds no {WEIGHTS}")


POLICY, POLICY_OPTIMIZER = "policy.pth", "policy.optimizer.pth"
# A member of the archive, and the key of the store's contents that its rate is under.
SB3_SETTINGS, SB3_DATA = "data", "the agent's data"


def open_policy(file: File, archive: Archive) -> TensorStore:
    """Read the policy as the PyTorch file that it is, and its optimizer where that can be read."""
    remedy = "save the agent again with model.save()"
    store = _open_inside(file, POLICY, archive.member(POLICY), remedy)
    held: dict[str, object] = {POLICY: store.contents}
    # Neither keeps the weights from being read.
    with suppress(CheckpointError, KeyError):
        state = archive.member(POLICY_OPTIMIZER)
        held[POLICY_OPTIMIZER] = _open_inside(file, POLICY_OPTIMIZER, state, remedy).contents
    with suppress(CheckpointError, KeyError, ValueError):
        content = archive.read(SB3_SETTINGS, 0, min(archive.size(SB3_SETTINGS), MAX_JSON_BYTES))
        settings = parse_object(bytes(content), understood=NOT_FINITE)
        held[SB3_DATA] = {"learning_rate": settings.get("learning_rate")}
    store.contents = held
    return store


# torch.distributed.checkpoint (DCP, FSDP) keeps a pickle ``.metadata`` beside files of shards. It
# says of which chunks each tensor is made, and in which file and at which bytes each chunk lies, as
# a torch.save of its own (torch/distributed/checkpoint/metadata.py and filesystem.py).
_METADATA = "torch.distributed.checkpoint.metadata"
TENSOR = Global(_METADATA, "TensorStorageMetadata")
MAX_METADATA_BYTES = 1 << 28

Shape = tuple[int, ...]


def open_distributed(file: File) -> TensorStore:
    """Read the metadata."""
    directory = directory_here(file)
    if file.size > MAX_METADATA_BYTES:
        raise ValueError(f"its metadata has {file.size} bytes")
    metadata = _state(Machine(file, CONSTRUCTORS).load())
    paths = _mapping(metadata.get("planner_data"))
    found, files = _tensors(metadata, directory)
    contents = {_path_of(name, paths): tensor for name, tensor in found.items()}
    tensors, notes = name_torch(contents)
    file.close()
    return TensorStore(
        path=file.path,
        bytes=file.size + sum(data.size for data in files.values()),
        tensors=tensors,
        notes=notes,
        contents=contents,
    )


# Where a chunk begins in its tensor, its shape, and its torch.save.
Chunk = tuple[Shape, Shape, Part]


def _joined(spec: TensorSpec, chunks: list[Chunk]) -> NDArray[Any]:
    kind = np.complex128 if spec.dtype.startswith("complex") else np.float64
    array = np.zeros(spec.shape, kind)
    for start, extent, content in chunks:
        store = open_known(content, ("PyTorch",))
        if store is None:
            raise CheckpointError("a chunk is no file of torch.save", remedy="copy it again")
        with store:
            (name, found), *others = store.tensors.items() or [("", TensorSpec((), "", 0))]
            if others or (found.shape, found.dtype) != (extent, spec.dtype):
                raise CheckpointError(
                    "a chunk is not the tensor that the metadata describes", remedy="copy it again"
                )
            room = tuple(slice(a, a + n) for a, n in zip(start, extent, strict=True))
            array[room] = store.read(name)
    return array


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
        state, shown = _state(entry), printable(name, 60)
        shape = _shape(state.get("size"))
        spec = spec_of(shape, _dtype(state.get("properties")))
        chunks = []
        for part in _sequence(state.get("chunks")):
            start, extent = (_shape(_state(part).get(key)) for key in ("offsets", "sizes"))
            if not len(start) == len(extent) == len(shape) or any(
                a + n > total for a, n, total in zip(start, extent, shape, strict=True)
            ):
                raise ValueError(f"a chunk of {shown} leaves its tensor")
            info = stored.get((name, start)) or stored.get((name, None))
            if info is None:
                raise ValueError(f"a chunk of {shown} is not stored")
            path, offset, length = info
            file = files.setdefault(path, DataFile(directory, path))
            end = offset + length
            if end > file.size:
                raise ValueError(
                    f"a chunk of {shown} lies at bytes {offset} to {end} of {file.size}"
                )
            chunks.append((start, extent, Part(ByteRange(file, offset, length), file)))
        if sum(element_count(extent) for _, extent, _ in chunks) != element_count(shape):
            raise ValueError(f"the chunks of {shown} do not fill it")
        # A chunk is not compressed, so that it has at least the bytes of its elements.
        if spec.bytes > sum(content.size for _, _, content in chunks):
            claim = printable(str(spec.bytes), 40)
            raise ValueError(f"{shown} claims {claim} bytes, more than its chunks")
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


def _path_of(name: str, paths: dict[Any, Any]) -> Path:
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
