"""NumPy's .npz: a zip archive of arrays, each read by itself and none unpickled."""

from __future__ import annotations

from memcurse_cli.checkpoints.lazy import LazyStore
from memcurse_cli.checkpoints.numpy.npy import SUFFIX, arrays_of
from memcurse_cli.checkpoints.untrusted.archive import Archive
from memcurse_cli.checkpoints.untrusted.source import File


def open_archive(file: File, archive: Archive) -> LazyStore:
    """Read every member's header."""
    members = {
        name.removesuffix(SUFFIX): archive.member(name)
        for name in archive.names
        if name.endswith(SUFFIX)
    }
    tensors, notes = arrays_of(members, file.path)
    return LazyStore(
        path=file.path, bytes=file.size, tensors=tensors, notes=notes, resources=[file]
    )
