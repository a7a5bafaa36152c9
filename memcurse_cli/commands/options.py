"""The options that several commands share, and how a command hands out what it made."""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from memcurse_cli.checkpoints.untrusted.names import shown_place
from memcurse_cli.errors import UsageError
from memcurse_cli.reports.console import Lines, text_of, visible

RhoOption = Annotated[
    list[float] | None,
    typer.Option(
        "--rho",
        metavar="RHO",
        help="Input autocorrelation R(Δ) = ρ^|Δ|, ρ in [0, 1]; 0 is white noise.",
    ),
]
AutocorrelationOption = Annotated[
    str | None,
    typer.Option(
        "--autocorrelation",
        metavar="W:RHO[:OMEGA],…|FILE",
        help="A mixture R(Δ) = Σ w ρ^|Δ| cos(ωΔ), as '0.332:0,0.044:0.997' or as the JSON that "
        "memcurse autocorrelation wrote; ω is in radians per step, and 0 where it is left out.",
    ),
]
HorizonOption = Annotated[
    int | None,
    typer.Option(
        "--horizon",
        metavar="T",
        min=1,
        help="Steps of a sequence that starts from zero; without it, infinitely many.",
    ),
]
ReadoutOption = Annotated[
    str | None,
    typer.Option(
        "--readout",
        metavar="last|every",
        help="Read the --horizon at its last step, or as the mean over every step, which a loss "
        "summed over the sequence sees. By default states are read at the last step and Hessians "
        "are those of a loss over every step.",
    ),
]
OneRhoOption = Annotated[
    float | None,
    typer.Option(
        "--rho",
        metavar="RHO",
        help="Input autocorrelation R(Δ) = ρ^|Δ|, ρ in [0, 1]; white noise by default.",
    ),
]
LearningRateOption = Annotated[
    float, typer.Option("--lr", metavar="RATE", help="The optimizer's learning rate.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]
OutputOption = Annotated[
    Path | None,
    typer.Option(
        "--output", "-o", metavar="FILE", help="Write to FILE instead of standard output."
    ),
]
QuietOption = Annotated[
    bool, typer.Option("--quiet", "-q", help="Nothing on standard error but errors.")
]


def choose_format(given: str | None, known: Sequence[str], *, as_json: bool) -> str:
    """The output format of ``--format`` or ``--json``; the first known one by default.

    Raises:
        UsageError: there is no such format, or the two contradict.
    """
    if given is not None and given not in known:
        raise UsageError(
            f"'{given}' is not known", where="--format", remedy=f"give {', '.join(known)}"
        )
    if as_json and given not in (None, "json"):
        raise UsageError(
            f"--json and --format {given} contradict", where="--json", remedy="give one of them"
        )
    return "json" if as_json else given or known[0]


def emit_json(document: Any, output: Path | None) -> None:
    """Print or write the JSON of a document, as `emit` does."""
    from memcurse_cli.schema.json_codec import to_text

    emit(to_text(document), output)


def emit_page(lines: Lines, output: Path | None) -> None:
    """Print or write a page, as `emit` does; no line of it ends in blanks."""
    text = text_of(lines, output)
    emit("\n".join(line.rstrip() for line in text.splitlines()), output)


def check_figure(path: Path) -> str:
    """The format of a figure, by its file's name, before any work is done for it.

    Raises:
        UsageError: no format of that name is written, or matplotlib is not installed.
    """
    from memcurse_cli.reports.figures import check_figure

    return check_figure(path)


def emit(text: str, output: Path | None) -> None:
    """Print text, or write it whole or not at all: beside the target first, then renamed.

    Raises:
        UsageError: the file cannot be written.
    """
    if not text.endswith("\n"):
        text += "\n"
    if output is None:
        sys.stdout.write(text)
        sys.stdout.flush()
        return
    write_file(output, text.encode())


def unwritable(path: Path, reason: str) -> UsageError:
    """The error of a file that cannot be written."""
    return UsageError(
        f"cannot be written: {reason}",
        where=shown_place(path),
        remedy="name a file in a folder that exists and is writable",
    )


def write_file(path: Path, content: bytes) -> None:
    """Write a file whole or not at all.

    Raises:
        UsageError: it cannot be written.
    """
    try:
        if path.exists() and not path.is_file():  # a pipe or /dev/stdout: nothing to rename
            path.write_bytes(content)
        else:
            _replace(path, content)
    except OSError as error:
        raise unwritable(path, error.strerror or str(error)) from error


def _replace(path: Path, content: bytes) -> None:
    """Write beside a file, then rename."""
    descriptor, beside = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
        umask = os.umask(0)
        os.umask(umask)
        os.chmod(beside, 0o666 & ~umask)  # mkstemp's 0600 would hide the file from others
        os.replace(beside, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(beside)
        raise


PATIENCE = 1.0  # seconds before anything is shown
WIDTH = 79  # of the line, which no terminal wraps
BAR = 30  # cells of a full progress bar


@contextmanager
def progress_line(*, quiet: bool, patience: float | None = None) -> Iterator[Callable[[str], None]]:
    """What keeps one line on standard error up to date, and takes it away at the end."""
    wait = PATIENCE if patience is None else patience
    started = time.monotonic()
    silent, shown = quiet or not sys.stderr.isatty(), False

    def show(line: str) -> None:
        nonlocal shown
        if silent or time.monotonic() - started < wait:
            return
        shown = True
        sys.stderr.write(f"\r\x1b[2K{line[:WIDTH]}")
        sys.stderr.flush()

    try:
        yield show
    finally:
        if shown:
            sys.stderr.write("\r\x1b[2K")
            sys.stderr.flush()


@contextmanager
def layer_progress(path: str, *, quiet: bool) -> Iterator[Callable[[int, int, str], None]]:
    """What is called with (layers done, layers in all, name of the next)."""
    with progress_line(quiet=quiet) as show:
        yield lambda done, total, layer: show(
            visible(f"{shown_place(path)}: layer {done + 1} of {total}")
        )


@contextmanager
def file_progress(noun: str, *, quiet: bool) -> Iterator[Callable[[int, int], None]]:
    """What is called with (done, in all) of what ``noun`` names in the plural, and draws a bar."""

    def bar(done: int, total: int) -> str:
        full = BAR * done // max(total, 1)
        return f"[{'#' * full}{'.' * (BAR - full)}] {done} of {total} {noun}"

    with progress_line(quiet=quiet) as show:
        yield lambda done, total: show(bar(done, total))
