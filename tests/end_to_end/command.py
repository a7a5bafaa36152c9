"""Run the installed command as a user would, in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SAMPLES = ROOT / "sample_checkpoints"
MEMCURSE = str(Path(sys.executable).parent / "memcurse")


def memcurse(
    *arguments: str | Path,
    environment: Mapping[str, str] | None = None,
    stdin: str | None = None,
    folder: Path = ROOT,
) -> subprocess.CompletedProcess[str]:
    """Run `memcurse` with some arguments; output is captured, so standard output is no terminal."""
    command: Sequence[str] = [MEMCURSE, *map(str, arguments)]
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=120,
        input=stdin,
        cwd=folder,
        env={**os.environ, "COLUMNS": "80", **(environment or {})},
        check=False,
    )


def assert_refused(result: subprocess.CompletedProcess[str], *words: str) -> None:
    """Exit code 2, nothing on standard output, one line with these words on standard error."""
    assert result.returncode == 2, result
    assert result.stdout == ""
    lines = result.stderr.strip().splitlines()
    assert len(lines) == 1, result.stderr
    assert lines[0].startswith("memcurse: error: ")
    for word in words:
        assert word in lines[0], lines[0]
