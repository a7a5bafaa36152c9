"""PyTorch's zip files (torch.save since 1.6, and TorchScript): a pickle beside its storages.

The pickle is run as data by `pickle_machine`, so that no file needs torch to be read and none can
run code; the storages are members that are not compressed, and are read by range.
"""

from __future__ import annotations

from memcurse_cli.checkpoints.lazy import LazyStore
from memcurse_cli.checkpoints.torch.pickle_machine import PickleError
from memcurse_cli.checkpoints.torch.pickled_tensors import Storage, described_storage
from memcurse_cli.checkpoints.torch.pickled_tree import machine, store_of
from memcurse_cli.checkpoints.untrusted.archive import Archive
from memcurse_cli.checkpoints.untrusted.names import printable
from memcurse_cli.checkpoints.untrusted.source import File

PICKLE = "data.pkl"
MAX_PICKLE_BYTES = 1 << 28


def open_archive(file: File, archive: Archive) -> LazyStore:
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
