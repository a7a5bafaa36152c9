"""Which checkpoints a training run consists of, and the optimizer step of each."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from msgspec import Struct

from memcurse_cli.checkpoints.npy import array_names
from memcurse_cli.checkpoints.open import (
    CONVENTIONAL_NAMES,
    INDEX_SUFFIXES,
    TRAINER_FILES,
    choose_file,
    open_checkpoint,
    trainer_state,
)
from memcurse_cli.checkpoints.optimizer import number
from memcurse_cli.checkpoints.registry import FORMATS
from memcurse_cli.checkpoints.store import TensorStore
from memcurse_cli.checkpoints.torch.pickled_tensors import PickledArray
from memcurse_cli.checkpoints.untrusted.names import is_url, printable, shown_place
from memcurse_cli.checkpoints.untrusted.source import LocalDirectory, matching, unreadable
from memcurse_cli.errors import CheckpointError, UsageError
from memcurse_cli.schema.derived import StepSource

# In the names of directories that a trainer still writes.
UNFINISHED = ("tmp-", ".tmp", ".orbax-checkpoint-tmp")
# What trainers call it: Lightning and Megatron, nanoGPT, DeepSpeed, and most scripts ``step``.
KEYS = ("global_step", "step", "iteration", "iter_num", "global_steps")
ORBAX_ITEM = "default"  # the folder that Orbax keeps the arrays of a step in
MOST = 2**63 - 1

EXTENSIONS = re.compile(r"(\.[A-Za-z][A-Za-z0-9]*)+$")
SHARD = re.compile(r"-\d+-of-\d+$")
STEP_BEFORE = re.compile(
    r"(?i)(?<![a-z])(?:global[-_]?)?(?:steps?|iter(?:ation)?s?|updates?)[-_=.]?(\d+)"
)
STEP_AFTER = re.compile(r"(?i)(?<![\d.])(\d+)[-_]?(?:steps?|iter(?:ation)?s?|updates?)(?![a-z])")
CHECKPOINT = re.compile(r"(?i)(?<![a-z])(?:checkpoint|ckpt|chkpt)[-_=.]?(\d+)")
EPOCH = re.compile(r"(?i)(?<![a-z])epoch[-_=.]?(\d+)")
TRAILING = re.compile(r"(?<![\d.])(\d+)$")
IN_DIRECTORY = (STEP_BEFORE, STEP_AFTER, CHECKPOINT)
PATTERNS = (*IN_DIRECTORY, EPOCH, TRAILING)


def find_checkpoints(given: Sequence[str], *, waiting: bool = False) -> list[str]:
    """The checkpoints that some paths and globs name, each once.

    A directory that is one checkpoint stands for itself. Any other stands for the checkpoints in it
    that have a step in their names, files as well as directories; or, where no name has one, for
    all of its files. In a glob ``**`` crosses directories.
    Raises CheckpointError: a path does not exist, or nothing is found and ``waiting`` is not set,
    as it is for a run that has no checkpoint yet.
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
    for path in matching(given):
        if is_url(path):
            yield path
        elif not os.path.lexists(path):
            if not waiting:
                raise unreadable(shown_place(path), FileNotFoundError(2, "no such file"))
        elif not os.path.isdir(path):
            yield path
        else:
            try:
                directory = LocalDirectory(path)
            except CheckpointError:
                if waiting and not os.path.isdir(path):  # it has been deleted since
                    continue
                raise
            yield from _in_directory(Path(path), directory)


def _in_directory(path: Path, directory: LocalDirectory) -> Iterator[str]:
    folders = list(_folders(path, directory.names))
    files = list(_files(directory))
    # One checkpoint may be laid out as the directory, which then holds no others.
    laid_out = array_names(directory) or any(
        name in CONVENTIONAL_NAMES or name.endswith(INDEX_SUFFIXES) for name in directory.names
    )
    if not folders and (laid_out or not files) and is_checkpoint(path):
        yield str(path)
        return
    numbered = [name for name in files if step_in_name(name) is not None]
    yield from folders
    yield from (str(path / name) for name in numbered or ([] if folders else files))


def _folders(path: Path, names: Sequence[str]) -> Iterator[str]:
    """The subdirectories that are checkpoints with a step in their names."""
    for name in names:
        if any(mark in name for mark in UNFINISHED) or step_in_directory(name) is None:
            continue
        for folder in (path / name, path / name / ORBAX_ITEM):
            if folder.is_dir() and is_checkpoint(folder):
                yield str(folder)
                break


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
        if not array_names(directory):
            choose_file(directory)
    except CheckpointError:
        return False
    return True


class FoundStep(Struct, frozen=True):
    """A step, and where it was read."""

    step: int  # the number of optimizer steps
    source: StepSource  # as in `TrackedStep`
    in_name: int | None = None  # the step that the name says, where it says another one


def compile_pattern(text: str | None) -> re.Pattern[str] | None:
    """The regular expression of ``--step-pattern``; raises `UsageError` where it is none."""
    if text is None:
        return None
    try:
        pattern = re.compile(text)
    except (re.error, OverflowError, RecursionError) as error:
        raise UsageError(
            f"{text!r} is not a regular expression: {error}",
            where="--step-pattern",
            remedy=r"for example 'update(\d+)'",
        ) from error
    if pattern.groups > 1:
        raise UsageError(
            f"{text!r} has {pattern.groups} groups",
            where="--step-pattern",
            remedy=r"put the digits into the only group, and write others as (?:...)",
        )
    return pattern


def find_step(path: str, pattern: re.Pattern[str] | None = None) -> FoundStep | None:
    """The step of a checkpoint (a file, a directory or a URL), or None where nothing says it.

    Asked in this order: the pattern, whose group or match holds the digits, and then nothing else;
    what the checkpoint holds; its own name; trainer_state.json beside it; the name of its
    directory. A name counts less than what is inside, since files are renamed.
    """
    place = shown_place(path) if is_url(path) else path  # the digits of a signature are no step
    if pattern is not None:
        return _by_pattern(place, pattern)
    said = step_in_name(place)
    if (stored := _stored(path)) is not None:
        return FoundStep(stored, "metadata", in_name=said if said != stored else None)
    file = Path(place)
    directory = file if file.is_dir() else file.parent
    if said is not None:
        return FoundStep(said, "directory" if directory == file else "name")
    if (trained := _trained(directory)) is not None:
        return FoundStep(trained, "trainer state")
    folder = file.absolute().parent
    if folder.name == ORBAX_ITEM:
        folder = folder.parent
    found = step_in_directory(folder.name)
    return None if found is None else FoundStep(found, "directory")


def step_in_name(path: str) -> int | None:
    """The step that a name says: ``step_1000``, ``epoch=3-step=1200``, ``checkpoint-500``, ``7``.

    The last number of the first of `PATTERNS` that is in it.
    """
    name = os.path.basename(os.path.normpath(path))
    if name.startswith("."):
        return None
    stem = SHARD.sub("", EXTENSIONS.sub("", name))
    return _last_number(stem, PATTERNS)


def step_in_directory(name: str) -> int | None:
    """The same of a directory that holds a checkpoint; of ``experiment_42`` it is None."""
    return _bounded(int(name)) if name.isdecimal() else _last_number(name, IN_DIRECTORY)


def _last_number(text: str, patterns: Sequence[re.Pattern[str]]) -> int | None:
    """What the first pattern that is in a text finds last."""
    for pattern in patterns:
        if found := pattern.findall(text):
            return _bounded(int(found[-1]))
    return None


def _by_pattern(path: str, pattern: re.Pattern[str]) -> FoundStep | None:
    matches = list(pattern.finditer(path))
    if not matches:
        return None
    found = matches[-1]
    text = found[1] if pattern.groups else found[0]
    if not pattern.groups and (digits := re.search(r"\d+", text)) is not None:
        text = digits[0]
    if text is None or not text.isdecimal():
        raise UsageError(
            f"finds {printable(str(text), 40)!r} in {shown_place(path)}, which is not a number",
            where="--step-pattern",
            remedy=r"put only the digits into its group, as in 'update(\d+)'",
        )
    step = _bounded(int(text))
    return None if step is None else FoundStep(step, "pattern")


def _stored(path: str) -> int | None:
    """The step that the checkpoint itself holds; one that cannot be opened says none."""
    try:
        with open_checkpoint(path) as store:
            return step_in_store(store)
    except Exception:  # whatever it is, reading the layers will say it, and only of this one
        return None


def step_in_store(store: TensorStore) -> int | None:
    """The step in a checkpoint's metadata, beside its weights, or among them as a scalar."""
    for key in KEYS:
        text = store.metadata.get(key, "")
        if text.isdecimal():
            return _bounded(int(text))
    contents = store.contents if isinstance(store.contents, Mapping) else {}
    for name in (name for key in KEYS for name in (key, (key,))):
        if (step := _whole(contents.get(name))) is not None:
            return step
    for key in KEYS:
        spec = store.tensors.get(key)
        if spec is not None and math.prod(spec.shape) == 1:
            return _whole(float(store.read(key).reshape(-1)[0].real))
    return None


def _whole(node: object) -> int | None:
    value = number(node.tensor if isinstance(node, PickledArray) else node)
    return _bounded(int(value)) if value is not None and 0 <= value == int(value) else None


def _trained(directory: Path) -> int | None:
    try:
        return _whole(trainer_state(LocalDirectory(directory)).get("global_step"))
    except CheckpointError:  # it has too many files to be listed
        return None


def _bounded(step: int) -> int | None:
    return step if step <= MOST else None
