"""Where the commands of the contract run."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A working directory that holds a short series and no settings."""
    path = tmp_path_factory.mktemp("contract")
    (path / "noise.csv").write_text("\n".join(str((7 * k) % 11) for k in range(60)))
    return path
