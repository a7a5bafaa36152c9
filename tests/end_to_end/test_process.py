"""What only a process of its own shows: how it starts, is interrupted, and ends."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from end_to_end.calls import CALLS, CURSED, SAMPLE
from end_to_end.command import MEMCURSE, process


def command_line(*arguments: str | Path) -> str:
    """A call as a shell reads it."""
    return shlex.join([MEMCURSE, *map(str, arguments)])


def shell(script: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a line in bash; a pipe fails where any part of it does."""
    return subprocess.run(
        ["bash", "-o", "pipefail", "-c", script],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=folder,
        check=False,
    )


def test_module_and_command_are_the_same() -> None:
    by_module = subprocess.run(
        [sys.executable, "-m", "memcurse_cli", "--version"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert by_module.stdout == process("--version").stdout
    assert by_module.stdout.startswith("memcurse 0.")


@pytest.mark.parametrize("command", ["inspect", "track", "families"])
def test_a_locale_without_unicode_gets_ascii(command: str, folder: Path) -> None:
    plain = {"PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0", "LC_ALL": "C"}
    result = process(command, *CALLS[command][0], environment=plain, folder=folder)
    assert result.returncode == 0, result.stderr
    assert result.stdout.isascii()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full to fill")
def test_a_full_disk_is_one_line(folder: Path) -> None:
    for arguments in (("families",), ("check", SAMPLE), ("--version",)):
        done = shell(f"{command_line(*arguments)} > /dev/full", folder)
        assert done.returncode == 2
        assert done.stderr.splitlines() == [
            "memcurse: error: standard output: cannot be written: No space left on device"
        ]


def test_closed_streams_are_no_internal_error(folder: Path) -> None:
    closed = shell(f"{command_line('families')} >&-", folder)
    assert (closed.returncode, closed.stderr.count("\n")) == (2, 1)
    assert "standard output is closed" in closed.stderr
    for redirection in ("2>&-", "<&-"):
        assert shell(f"{command_line('inspect', SAMPLE)} {redirection}", folder).returncode == 0
    assert shell(f"{command_line('check', '-')} <&-", folder).returncode == 2


@pytest.mark.parametrize("command", ["inspect", "compare", "track", "schema"])
def test_a_reader_that_leaves_early_is_no_error(command: str, folder: Path) -> None:
    done = shell(f"{command_line(command, *CALLS[command][-1])} | true", folder)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_reader_that_leaves_early_sees_the_start_and_learns_of_a_violation(folder: Path) -> None:
    done = shell(f"{command_line('inspect', SAMPLE, '--json', '--values')} | head -n 1", folder)
    assert (done.returncode, done.stdout, done.stderr) == (0, "{\n", "")
    failing = shell(f"{command_line('check', CURSED)} | true", folder)
    assert (failing.returncode, failing.stderr) == (1, "")
    for arguments in (("--help",), ("rule", "--help"), ("--version",)):
        assert shell(f"{command_line(*arguments)} | true", folder).returncode == 0


def test_an_interrupt_ends_with_130_and_one_line(tmp_path: Path) -> None:
    target = tmp_path / "network.safetensors"
    with subprocess.Popen(
        [MEMCURSE, "train", "gru", "--output", str(target), "--quiet"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
    ) as running:
        time.sleep(3)
        running.send_signal(signal.SIGINT)
        _, errors = running.communicate(timeout=60)
    assert running.returncode == 130
    assert errors.strip().splitlines()[-1] == "memcurse: interrupted"
    assert "Traceback" not in errors
    assert list(tmp_path.iterdir()) == []
