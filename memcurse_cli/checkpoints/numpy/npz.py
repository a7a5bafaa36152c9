"""NumPy's .npz: a zip archive of arrays, each read by itself and none unpickled."""

from __future__ import annotations

from memcurse_cli.checkpoints.lazy import LazyStore
from memcurse_cli.checkpoints.numpy.npy import SUFFIX, arrays_of
from memcurse_cli.checkpoints.untrusted.archive import Archive, first_member, member_names
from memcurse_cli.checkpoints.untrusted.source import File


class Npz:
    """One .npz archive."""

    name = "NumPy .npz"
    extensions = (".npz",)
    recognised_by = "a zip archive whose members are .npy arrays"

    def recognises(self, head: bytes, file: File) -> bool:
        """An archive of which some member is an array."""
        if first_member(head).endswith(SUFFIX):
            return True
        return any(name.endswith(SUFFIX) for name in member_names(head, file))

    def open(self, file: File) -> LazyStore:
        """Read every member's header."""
        archive = Archive(file)
        members = {
            name.removesuffix(SUFFIX): _Member(archive, name)
            for name in archive.names
            if name.endswith(SUFFIX)
        }
        tensors, notes = arrays_of(members, file.path)
        return LazyStore(
            path=file.path,
            format=self.name,
            bytes=file.size,
            tensors=tensors,
            notes=notes,
            resources=[file],
        )


class _Member:
    """One member of an archive as bytes that are read by range."""

    def __init__(self, archive: Archive, name: str) -> None:
        self._archive, self._name = archive, name
        self.size = archive.size(name)

    def read(self, offset: int, length: int) -> bytes | bytearray:
        return self._archive.read(self._name, offset, length)
