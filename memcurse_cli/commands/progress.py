"""Progress on standard error, on a terminal only."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from memcurse_cli.checkpoints.untrusted.names import shown_place
from memcurse_cli.reports.console import visible

PATIENCE = 1.0  # seconds before anything is shown
WIDTH = 79  # of the line, which no terminal wraps
BAR = 30  # cells of a full progress bar


@contextmanager
def progress_line(*, quiet: bool, patience: float | None = None) -> Iterator[Callable[[str], None]]:
    """What keeps one line on standard error up to date, and takes it away at the end.

    Args:
        quiet: show nothing.
        patience: seconds before anything is shown; `PATIENCE` by default.
    """
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
