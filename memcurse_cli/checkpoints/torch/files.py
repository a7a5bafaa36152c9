"""The files that hold PyTorch's pickles: of torch.save, old and new, plain ones, and archives.

The pickle is run as data by `pickle_machine`, so that no file needs torch to be read and none can
run code; storages are read by range. Nothing is extracted from an archive.
"""

from __future__ import annotations

import tarfile

from memcurse_cli.checkpoints.registry import open_known
from memcurse_cli.checkpoints.store import TensorStore
from memcurse_cli.checkpoints.torch.pickle_machine import (
    EscapedBytes,
    Global,
    PickleError,
    begins_like_a_pickle,
)
from memcurse_cli.checkpoints.torch.pickled_tensors import Storage, described_storage
from memcurse_cli.checkpoints.torch.pickled_tree import machine, no_persistent, store_of
from memcurse_cli.checkpoints.untrusted.archive import LARGE_BLOCK, Archive, Stream, inflate
from memcurse_cli.checkpoints.untrusted.names import printable
from memcurse_cli.checkpoints.untrusted.source import ByteRange, Bytes, File, InlineBytes, Part
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
    return store_of(machine(pickle, persistent).load(), file)


def recognises(head: bytes, file: File) -> bool:
    """The mark of protocols 2 to 5, or what stands where protocols 0 and 1 have none."""
    return head.startswith(b"\x80") or begins_like_a_pickle(head)


def open_pickle(file: File) -> TensorStore:
    """Run the pickle on inert data."""
    return store_of(machine(file, no_persistent, STORAGE_CONSTRUCTORS).load(), file)


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
    return open_inside(file, WEIGHTS, weights, "save the model again with model.save_to()")


def open_inside(file: File, name: str, content: Bytes, remedy: str) -> TensorStore:
    """The store of a file of torch.save that lies in an archive."""
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


POLICY = "policy.pth"


def open_policy(file: File, archive: Archive) -> TensorStore:
    """Read the policy as the PyTorch file that it is."""
    return open_inside(
        file, POLICY, archive.member(POLICY), "save the agent again with model.save()"
    )
