"""Open a checkpoint: a file by its content, a directory by what lies in it."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

from memcurse_cli.checkpoints.registry import FORMATS, HEAD_BYTES, Format, open_known
from memcurse_cli.checkpoints.rewrites import REWRITES
from memcurse_cli.checkpoints.store import TensorStore
from memcurse_cli.checkpoints.untrusted.names import is_url, parse_object, printable, shown_place
from memcurse_cli.checkpoints.untrusted.source import File, LocalDirectory, LocalFile, unreadable
from memcurse_cli.errors import CheckpointError

CONFIG_NAME = "config.json"
MAX_CONFIG_BYTES = 1_000_000

# The names that `save_pretrained` gives to weights, whole or in shards.
_WEIGHTS = ("model", "pytorch_model")
_ENDINGS = (".safetensors", ".bin", ".safetensors.index.json", ".bin.index.json")


def read_model_config(weights: File) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The configuration beside weights that have one of Hugging Face's names.

    It only adds to what the tensors say, so that nothing in it can keep the weights from being
    read: one that is not what it should be is left out, and a note says so.

    Returns:
        The JSON object, empty where there is none; and notes.
    """
    name = weights.path.replace("\\", "/").rpartition("/")[2]
    stem = name.partition(".")[0].partition("-")[0]
    if stem not in _WEIGHTS or not name.endswith(_ENDINGS):
        return {}, ()
    try:
        file = weights.directory().open(CONFIG_NAME)
    except CheckpointError as error:
        if isinstance(error.__cause__, FileNotFoundError):
            return {}, ()
        return {}, (_left_out(error.what),)
    try:
        if file.size > MAX_CONFIG_BYTES:
            return {}, (_left_out(f"it has {file.size} bytes, more than {MAX_CONFIG_BYTES}"),)
        # transformers before version 5 writes an open limit as Infinity, which JSON has not.
        return parse_object(bytes(file.read(0, file.size)), infinity=True), ()
    except (ValueError, CheckpointError) as error:
        return {}, (_left_out(error.what if isinstance(error, CheckpointError) else str(error)),)
    finally:
        file.close()


def _left_out(reason: str) -> str:
    return f"{CONFIG_NAME} beside the weights is not read: {reason}"


GIT_LFS = b"version https://git-lfs.github.com/spec/"


def unknown_file(file: File, formats: Sequence[Format]) -> CheckpointError:
    """The error that says what the file is instead, and what to do."""
    head = bytes(file.read(0, min(HEAD_BYTES, file.size)))
    if not head:
        return CheckpointError(
            "the file is empty", where=file.path, remedy="copy or download it again"
        )
    if head.startswith(GIT_LFS):
        return CheckpointError(
            "this is a git-LFS pointer, not the file that it stands for",
            where=file.path,
            remedy="run `git lfs pull` in its repository",
        )
    if head.lstrip().lower().startswith((b"<!doctype html", b"<html")):
        return CheckpointError(
            "this is a web page saved under a checkpoint's name",
            where=file.path,
            remedy="download the file itself: log in if it is private, and use the raw link",
        )
    elements = re.search(r"\.data-\d{5}-of-\d{5}$", file.path)
    if elements is not None:
        return CheckpointError(
            "these are the elements of a TensorFlow checkpoint without their names",
            where=file.path,
            remedy=f"give {file.path[: elements.start()].rpartition('/')[2]}.index beside it",
        )
    if not head.strip(b"\0"):
        return CheckpointError(
            f"its first {len(head)} bytes are zero, as in a file whose writing was cut short",
            where=file.path,
            remedy="copy or download it again",
        )
    names = ", ".join(format.name for format in formats)
    return CheckpointError(
        f"this is not a format that memcurse reads; its first bytes are {shown_bytes(head)}",
        where=file.path,
        remedy=f"it reads {names}",
    )


def shown_bytes(head: bytes) -> str:
    """The first bytes, as text where they are text and in hexadecimal where not."""
    start = head[:16]
    if start.isascii() and start.decode("ascii").isprintable():
        return f'"{printable(start.decode("ascii"))}"'
    return start[:8].hex(" ")


INDEX_SUFFIX = ".index"  # of TensorFlow, which calls a checkpoint by what its files have in common


def open_checkpoint(path: str | os.PathLike[str]) -> TensorStore:
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


def _open_directory(path: str | os.PathLike[str]) -> TensorStore:
    from memcurse_cli.checkpoints.directory import candidates, choose_file, chosen_note
    from memcurse_cli.checkpoints.npy import array_names, open_arrays

    directory = LocalDirectory(path)
    if array_names(directory) and not candidates(directory, FORMATS):
        return _finished(open_arrays(directory))
    name = choose_file(directory, FORMATS)
    store = open_file(directory.open(name))
    store.path = directory.path
    store.notes += chosen_note(directory, name)
    return store


def _open_url(url: str) -> TensorStore:
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


def open_file(file: File, *, weights: bool = True) -> TensorStore:
    """Open a file in the format that recognises it; the store then owns the file.

    Args:
        file: the file.
        weights: whether a file without weights, as one of an optimiser's state, is refused.
    """
    try:
        store = open_known(file)
        if store is None:
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


def _finished(store: TensorStore, *, weights: bool = True) -> TensorStore:
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
