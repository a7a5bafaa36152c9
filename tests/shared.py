"""Where the shared checkpoints with oracles are, if this clone has them beside it."""

from __future__ import annotations

from pathlib import Path

SHARED_DATA = Path(__file__).resolve().parents[2] / "shared" / "data"
REASON = "the checkpoints with oracles (../shared/data) are not part of a clone"


def available() -> bool:
    """Whether the shared checkpoints are there."""
    return SHARED_DATA.is_dir()
