"""The formats that are read, in the order in which they are asked. A new format is one line."""

from __future__ import annotations

from memcurse_cli.checkpoints.format import CheckpointFormat
from memcurse_cli.checkpoints.safetensors import Safetensors

FORMATS: tuple[CheckpointFormat, ...] = (Safetensors(),)
