"""The ``config.json`` that Hugging Face keeps beside a model's weights, read as data."""

from __future__ import annotations

from typing import Any

from memcurse_cli.checkpoints.untrusted.json_header import parse_object
from memcurse_cli.checkpoints.untrusted.source import File
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
