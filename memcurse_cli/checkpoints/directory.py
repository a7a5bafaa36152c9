"""Which file of a directory is the checkpoint."""

from __future__ import annotations

import re
from collections.abc import Sequence

from memcurse_cli.checkpoints.format import CheckpointFormat
from memcurse_cli.checkpoints.tensorflow.folder import latest, saved_model
from memcurse_cli.checkpoints.torch.deepspeed import OPTIMIZER_SUFFIX, deepspeed_files
from memcurse_cli.checkpoints.untrusted.names import printable
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


def choose_file(directory: Directory, formats: Sequence[CheckpointFormat]) -> str:
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


def candidates(directory: Directory, formats: Sequence[CheckpointFormat]) -> list[str]:
    """The files that `choose_file` finds equally good."""
    names = [name for name in directory.files() if not name.startswith(TRAINER_FILES)]
    for name in CONVENTIONAL_NAMES:
        if name in names or (name.startswith(".") and name in directory.names):
            return [name]
    split = deepspeed_files(directory) or saved_model(directory)
    if split:
        return split
    names = [name for name in names if not name.endswith(OPTIMIZER_SUFFIX)]
    extensions = tuple(extension for format in formats for extension in format.extensions)
    found = [name for name in names if name.endswith(INDEX_SUFFIXES)] or [
        name for name in names if name.lower().endswith(extensions)
    ]
    if len(found) > 1:
        found = latest(directory, found)
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
