"""Which checkpoints a training run consists of: globs, files, directories of either."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from memcurse_cli.checkpoints.directory import (
    CONVENTIONAL_NAMES,
    INDEX_SUFFIXES,
    TRAINER_FILES,
    choose_file,
)
from memcurse_cli.checkpoints.numpy.npy import array_names
from memcurse_cli.checkpoints.registry import FORMATS
from memcurse_cli.checkpoints.untrusted.names import is_url, shown_place
from memcurse_cli.checkpoints.untrusted.source import LocalDirectory, unreadable
from memcurse_cli.errors import CheckpointError
from memcurse_cli.tracking.steps import ORBAX_ITEM, SHARD, step_in_directory, step_in_name

UNFINISHED = ("tmp-", ".tmp", ".orbax-checkpoint-tmp")
"""In the names of directories that a trainer still writes."""


def find_checkpoints(given: Sequence[str], *, waiting: bool = False) -> list[str]:
    """The checkpoints that some paths and globs name, each once.

    A directory that is one checkpoint stands for itself. Any other stands for the checkpoints in
    it that have a step in their names, files as well as directories; or, where no name has one,
    for all of its files.

    Args:
        given: paths, glob patterns (``**`` crosses directories) and URLs.
        waiting: whether a run that has no checkpoint yet is fine.

    Raises:
        CheckpointError: a path does not exist, or nothing is found.
    """
    found: dict[str, str] = {}
    for one in given:
        paths = list(_expand(one, waiting=waiting))
        if not paths and not waiting:
            raise CheckpointError(
                "no checkpoint matches",
                where=shown_place(one),
                remedy="give files, a directory of checkpoints, or a quoted glob",
            )
        for path in paths:
            found.setdefault(path if is_url(path) else os.path.abspath(path), path)
    return list(found.values())


def _expand(given: str, *, waiting: bool) -> Iterator[str]:
    if is_url(given):
        yield given
    elif os.path.lexists(given):
        yield from _one(given, waiting=waiting)
    elif glob.has_magic(given):
        for path in sorted(glob.iglob(given, recursive=True)):
            yield from _one(path, waiting=waiting)
    elif not waiting:
        raise unreadable(shown_place(given), FileNotFoundError(2, "no such file"))


def _one(path: str, *, waiting: bool) -> Iterator[str]:
    if not os.path.isdir(path):
        yield path
        return
    try:
        directory = LocalDirectory(path)
    except CheckpointError:
        if waiting and not os.path.isdir(path):  # it has been deleted since
            return
        raise
    yield from _in_directory(Path(path), directory)


def _in_directory(path: Path, directory: LocalDirectory) -> Iterator[str]:
    folders = list(_folders(path, directory.names))
    files = list(_files(directory))
    if not folders and ((is_checkpoint(path) and _is_conventional(directory)) or not files):
        if is_checkpoint(path):
            yield str(path)
        return
    numbered = [name for name in files if step_in_name(name) is not None]
    yield from folders
    yield from (str(path / name) for name in numbered or ([] if folders else files))


def _is_conventional(directory: LocalDirectory) -> bool:
    """Whether the directory is laid out as one checkpoint, rather than holding one."""
    if any(name in directory.names for name in CONVENTIONAL_NAMES) or array_names(directory):
        return True
    return any(name.endswith(INDEX_SUFFIXES) for name in directory.names)


def _folders(path: Path, names: Sequence[str]) -> Iterator[str]:
    """The subdirectories that are checkpoints with a step in their names."""
    for name in names:
        folder = path / name
        if any(mark in name for mark in UNFINISHED) or step_in_directory(name) is None:
            continue
        if not folder.is_dir():
            continue
        if is_checkpoint(folder):
            yield str(folder)
        elif (folder / ORBAX_ITEM).is_dir() and is_checkpoint(folder / ORBAX_ITEM):
            yield str(folder / ORBAX_ITEM)


def _files(directory: LocalDirectory) -> Iterator[str]:
    """The files that may be checkpoints by themselves."""
    extensions = tuple(extension for format in FORMATS for extension in format.extensions)
    for name in directory.files():
        lower = name.lower()
        if lower.endswith(INDEX_SUFFIXES) or not lower.endswith(extensions):
            continue
        if not name.startswith(TRAINER_FILES) and not SHARD.search(name.partition(".")[0]):
            yield name


def is_checkpoint(path: Path) -> bool:
    """Whether a directory holds exactly one checkpoint."""
    try:
        directory = LocalDirectory(path)
        if array_names(directory):
            return True
        choose_file(directory, FORMATS)
    except CheckpointError:
        return False
    return True
