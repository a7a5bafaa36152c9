"""Which index of a folder of TensorFlow's is the checkpoint."""

from __future__ import annotations

import re

from memcurse_cli.checkpoints.untrusted.source import Directory, LocalDirectory
from memcurse_cli.errors import CheckpointError

STATE = "checkpoint"
INDEX_SUFFIX = ".index"
SAVED_MODEL, VARIABLES = "saved_model.pb", "variables/variables.index"
MAX_STATE_BYTES = 1 << 20
_LATEST = re.compile(r'^model_checkpoint_path:\s*"([^"\\]*)"', re.MULTILINE)


def saved_model(directory: Directory) -> list[str]:
    """The index of a SavedModel's variables, where the folder is one."""
    if SAVED_MODEL not in directory.names:
        return []
    if not isinstance(directory, LocalDirectory):
        return [VARIABLES] if "variables" in directory.names else []
    try:
        return [VARIABLES] if directory.locate(VARIABLES).is_file() else []
    except CheckpointError as error:
        if isinstance(error.__cause__, FileNotFoundError | NotADirectoryError):
            return []
        raise


def latest(directory: Directory, found: list[str]) -> list[str]:
    """Of several indexes the one that the file ``checkpoint`` names; all where it names none.

    The path in it may be that of another machine: its last part counts.
    """
    if STATE not in directory.names or not all(name.endswith(INDEX_SUFFIX) for name in found):
        return found
    file = directory.open(STATE)
    try:
        text = bytes(file.read(0, min(file.size, MAX_STATE_BYTES))).decode("utf-8", "replace")
    finally:
        file.close()
    named = _LATEST.search(text)
    index = f"{named[1].rpartition('/')[2]}{INDEX_SUFFIX}" if named else ""
    return [index] if index in found else found


def chosen_note(directory: Directory, name: str) -> tuple[str, ...]:
    """What to say of a checkpoint that was taken out of several of a training folder."""
    others = [other for other in directory.names if other.endswith(INDEX_SUFFIX) and other != name]
    if not name.endswith(INDEX_SUFFIX) or "/" in name or not others:
        return ()
    return (f"of {len(others) + 1} checkpoints {name} was read, which the file checkpoint names",)
