"""The formats that are read, in the order in which they are asked. A new format is one line."""

from __future__ import annotations

from memcurse_cli.checkpoints.format import CheckpointFormat
from memcurse_cli.checkpoints.npz import Npz
from memcurse_cli.checkpoints.safetensors import Safetensors
from memcurse_cli.checkpoints.shards import Shards

FORMATS: tuple[CheckpointFormat, ...] = (
    Safetensors(),
    Npz(),
    Shards([Safetensors()]),
)
