"""The options that several commands share, and how a command hands out what it made."""

from __future__ import annotations

import importlib
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from memcurse_cli.checkpoints.untrusted.names import shown_place
from memcurse_cli.errors import UsageError
from memcurse_cli.files import write_whole
from memcurse_cli.reports.console import Lines, text_of

if TYPE_CHECKING:
    from numpy.typing import NDArray


def argument(metavar: str, meaning: str, *, default: Any = ...) -> Any:
    """An argument, which must be given where it has no default."""
    return typer.Argument(default, metavar=metavar, help=meaning)


def option(metavar: str, meaning: str, *names: str, default: Any = None, **more: Any) -> Any:
    """An option with a value, called like its parameter where it has no other names."""
    return typer.Option(default, *names, metavar=metavar, help=meaning, **more)


def flag(name: str, meaning: str, *names: str, default: bool | None = False, **more: Any) -> Any:
    """An option that has no value and no opposite."""
    return typer.Option(default, name, *names, help=meaning, **more)


AUTOCORRELATION = option(
    "W:RHO[:OMEGA],…|FILE",
    "A mixture R(Δ) = Σ w ρ^|Δ| cos(ωΔ), as '0.332:0,0.044:0.997' or as the JSON that "
    "memcurse autocorrelation wrote; ω is in radians per step, and 0 where it is left out.",
    "--autocorrelation",
)
HORIZON = option(
    "T",
    "Steps of a sequence that starts from zero; without it, infinitely many.",
    "--horizon",
    min=1,
)
READOUT = option(
    "last|every",
    "Read the --horizon at its last step, or as the mean over every step, which a loss "
    "summed over the sequence sees. By default states are read at the last step and Hessians "
    "are those of a loss over every step.",
    "--readout",
)
ONE_RHO = option(
    "RHO", "Input autocorrelation R(Δ) = ρ^|Δ|, ρ in [0, 1]; white noise by default.", "--rho"
)
JSON = flag("--json", "Print JSON.")
OUTPUT = option("FILE", "Write to FILE instead of standard output.", "--output", "-o")
EXECUTOR = option("dask://HOST:PORT", "Read on a Dask cluster.", "--executor")
QUIET = flag("--quiet", "Nothing on standard error but errors.", "-q")


def choose_format(
    given: str | None = None, known: Sequence[str] = ("terminal",), *, as_json: bool
) -> str:
    """The format of ``--format`` or ``--json``, by default the first known one.

    Raises `UsageError` where there is no such format, or the two contradict.
    """
    if given is not None:
        from memcurse_cli.diagnosis.settings import require_known

        require_known(given, known, "--format", f"give {', '.join(known)}")
    if as_json and given not in (None, "json"):
        raise UsageError(
            f"--json and --format {given} contradict", where="--json", remedy="give one of them"
        )
    return "json" if as_json else given or known[0]


def show(document: Any, page: str, chosen: str, output: Path | None, **how: Any) -> None:
    """Print or write a document in a format: its JSON, or what the page of this name says.

    ``how`` is for the page in a terminal.
    """
    if chosen == "json":
        from memcurse_cli.schema.json_codec import to_text

        emit(to_text(document), output)
        return
    folder = "html" if chosen == "html" else "terminal"
    module = importlib.import_module(f"memcurse_cli.reports.{folder}.{page}")
    if chosen == "html":
        emit(module.to_html(document), output)
    elif chosen == "csv":
        emit(module.to_csv(document, file=output), output)
    else:
        emit_page(partial(module.lines, document, **how), output)


def emit_page(lines: Lines, output: Path | None) -> None:
    """Print or write a page, as `emit` does; no line of it ends in blanks."""
    emit("\n".join(map(str.rstrip, text_of(lines, output).splitlines())), output)


def check_figure(path: Path | None) -> str:
    """The format of a figure, if any, before work is done for it; errors of that in `figures`."""
    if path is None:
        return ""
    from memcurse_cli.reports.figures import check_figure

    return check_figure(path)


def emit(text: str, output: Path | None) -> None:
    """Print text, or write it as `write_file` does."""
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


def require_writable(path: Path) -> None:
    """Refuse a hopeless path before the work, not after it."""
    if path.is_dir():
        raise unwritable(path, "it is a directory")
    if not path.parent.is_dir():
        raise unwritable(path, "its folder does not exist")
    if not os.access(path.parent, os.W_OK):
        raise unwritable(path, "its folder is read-only")


def write_file(path: Path, content: bytes, check: Callable[[Path], None] | None = None) -> None:
    """Write a file whole or not at all; raises `UsageError` where it cannot be written.

    What a ``check`` of what was written raises keeps it from its place; a link stays one.
    """
    try:
        if not path.exists() or path.is_file():
            write_whole(path.resolve(), content, check=check)
        elif check is None:  # a pipe: nothing to rename
            path.write_bytes(content)
        else:
            raise OSError("it is no file that can be read back")
    except OSError as error:
        raise unwritable(path, error.strerror or str(error)) from error


def write_tensors(
    path: Path, tensors: Mapping[str, NDArray[Any]], metadata: Mapping[str, str]
) -> None:
    """Write a safetensors file as `write_file` does, once it reads as it was meant."""
    from memcurse_cli.checkpoints.open import open_checkpoint
    from memcurse_cli.checkpoints.safetensors import encode

    def check(written: Path) -> None:
        with open_checkpoint(written) as store:
            for name, values in tensors.items():
                if not (store.read(name) == values).all():
                    raise OSError(f"{name} does not read as it was written")

    write_file(path, encode(tensors, metadata), check)


PATIENCE = 1.0  # seconds before anything is shown
WIDTH = 79  # of the line, which no terminal wraps


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
