"""Every command that README.md shows runs, and prints what README.md says it prints.

`MEMCURSE_UPDATE_README=1 pytest tests/end_to_end/test_readme.py` writes today's output into it.
"""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest
from end_to_end.command import MEMCURSE, ROOT

README = ROOT / "README.md"
BLOCK = re.compile(r"```console\n\$ (?P<command>[^\n]+)\n(?P<output>.*?)```", re.DOTALL)
INLINE = re.compile(r"`(memcurse [a-z][^`]*)`")


def blocks() -> list[tuple[str, str]]:
    """The (command, output) pairs of the console blocks."""
    return [(found["command"], found["output"]) for found in BLOCK.finditer(README.read_text())]


def run(command: str, folder: Path) -> str:
    """What a command prints in a copy of the project's root."""
    for name in ("sample_checkpoints",):
        (folder / name).symlink_to(ROOT / name)
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", command],
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=120,
        cwd=folder,
        env={
            **os.environ,
            "PATH": f"{Path(MEMCURSE).parent}:{os.environ['PATH']}",
            "COLUMNS": "80",
            "PYTHONUTF8": "1",
        },
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("command", [command for command, _ in blocks()])
def test_a_command_prints_what_the_readme_shows(command: str, tmp_path: Path) -> None:
    printed = run(command, tmp_path)
    if os.environ.get("MEMCURSE_UPDATE_README"):
        text = README.read_text()
        start = text.index(f"```console\n$ {command}\n") + len(f"```console\n$ {command}\n")
        end = text.index("```", start)
        README.write_text(text[:start] + printed + text[end:])
    shown = dict(blocks())[command]
    assert strip(printed) == strip(shown)


@pytest.mark.parametrize(
    "command",
    sorted({found for found in INLINE.findall(README.read_text()) if found == found.lower()}),
)
def test_a_command_in_the_text_runs(command: str, tmp_path: Path) -> None:
    assert run(command, tmp_path)


def strip(text: str) -> list[str]:
    """Lines without trailing blanks, which editors take away."""
    return [line.rstrip() for line in text.rstrip().splitlines()]


def test_the_first_commands_are_demo_and_test() -> None:
    shown = re.findall(r"^\$? *make (\w+)", README.read_text(), re.MULTILINE)
    assert shown[:2] == ["demo", "test"]
