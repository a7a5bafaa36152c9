"""Which file of a directory is the checkpoint, and which files a pattern names."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Sequence
from pathlib import PurePath

from memcurse_cli.checkpoints.registry import Format
from memcurse_cli.checkpoints.untrusted.names import is_url, printable
from memcurse_cli.checkpoints.untrusted.source import Directory, LocalDirectory
from memcurse_cli.errors import CheckpointError

# In the order in which transformers looks for them; then what Orbax and DCP write.
CONVENTIONAL_NAMES = (
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
    "_METADATA",
    "_CHECKPOINT_METADATA",
    "manifest.ocdbt",
    ".metadata",
)
# Where HF Trainer keeps each of its checkpoints.
_TRAINER_FOLDER = re.compile(r"checkpoint-\d{1,12}")
# Files that a trainer writes beside the weights.
TRAINER_FILES = (
    "optimizer.",
    "scheduler.",
    "training_args.",
    "rng_state",
    "random_states",
    "scaler.",
)
INDEX_SUFFIXES = (".index.json", ".weights.json")

# TensorFlow: the index of a checkpoint, and the file that names the latest of several.
TENSORFLOW_INDEX, TENSORFLOW_STATE = ".index", "checkpoint"
SAVED_MODEL, SAVED_VARIABLES = "saved_model.pb", "variables/variables.index"
_TENSORFLOW_LATEST = re.compile(r'^model_checkpoint_path:\s*"([^"\\]*)"', re.MULTILINE)
# DeepSpeed: a folder for each step, the file that names the latest, and in each folder a file for
# each rank, of whole weights (ZeRO stages 0 to 2), pieces of them (stage 3) or single layers.
DEEPSPEED_OPTIMIZER = "_optim_states.pt"
DEEPSPEED_LATEST = "latest"
_WEIGHTS = re.compile(r"mp_rank_\d+_model_states\.pt")
_PARTITIONED = re.compile(r"zero_pp_rank_\d+_mp_rank_\d+_model_states\.pt")
_LAYER = re.compile(r"layer_\d+-model_\d+-model_states\.pt")
_STEP = re.compile(r"global_step\d+")
MERGE = "run the zero_to_fp32.py that DeepSpeed left beside the folder, and name what it writes"
# Bounds what is read of a file that names the latest checkpoint.
MAX_STATE_BYTES = 1 << 20


def matching(path: str) -> list[str]:
    """What a path names: itself, or what matches a glob pattern, sorted, which may be nothing.

    A URL is no pattern, nor is what exists, whatever its name. Of ``**`` the folders are left out
    that hold another match, through which it only led.
    """
    if is_url(path) or os.path.lexists(path) or not glob.has_magic(path):
        return [path]
    found = sorted(set(glob.iglob(path, recursive=True)))
    crossed = {folder for one in found for folder in PurePath(one).parents}
    return [one for one in found if PurePath(one) not in crossed]


def choose_file(directory: Directory, formats: Sequence[Format]) -> str:
    """The name of the one checkpoint in the directory.

    That is a file with a conventional name, else DeepSpeed's, else the only index of shards, else
    the only file with a known extension that is not a trainer's, else that of the only step of a
    manager.

    Raises:
        CheckpointError: the directory holds no checkpoint, or more than one.
    """
    found = candidates(directory, formats)
    if len(found) == 1:
        return found[0]
    if not found:
        saved = [name for name in directory.names if _TRAINER_FOLDER.fullmatch(name)]
        if saved:
            raise CheckpointError(
                "the directory has no checkpoint of its own",
                where=directory.path,
                remedy=f"name one of its folders, as {max(saved, key=_step)}",
            )
        extensions = sorted({extension for format in formats for extension in format.extensions})
        raise CheckpointError(
            "the directory has no checkpoint",
            where=directory.path,
            remedy=f"looked for {', '.join(CONVENTIONAL_NAMES)}, "
            f"or one file ending in {', '.join(extensions)}",
        )
    listed = ", ".join(printable(name, 60) for name in found[:4])
    raise CheckpointError(
        f"the directory has {len(found)} checkpoints: {listed}{', …' if len(found) > 4 else ''}",
        where=directory.path,
        remedy="name the one to read",
    )


def _step(folder: str) -> int:
    return int(folder.rpartition("-")[2])


def candidates(directory: Directory, formats: Sequence[Format]) -> list[str]:
    """The files that `choose_file` finds equally good."""
    names = [name for name in directory.files() if not name.startswith(TRAINER_FILES)]
    for name in CONVENTIONAL_NAMES:
        if name in names or (name.startswith(".") and name in directory.names):
            return [name]
    split = _deepspeed(directory) or _saved_model(directory)
    if split:
        return split
    names = [name for name in names if not name.endswith(DEEPSPEED_OPTIMIZER)]
    extensions = tuple(extension for format in formats for extension in format.extensions)
    found = [name for name in names if name.endswith(INDEX_SUFFIXES)] or [
        name for name in names if name.lower().endswith(extensions)
    ]
    if len(found) > 1:
        found = _latest_of_tensorflow(directory, found)
    return found or _steps(directory)


def _steps(directory: Directory) -> list[str]:
    """The metadata of the steps that Orbax's CheckpointManager has numbered."""
    found = []
    for step in directory.names:
        for name in (f"{step}/_CHECKPOINT_METADATA", f"{step}/default/_METADATA"):
            if step.isdecimal() and holds(directory, name):
                found.append(name)
                break
    return found


def holds(directory: Directory, name: str) -> bool:
    """Whether the directory has this file, and no link leads outside on the way to it."""
    if not isinstance(directory, LocalDirectory):
        return name in directory.names
    try:
        return directory.locate(name).is_file()
    except CheckpointError:
        return False


def _deepspeed(directory: Directory) -> list[str]:
    """The file of weights in a folder of one step or of several; none where it is neither.

    Of several steps it is the one that the file ``latest`` names, else all are equally good.
    """
    found = _of_deepspeed_step(directory)
    if found or not isinstance(directory, LocalDirectory):
        return found
    steps = [name for name in directory.names if _STEP.fullmatch(name)]
    latest = ""
    if DEEPSPEED_LATEST in directory.names:
        latest = _text(directory, DEEPSPEED_LATEST).strip()
    inside: list[str] = []
    for step in [latest] if latest in directory.names and latest else steps:
        if directory.locate(step).is_dir():
            inside += [f"{step}/{name}" for name in _of_deepspeed_step(directory.inside(step))]
    return inside


def _of_deepspeed_step(directory: Directory) -> list[str]:
    names = list(directory.files())
    found = [name for name in names if _WEIGHTS.fullmatch(name)]
    if len(found) > 1:
        raise CheckpointError(
            f"its matrices are split over {len(found)} ranks (tensor parallel)",
            where=directory.path,
            remedy=f"merge them with the framework that trained it, or name one, such as "
            f"{found[0]}, to read its part alone",
        )
    partitioned = [name for name in names if _PARTITIONED.fullmatch(name)]
    if partitioned and not found:
        raise CheckpointError(
            f"DeepSpeed (ZeRO stage 3) keeps its parameters in pieces, in {len(partitioned)} files",
            where=directory.path,
            remedy=MERGE,
        )
    layers = [name for name in names if _LAYER.fullmatch(name)]
    if found and layers:
        raise CheckpointError(
            f"its layers lie in {len(layers)} files of their own (pipeline parallel)",
            where=directory.path,
            remedy=f"name the one of a recurrent layer, such as {layers[0]}",
        )
    return found


def _saved_model(directory: Directory) -> list[str]:
    """The index of a SavedModel's variables, where the folder is one."""
    if SAVED_MODEL not in directory.names:
        return []
    if not isinstance(directory, LocalDirectory):
        return [SAVED_VARIABLES] if "variables" in directory.names else []
    try:
        return [SAVED_VARIABLES] if directory.locate(SAVED_VARIABLES).is_file() else []
    except CheckpointError as error:
        if isinstance(error.__cause__, FileNotFoundError | NotADirectoryError):
            return []
        raise


def _latest_of_tensorflow(directory: Directory, found: list[str]) -> list[str]:
    """Of several indexes the one that the file ``checkpoint`` names; all where it names none.

    The path in it may be that of another machine: its last part counts.
    """
    if TENSORFLOW_STATE not in directory.names or not all(
        name.endswith(TENSORFLOW_INDEX) for name in found
    ):
        return found
    named = _TENSORFLOW_LATEST.search(_text(directory, TENSORFLOW_STATE))
    index = f"{named[1].rpartition('/')[2]}{TENSORFLOW_INDEX}" if named else ""
    return [index] if index in found else found


def chosen_note(directory: Directory, name: str) -> tuple[str, ...]:
    """What to say of a checkpoint that was taken out of several of a training folder."""
    others = [
        other for other in directory.names if other.endswith(TENSORFLOW_INDEX) and other != name
    ]
    if not name.endswith(TENSORFLOW_INDEX) or "/" in name or not others:
        return ()
    return (f"of {len(others) + 1} checkpoints {name} was read, which the file checkpoint names",)


def _text(directory: Directory, name: str) -> str:
    file = directory.open(name)
    try:
        return bytes(file.read(0, min(file.size, MAX_STATE_BYTES))).decode("utf-8", "replace")
    finally:
        file.close()
