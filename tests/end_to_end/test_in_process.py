"""A command that a test runs in its own process does what the installed command does.

Which is what lets the other tests do without a process for every command.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import warnings
from pathlib import Path

import pytest
from end_to_end.calls import FIRST, SAMPLE, words
from end_to_end.command import memcurse, process

REPORT = memcurse("inspect", SAMPLE, "--json").stdout
COMPLETE = {
    "_MEMCURSE_COMPLETE": "complete_bash",
    "COMP_WORDS": "memcurse inspect --hor",
    "COMP_CWORD": "2",
    "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1",
}
OTHERS: dict[str, tuple[str, dict[str, str], str | None]] = {
    "help": ("inspect --help", {}, None),
    "nothing": ("", {}, None),
    "a violation": ("check CURSED", {}, None),
    "standard input": ("check - --max-step-effect 0.2", {}, REPORT),
    "no standard input": ("check -", {}, None),
    "a traceback": ("inspect absent.pt --debug", {}, None),
    "a bad setting": ("inspect LRU", {"MEMCURSE_LR": "x"}, None),
    "colour and width": ("inspect CURSED", {"FORCE_COLOR": "1", "COLUMNS": "100"}, None),
    "completion": ("", COMPLETE, None),
}


@pytest.mark.parametrize("call", FIRST.values())
def test_every_command_is_the_same_in_a_process_of_its_own(call: str, folder: Path) -> None:
    installed, here = (run(*words(call), folder=folder) for run in (process, memcurse))
    for one in (installed, here):
        assert (one.returncode, one.stderr) == (0, "")
    assert here.stdout == installed.stdout


@pytest.mark.parametrize("name", OTHERS)
def test_so_is_what_goes_wrong_or_depends_on_more(name: str, folder: Path) -> None:
    call, environment, stdin = OTHERS[name]
    given = {"environment": environment, "stdin": stdin, "folder": folder}
    installed, here = (run(*words(call), **given) for run in (process, memcurse))
    assert installed.stdout + installed.stderr
    assert (here.returncode, here.stdout, here.stderr) == (
        installed.returncode,
        installed.stdout,
        installed.stderr,
    )


def state() -> dict[str, object]:
    """What a process has only one of, and a command could leave changed."""
    return {
        "environment": dict(os.environ),
        "folder": Path.cwd(),
        "streams": (sys.stdin, sys.stdout, sys.stderr),
        "warnings": (list(warnings.filters), warnings.showwarning),
        "signals": [signal.getsignal(one) for one in signal.valid_signals()],
        "arguments": list(sys.argv),
    }


def descriptors() -> set[str]:
    """The open files of this process."""
    return {name for name in os.listdir("/dev/fd") if os.path.exists(f"/dev/fd/{name}")}


def test_nothing_is_left_behind(tmp_path: Path) -> None:
    for arguments in (("families",), ("inspect", SAMPLE), ("inspect", "absent.pt"), ("--version",)):
        before, opened, threads = state(), descriptors(), set(threading.enumerate())
        memcurse(*arguments, environment={"MEMCURSE_LR": "1e-4"}, folder=tmp_path)
        assert state() == before
        assert descriptors() == opened
        assert set(threading.enumerate()) <= threads  # an earlier test's may have ended


def test_what_libraries_and_children_print_is_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    """They write to the descriptors, past `sys.stdout` and `sys.stderr`."""

    def loud() -> None:
        os.system("echo out; echo error >&2")
        warnings.warn("old", FutureWarning, stacklevel=1)

    monkeypatch.setattr("memcurse_cli.commands.without_checkpoint.families", loud)
    done = memcurse("families")
    assert (done.returncode, done.stdout) == (0, "out\n")
    assert done.stderr.startswith("error\n")
    assert "FutureWarning: old" in done.stderr


@pytest.mark.parametrize(
    ("error", "line"),
    [
        # Typer takes every EOFError for a prompt that the user has left.
        (EOFError("too short"), "internal error, EOFError: too short"),
        (MemoryError("Unable to allocate 50. GiB"), "this needs more memory than there is (Unable"),
        (PermissionError(13, "Permission denied", "/etc/x"), "/etc/x: Permission denied; is the"),
        (OSError(28, "No space left on device"), "a file: No space left on device; is the path"),
        (OSError(107, "Not connected"), "internal error, OSError: [Errno 107] Not connected"),
        (IsADirectoryError(21, "Is a directory", 4), "internal error, IsADirectoryError"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_the_system_does_not_give_is_told_from_a_defect(
    error: Exception, line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise error

    monkeypatch.setattr("memcurse_cli.commands.without_checkpoint.families", fail)
    done = memcurse("families")
    assert done.returncode == 2
    assert done.stderr.strip().startswith(f"memcurse: error: {line}")
