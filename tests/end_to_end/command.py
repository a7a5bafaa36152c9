"""Run the command: `memcurse` in this process, `process` as a user would, in one of its own.

A process of its own takes most of a second to start, which is spent where processes are what is
tested; test_in_process.py holds the two ways to the same output, errors and exit codes.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from io import BytesIO, TextIOWrapper
from pathlib import Path
from typing import IO, Any
from unittest import mock

from memcurse_cli.__main__ import INTERRUPTED, run

ROOT = Path(__file__).resolve().parents[2]
SAMPLES = ROOT / "sample_checkpoints"
MEMCURSE = str(Path(sys.executable).parent / "memcurse")
WIDTH = {"COLUMNS": "80"}
STDOUT, STDERR = 1, 2


def program(
    *command: str | Path,
    environment: Mapping[str, str] | None = None,
    stdin: str | None = None,
    folder: Path = ROOT,
) -> subprocess.CompletedProcess[str]:
    """Run any program; output is captured, so standard output is no terminal."""
    return subprocess.run(
        [*map(str, command)],
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=300,
        input=stdin,
        cwd=folder,
        env={**os.environ, **(environment or {})},
        check=False,
    )


def process(
    *arguments: str | Path, environment: Mapping[str, str] | None = None, **others: Any
) -> subprocess.CompletedProcess[str]:
    """Run `memcurse` with some arguments."""
    return program(MEMCURSE, *arguments, environment={**WIDTH, **(environment or {})}, **others)


def shell(script: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a line in bash; a pipe fails where any part of it does."""
    path = f"{Path(MEMCURSE).parent}:{os.environ['PATH']}"
    environment = {**WIDTH, "PATH": path, "PYTHONUTF8": "1"}
    command = ("bash", "--norc", "-o", "pipefail", "-c", script)
    return program(*command, environment=environment, folder=folder)


def memcurse(
    *arguments: str | Path,
    environment: Mapping[str, str] | None = None,
    stdin: str | None = None,
    folder: Path = ROOT,
    encoding: str = "utf-8",
) -> subprocess.CompletedProcess[str]:
    """The same without a process: the environment, the folder and the streams are put back."""
    # Python reads its own variables when it starts, so here they would do nothing.
    assert not [name for name in environment or {} if name.startswith("PYTHON")]
    words = [*map(str, arguments)]
    with captured(STDOUT) as output, captured(STDERR) as errors:
        given = TextIOWrapper(BytesIO((stdin or "").encode()), encoding="utf-8")
        with (
            contextlib.chdir(folder),
            mock.patch.dict(os.environ, {**WIDTH, **(environment or {})}),
            mock.patch.object(sys, "stdin", given),
            stream("stdout", STDOUT, encoding),
            stream("stderr", STDERR, encoding),
            warnings_on_stderr(),
        ):
            code = exit_code(words)
        texts = []
        for kept in (output, errors):
            kept.seek(0)
            texts.append(kept.read().decode(encoding))
    return subprocess.CompletedProcess([MEMCURSE, *words], code, *texts)


def exit_code(arguments: list[str]) -> int:
    """What the process would end with; an interrupt is the user's, and ends the tests."""
    try:
        code = run(arguments)
    except SystemExit as ending:  # as Typer ends a completion
        return int(ending.code or 0)
    if code == INTERRUPTED:
        raise KeyboardInterrupt
    return code


@contextlib.contextmanager
def captured(descriptor: int) -> Iterator[IO[bytes]]:
    """The file that a descriptor writes to instead, for libraries and worker processes too."""
    saved = os.dup(descriptor)
    try:
        with tempfile.TemporaryFile() as file:
            os.dup2(file.fileno(), descriptor)
            try:
                yield file
            finally:
                os.dup2(saved, descriptor)
    finally:
        os.close(saved)


@contextlib.contextmanager
def stream(name: str, descriptor: int, encoding: str = "utf-8") -> Iterator[None]:
    """Standard output or error as Python opens it on a descriptor that is no terminal."""
    lenient = "backslashreplace" if name == "stderr" else "strict"
    file = open(descriptor, "w", encoding=encoding, errors=lenient, closefd=False)  # noqa: SIM115
    with mock.patch.object(sys, name, file):
        try:
            yield
        finally:
            file.flush()


@contextlib.contextmanager
def warnings_on_stderr() -> Iterator[None]:
    """Warnings as a process shows them, though pytest would keep them to itself.

    A `RuntimeWarning` of the package is an error, as it is in all other tests.
    """

    def show(message, category, filename, lineno, file=None, line=None):
        sys.stderr.write(warnings.formatwarning(message, category, filename, lineno, line))

    with warnings.catch_warnings(), mock.patch.object(warnings, "showwarning", show):
        warnings.resetwarnings()
        for silent in (DeprecationWarning, PendingDeprecationWarning, ImportWarning):
            warnings.simplefilter("ignore", silent)
        warnings.simplefilter("ignore", ResourceWarning)
        warnings.filterwarnings("error", category=RuntimeWarning, module="memcurse_cli")
        yield


def assert_refused(result: subprocess.CompletedProcess[str], *words: str) -> None:
    """Exit code 2, nothing on standard output, one line with these words on standard error."""
    assert result.returncode == 2, result
    assert result.stdout == ""
    lines = result.stderr.strip().splitlines()
    assert len(lines) == 1, result.stderr
    assert lines[0].startswith("memcurse: error: ")
    for word in words:
        assert word in lines[0], lines[0]
