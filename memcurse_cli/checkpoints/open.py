"""Open a checkpoint: a file by its content, a directory by what lies in it."""

from __future__ import annotations

import os
import stat
from urllib.parse import urlsplit

from memcurse_cli.checkpoints.lazy import LazyStore
from memcurse_cli.checkpoints.model_config import read_model_config
from memcurse_cli.checkpoints.registry import FORMATS, open_known
from memcurse_cli.checkpoints.rewrites import REWRITES
from memcurse_cli.checkpoints.untrusted.names import is_url, printable, shown_place
from memcurse_cli.checkpoints.untrusted.source import File, LocalDirectory, LocalFile, unreadable
from memcurse_cli.errors import CheckpointError

INDEX_SUFFIX = ".index"  # of TensorFlow, which calls a checkpoint by what its files have in common


def open_checkpoint(path: str | os.PathLike[str]) -> LazyStore:
    """Open the checkpoint at ``path`` and read its headers.

    A file's format is told by its content, never by its extension. Nothing that the checkpoint
    holds is executed, and no file outside ``path`` is read, except a shard that an index names and
    the config.json of weights in a directory of Hugging Face's, both beside ``path``.

    Args:
        path: a file, a directory that holds one checkpoint, or the index of its shards; or the
            URL of one, of which no more is fetched than the headers and what is read later.

    Raises:
        CheckpointError: the file is missing, damaged, unsafe to open, or not a checkpoint.
    """
    if is_url(path):
        return _open_url(os.fspath(path))
    try:
        is_directory = stat.S_ISDIR(os.stat(path).st_mode)
    except (OSError, ValueError) as error:
        index = f"{os.fspath(path)}{INDEX_SUFFIX}"
        if isinstance(error, FileNotFoundError) and os.path.isfile(index):
            return open_file(LocalFile(index))
        raise unreadable(shown_place(path, 200), error) from error
    return _open_directory(path) if is_directory else open_file(LocalFile(path))


def _open_directory(path: str | os.PathLike[str]) -> LazyStore:
    from memcurse_cli.checkpoints.directory import candidates, choose_file, chosen_note
    from memcurse_cli.checkpoints.numpy.npy import array_names, open_arrays

    directory = LocalDirectory(path)
    if array_names(directory) and not candidates(directory, FORMATS):
        return _finished(open_arrays(directory))
    name = choose_file(directory, FORMATS)
    store = open_file(directory.open(name))
    store.path = directory.path
    store.notes += chosen_note(directory, name)
    return store


def _open_url(url: str) -> LazyStore:
    from memcurse_cli.checkpoints.directory import choose_file
    from memcurse_cli.checkpoints.remote import RemoteDirectory, open_remote

    try:
        found = open_remote(url)
    except CheckpointError as error:
        if not isinstance(error.__cause__, FileNotFoundError) or urlsplit(url).query:
            raise
        try:
            found = open_remote(f"{url}{INDEX_SUFFIX}")
        except CheckpointError:
            raise error from error.__cause__
    if isinstance(found, RemoteDirectory):
        store = open_file(found.open(choose_file(found, FORMATS)))
        store.path = found.path
    else:
        store = open_file(found)
    store.transfer = found.transfer
    return store


def open_file(file: File, *, weights: bool = True) -> LazyStore:
    """Open a file in the format that recognises it; the store then owns the file.

    Args:
        file: the file.
        weights: whether a file without weights, as one of an optimiser's state, is refused.

    Raises:
        CheckpointError: no format recognises it, or it is damaged or hostile.
    """
    try:
        store = open_known(file)
        if store is None:
            from memcurse_cli.checkpoints.unknown import unknown_file

            raise unknown_file(file, FORMATS)
        store.config, notes = read_model_config(file)
        store = _finished(store, weights=weights)
        store.notes += tuple(map(printable, notes))
        return store
    except BaseException as error:
        file.close()
        if isinstance(error, MemoryError):
            raise CheckpointError(
                "its headers need more memory than there is",
                where=file.path,
                remedy="the file is probably corrupt: copy or download it again",
            ) from error
        raise


def _finished(store: LazyStore, *, weights: bool = True) -> LazyStore:
    """The store after every rewrite, which must hold a weight where ``weights`` says so."""
    if weights and not store.tensors:
        why = f" ({'; '.join(store.notes)})" if store.notes else ""
        raise CheckpointError(
            f"the file holds no weights{why}",
            where=store.path,
            remedy="name the file that the model itself was saved to",
        )
    for rewrite in REWRITES:
        store = rewrite(store)
    return store
