"""Open a checkpoint: a file by its content, a directory by what lies in it."""

from __future__ import annotations

import os
import stat
from urllib.parse import urlsplit

from memcurse_cli.checkpoints.directory import candidates, choose_file
from memcurse_cli.checkpoints.lazy import LazyStore
from memcurse_cli.checkpoints.model_config import read_model_config
from memcurse_cli.checkpoints.numpy.npy import array_names, open_arrays
from memcurse_cli.checkpoints.registry import FORMATS
from memcurse_cli.checkpoints.remote import RemoteDirectory, is_url, open_remote
from memcurse_cli.checkpoints.tensorflow.folder import INDEX_SUFFIX, chosen_note
from memcurse_cli.checkpoints.unknown import unknown_file
from memcurse_cli.checkpoints.untrusted.names import printable, shown_place
from memcurse_cli.checkpoints.untrusted.source import (
    HEAD_BYTES,
    File,
    LocalDirectory,
    LocalFile,
    unreadable,
)
from memcurse_cli.errors import CheckpointError


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
        return _open_url(path)
    shown = shown_place(path, 200)
    try:
        is_directory = stat.S_ISDIR(os.stat(path).st_mode)
    except (OSError, ValueError) as error:
        # TensorFlow calls a checkpoint by what its files' names have in common.
        index = f"{os.fspath(path)}{INDEX_SUFFIX}"
        if isinstance(error, FileNotFoundError) and os.path.isfile(index):
            return open_file(LocalFile(index))
        raise unreadable(shown, error) from error
    if not is_directory:
        return open_file(LocalFile(path))
    directory = LocalDirectory(path)
    if array_names(directory) and not candidates(directory, FORMATS):
        return _with_weights(open_arrays(directory))
    name = choose_file(directory, FORMATS)
    store = open_file(directory.open(name))
    store.path = shown
    store.notes += chosen_note(directory, name)
    return store


def _open_url(url: str | os.PathLike[str]) -> LazyStore:
    try:
        found = open_remote(os.fspath(url))
    except CheckpointError as error:
        if not isinstance(error.__cause__, FileNotFoundError) or urlsplit(str(url)).query:
            raise
        try:
            found = open_remote(f"{os.fspath(url)}{INDEX_SUFFIX}")
        except CheckpointError:
            raise error from error.__cause__
    if isinstance(found, RemoteDirectory):
        store = open_file(found.open(choose_file(found, FORMATS)))
        store.path = found.path
    else:
        store = open_file(found)
    store.transfer = found.transfer
    return store


def _with_weights(store: LazyStore) -> LazyStore:
    if store.tensors:
        return store
    why = f" ({'; '.join(store.notes)})" if store.notes else ""
    raise CheckpointError(
        f"the file holds no weights{why}",
        where=store.path,
        remedy="name the file that the model itself was saved to",
    )


def open_file(file: File, *, weights: bool = True) -> LazyStore:
    """Open a file in the format that recognises it; the store then owns the file.

    Args:
        file: the file.
        weights: whether a file without weights, as one of an optimiser's state, is refused.

    Raises:
        CheckpointError: no format recognises it, or it is damaged or hostile.
    """
    try:
        head = bytes(file.read(0, min(HEAD_BYTES, file.size)))
        for format in FORMATS:
            if format.recognises(head, file):
                store = format.open(file)
                if weights:
                    _with_weights(store)
                store.config, notes = read_model_config(file)
                store.notes += tuple(map(printable, notes))
                return store
        raise unknown_file(head, file, FORMATS)
    except BaseException as error:
        file.close()
        if isinstance(error, MemoryError):
            raise CheckpointError(
                "its headers need more memory than there is",
                where=file.path,
                remedy="the file is probably corrupt: copy or download it again",
            ) from error
        raise
