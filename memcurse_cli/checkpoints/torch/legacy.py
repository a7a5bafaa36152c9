"""PyTorch's first format (torch.save before 1.6): five pickles, then the storages one by one."""

from __future__ import annotations

from memcurse_cli.checkpoints.lazy import LazyStore
from memcurse_cli.checkpoints.torch.pickle_machine import EscapedBytes, Global, PickleError
from memcurse_cli.checkpoints.torch.pickled_tensors import Storage, described_storage
from memcurse_cli.checkpoints.torch.pickled_tree import machine, no_persistent, store_of
from memcurse_cli.checkpoints.untrusted.names import printable
from memcurse_cli.checkpoints.untrusted.ranges import ByteRange, Bytes, InlineBytes
from memcurse_cli.checkpoints.untrusted.source import File


def open_file(file: File) -> LazyStore:
    """Read the pickles and find the storages."""
    return store_of(load_legacy(file), file)


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
    key, dtype, count, rest = described_storage(identity)
    if rest and rest[0] is not None:
        raise PickleError("its storages are views of others, as only PyTorch 0.1 wrote them")
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
