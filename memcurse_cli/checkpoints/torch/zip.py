"""PyTorch's zip files (torch.save since 1.6, and TorchScript): a pickle beside its storages.

The pickle is run as data by `pickle_machine`, so that no file needs torch to be read and none can
run code; the storages are members that are not compressed, and are read by range.
"""

from __future__ import annotations

from memcurse_cli.checkpoints.lazy import LazyStore
from memcurse_cli.checkpoints.torch.deepspeed import deepspeed_weights
from memcurse_cli.checkpoints.torch.pickle_machine import PickleError
from memcurse_cli.checkpoints.torch.pickled_tensors import Storage, storage_type
from memcurse_cli.checkpoints.torch.pickled_tree import machine, tensors_of
from memcurse_cli.checkpoints.tree import texts
from memcurse_cli.checkpoints.untrusted.archive import Archive, first_member, member_names
from memcurse_cli.checkpoints.untrusted.names import printable
from memcurse_cli.checkpoints.untrusted.source import File
from memcurse_cli.errors import CheckpointError

PICKLE = "data.pkl"
MAX_PICKLE_BYTES = 1 << 28
EXPORT = "export its weights with `torch.save(model.state_dict(), 'weights.pt')`"


class PyTorch:
    """One zip file of torch.save or torch.jit.save."""

    name = "PyTorch"
    extensions = (".pt", ".pth", ".bin", ".ckpt", ".tar", ".jit")
    recognised_by = "a zip archive with a data.pkl beside its storages; TorchScript too"

    def recognises(self, head: bytes, file: File) -> bool:
        """An archive with a ``data.pkl`` in its one folder."""
        if first_member(head).endswith(f"/{PICKLE}"):
            return True
        return any(name.endswith(f"/{PICKLE}") for name in member_names(head, file))

    def open(self, file: File) -> LazyStore:
        """Read the archive's directory and its pickle."""
        archive = Archive(file)
        pickles = [name for name in archive.names if name.endswith(f"/{PICKLE}")]
        if not pickles:  # the first member has a name that the archive's directory has not
            raise CheckpointError(
                f"a corrupt zip archive: its directory lists no {PICKLE}",
                where=file.path,
                remedy="copy or download it again",
            )
        root = min(pickles, key=lambda name: name.count("/")).removesuffix(PICKLE)
        container = _Container(archive, root)
        try:
            if container.pickle.size > MAX_PICKLE_BYTES:
                raise PickleError(f"it has {container.pickle.size} bytes")
            loaded = machine(container.pickle, container.persistent).load()
            weights, parts = deepspeed_weights(loaded, file.path)
            tensors, notes = tensors_of(weights)
        except ValueError as error:
            raise CheckpointError(
                f"this PyTorch file cannot be read: {error}",
                where=file.path,
                remedy=f"copy or download it again, or {EXPORT}",
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


class _Member:
    """One member of an archive as bytes that are read by range."""

    def __init__(self, archive: Archive, name: str) -> None:
        self._archive, self._name = archive, name
        self.size = archive.size(name)

    def read(self, offset: int, length: int) -> bytes | bytearray:
        return self._archive.read(self._name, offset, length)


class _Container:
    """The pickle and the storages that lie beside it."""

    def __init__(self, archive: Archive, root: str) -> None:
        self._archive, self._root = archive, root
        self.pickle = _Member(archive, f"{root}{PICKLE}")
        order = f"{root}byteorder"
        self._big_endian = order in archive and bytes(archive.read(order, 0, 3)) == b"big"
        # Tensors that share their elements refer to one storage.
        self._storages: dict[tuple[str, str, int], Storage] = {}

    def persistent(self, identity: object) -> object:
        """The storage that ``('storage', type, key, device, count)`` names."""
        if not isinstance(identity, tuple) or len(identity) < 5 or identity[0] != "storage":
            raise PickleError("it refers to something that is not a storage")
        _, kind, key, _, count = identity[:5]
        if not isinstance(key, str) or type(count) is not int or not 0 <= count < 2**62:
            raise PickleError("it has a malformed storage")
        member = f"{self._root}data/{key}"
        if member not in self._archive:
            raise PickleError(f"the storage {printable(key, 40)} is not in the archive")
        described = (key, storage_type(kind), count)
        storage = self._storages.get(described)
        if storage is None:
            storage = Storage(described[1], count, big_endian=self._big_endian)
            storage.place(_Member(self._archive, member))
            self._storages[described] = storage
        return storage
