"""Weights saved with numpy.save, one file each: a .npy file alone, or a directory of them."""

from __future__ import annotations

from memcurse_cli.checkpoints.data_file import DataFile
from memcurse_cli.checkpoints.lazy import LazyStore
from memcurse_cli.checkpoints.npy import SUFFIX, arrays_of
from memcurse_cli.checkpoints.source import File, LocalDirectory
from memcurse_cli.errors import CheckpointError

MAGIC = b"\x93NUMPY"
MAX_FILES = 10_000


class NpyFiles:
    """One .npy array."""

    name = "NumPy .npy"
    # A directory of arrays is one checkpoint, so that the suffix does not choose one of them.
    extensions = ()
    recognised_by = "a .npy header; a directory of such files is read as one checkpoint"

    def recognises(self, head: bytes, file: File) -> bool:
        """The first six bytes."""
        return head.startswith(MAGIC)

    def open(self, file: File) -> LazyStore:
        """Read the header; the array is named after the file."""
        name = file.path.rpartition("/")[2].removesuffix(SUFFIX) or "array"
        tensors, notes = arrays_of({name: file}, file.path)
        return LazyStore(
            path=file.path,
            format=self.name,
            bytes=file.size,
            tensors=tensors,
            notes=notes,
            resources=[file],
        )


def array_names(directory: LocalDirectory) -> list[str]:
    """The .npy files of a directory."""
    return [name for name in directory.files() if name.endswith(SUFFIX)]


def open_arrays(directory: LocalDirectory) -> LazyStore:
    """Every .npy file of a directory, named after its file.

    Raises:
        CheckpointError: there are too many, one is damaged, or a link leads outside.
    """
    names = array_names(directory)
    if len(names) > MAX_FILES:
        raise CheckpointError(
            f"the directory has {len(names)} arrays, more than {MAX_FILES}",
            where=directory.path,
            remedy="save them in one .npz file",
        )
    files = {name.removesuffix(SUFFIX): DataFile(directory, name) for name in names}
    tensors, notes = arrays_of(files, directory.path)
    return LazyStore(
        path=directory.path,
        format=NpyFiles.name,
        bytes=sum(file.size for file in files.values()),
        tensors=tensors,
        notes=notes,
    )
