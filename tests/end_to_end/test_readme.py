"""Every command that the READMEs and the pages of docs/ show runs, and prints what they say.

`MEMCURSE_UPDATE_README=1 pytest tests/end_to_end/test_readme.py` writes today's output into them.
"""

from __future__ import annotations

import os
import re
import shlex
import sys
from pathlib import Path

import pytest
from end_to_end.command import ROOT, SAMPLES, memcurse, program, shell

from memcurse_cli import inspect

README = ROOT / "README.md"
PAGES = [README, SAMPLES / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"```console\n\$ (?P<command>[^\n]+)\n(?P<output>.*?)```", re.DOTALL)
PLAIN = re.compile(r"memcurse(?: [\w./:=-]+| '[\w./*-]+')*")
INLINE = re.compile(r"`(memcurse [a-z][^`]*)`")


def blocks(page: Path) -> list[tuple[str, str]]:
    """The (command, output) pairs of the console blocks of a page."""
    return [(found["command"], found["output"]) for found in BLOCK.finditer(page.read_text())]


BLOCKS = [(page, command) for page in PAGES for command, _ in blocks(page)]
TEXT = "".join(page.read_text() for page in PAGES)
NOT_RUN = re.compile(r"\b[A-Z]+\b|memcurse train")  # placeholders; minutes of training
COMMANDS = sorted({found for found in INLINE.findall(TEXT) if not NOT_RUN.search(found)})
PYTHON = re.compile(r"```python\n(.*?)```", re.DOTALL)


def run(command: str, folder: Path) -> str:
    """What a command prints where the samples are; a shell runs what has pipes and the like."""
    (folder / "sample_checkpoints").symlink_to(SAMPLES)
    if PLAIN.fullmatch(command):
        done = memcurse(*shlex.split(command)[1:], folder=folder)
    else:
        done = shell(command, folder)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(
    ("page", "command"), BLOCKS, ids=lambda value: value.name if isinstance(value, Path) else value
)
def test_a_command_prints_what_the_page_shows(page: Path, command: str, tmp_path: Path) -> None:
    printed = run(command, tmp_path)
    if os.environ.get("MEMCURSE_UPDATE_README"):
        text = page.read_text()
        start = text.index(f"```console\n$ {command}\n") + len(f"```console\n$ {command}\n")
        end = text.index("```", start)
        page.write_text(text[:start] + printed + text[end:])
    shown = dict(blocks(page))[command]
    assert strip(printed) == strip(shown)


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_in_the_text_runs(command: str, tmp_path: Path) -> None:
    assert run(command, tmp_path)


def strip(text: str) -> list[str]:
    """Lines without trailing blanks, which editors take away."""
    return [line.rstrip() for line in text.rstrip().splitlines()]


def test_the_python_of_the_readme_runs(tmp_path: Path) -> None:
    (tmp_path / "sample_checkpoints").symlink_to(SAMPLES)
    (code,) = PYTHON.findall(README.read_text())
    done = program(sys.executable, "-c", code, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("WATCH  sample_checkpoints/lru.safetensors")


def test_the_first_screen_has_make_demo_make_test_and_the_page_of_the_cursed_sample() -> None:
    text = README.read_text()
    first = text.partition("\n## ")[0]
    assert len(first.splitlines()) <= 60
    assert len(text.splitlines()) <= 200
    assert re.findall(r"^\$? *make (\w+)", text, re.MULTILINE)[:2] == ["demo", "test"]
    assert "\nCURSED  dense_linear_rnn.safetensors" in first


def test_the_usable_rates_of_the_samples_are_those_that_their_readme_tells() -> None:
    text = " ".join((SAMPLES / "README.md").read_text().split())
    told = re.findall(r"usable rates? of the trained files are (\S+), (\S+) and (\S+);", text)
    run = re.findall(r"usable rate falls from (\S+) to (\S+),", text)
    files = ["dense_linear_rnn", "complex_diagonal_rnn", "lru", "run/step_0", "run/step_200"]
    rates = [inspect(SAMPLES / f"{name}.safetensors").usable_rate.rate for name in files]
    assert rates == pytest.approx([*map(float, [*told[0], *run[0]])], rel=0.02)
