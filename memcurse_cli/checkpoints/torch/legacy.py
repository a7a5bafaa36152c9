"""PyTorch's first format (torch.save before 1.6): five pickles, then the storages one by one."""

from __future__ import annotations

from memcurse_cli.checkpoints.lazy import LazyStore
from memcurse_cli.checkpoints.torch.deepspeed import deepspeed_weights
from memcurse_cli.checkpoints.torch.pickle_machine import (
    ByteRange,
    Bytes,
    EscapedBytes,
    Global,
    InlineBytes,
    PickleError,
)
from memcurse_cli.checkpoints.torch.pickled_tensors import Storage, storage_type
from memcurse_cli.checkpoints.torch.pickled_tree import machine, no_persistent, tensors_of
from memcurse_cli.checkpoints.tree import texts
from memcurse_cli.checkpoints.untrusted.names import printable
from memcurse_cli.checkpoints.untrusted.source import File
from memcurse_cli.errors import CheckpointError

# The first pickle is the integer 0x1950a86a20f9469cfc6c (torch/serialization.py, MAGIC_NUMBER).
MAGIC = bytes.fromhex("8a0a6cfc9c46f9206aa850192e")


class PyTorchLegacy:
    """One file of torch.save before PyTorch 1.6."""

    name = "PyTorch legacy"
    extensions = (".pt", ".pth", ".bin", ".ckpt", ".tar")
    recognised_by = "a pickle of PyTorch's magic number, then the pickles and the storages"

    def recognises(self, head: bytes, file: File) -> bool:
        """A protocol mark and the magic number."""
        return head[:1] == b"\x80" and head[2 : 2 + len(MAGIC)] == MAGIC

    def open(self, file: File) -> LazyStore:
        """Read the pickles and find the storages."""
        try:
            loaded = load_legacy(file)
            weights, parts = deepspeed_weights(loaded, file.path)
            tensors, notes = tensors_of(weights)
        except ValueError as error:
            raise CheckpointError(
                f"this legacy PyTorch file cannot be read: {error}",
                where=file.path,
                remedy="copy or download it again, or save it anew with `torch.save`",
            ) from error
        return LazyStore(
            path=file.path,
            format=self.name,
            bytes=file.size,
            tensors=tensors,
            metadata=texts(loaded),
            notes=[*parts, *notes],
            resources=[file],
            contents=loaded,
        )


def load_legacy(source: Bytes) -> object:
    """What the file holds, its storages placed.

    Raises:
        PickleError: a pickle is malformed, or a storage is missing or shorter than it claims.
    """
    storages: dict[str, Storage] = {}
    big_endian = False

    def persistent(identity: object) -> object:
        if isinstance(identity, tuple) and len(identity) > 1 and identity[0] == "module":
            return identity[1]  # a class and its source text: the name is enough
        return _storage(identity, storages, big_endian)

    header = machine(source, no_persistent)
    _magic, _version, system = header.load(), header.load(), header.load()
    big_endian = isinstance(system, dict) and system.get("little_endian") is False
    body = machine(source, persistent, position=header.position)
    root, keys = body.load(), body.load()
    if not isinstance(keys, list) or not all(isinstance(key, str) for key in keys):
        raise PickleError("its list of storages is malformed")
    _place(source, body.position, keys, storages)
    return root


def _storage(identity: object, storages: dict[str, Storage], big_endian: bool) -> Storage:
    if not isinstance(identity, tuple) or len(identity) < 5 or identity[0] != "storage":
        raise PickleError("it refers to something that is not a storage")
    _, kind, key, _, count = identity[:5]
    if not isinstance(key, str) or type(count) is not int or not 0 <= count < 2**62:
        raise PickleError("it has a malformed storage")
    if len(identity) > 5 and identity[5] is not None:
        raise PickleError("its storages are views of others, as only PyTorch 0.1 wrote them")
    dtype = storage_type(kind)
    known = storages.setdefault(key, Storage(dtype, count, big_endian=big_endian))
    if (known.dtype, known.count) != (dtype, count):
        raise PickleError(f"it describes the storage {printable(key, 40)} in two ways")
    return known


def _place(source: Bytes, position: int, keys: list[str], storages: dict[str, Storage]) -> None:
    # Each storage is preceded by its number of elements.
    for key in keys:
        storage = storages.get(key)
        if storage is None:
            raise PickleError(f"it lists the storage {printable(key, 40)}, which no tensor uses")
        content = ByteRange(source, position, max(0, source.size - position))
        count = int.from_bytes(content.read(0, 8), "big" if storage.big_endian else "little")
        if count != storage.count:
            raise PickleError(f"the storage {printable(key, 40)} has another length than it claims")
        if storage.bytes > content.size - 8:
            raise PickleError(
                f"the storage {printable(key, 40)} claims {storage.bytes} bytes and the file has "
                f"{content.size - 8} left; it is truncated"
            )
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
