"""Progress on standard error, on a terminal only."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from memcurse_cli.checkpoints.untrusted.names import shown_place
from memcurse_cli.reports.console import visible

PATIENCE = 1.0  # seconds before anything is shown


@contextmanager
def layer_progress(path: str, *, quiet: bool) -> Iterator[Callable[[int, int, str], None] | None]:
    """A callback that keeps one line on standard error up to date while layers are read."""
    if quiet or not sys.stderr.isatty():
        yield None
        return
    started = time.monotonic()
    shown = False

    def show(done: int, total: int, layer: str) -> None:
        nonlocal shown
        if time.monotonic() - started < PATIENCE:
            return
        shown = True
        line = visible(f"{shown_place(path)}: layer {done + 1} of {total}")
        sys.stderr.write(f"\r\x1b[2K{line[:79]}")
        sys.stderr.flush()

    try:
        yield show
    finally:
        if shown:
            sys.stderr.write("\r\x1b[2K")
            sys.stderr.flush()


BAR = 30
"""Cells of a full progress bar."""


@contextmanager
def file_progress(noun: str, *, quiet: bool) -> Iterator[Callable[[int, int], None] | None]:
    """A callback that keeps a bar on standard error up to date while files are read.

    Args:
        noun: what is counted, in the plural.
        quiet: show nothing.
    """
    if quiet or not sys.stderr.isatty():
        yield None
        return
    started = time.monotonic()
    shown = False

    def show(done: int, total: int) -> None:
        nonlocal shown
        if time.monotonic() - started < PATIENCE:
            return
        shown = True
        full = BAR * done // max(total, 1)
        line = f"[{'#' * full}{'.' * (BAR - full)}] {done} of {total} {noun}"
        sys.stderr.write(f"\r\x1b[2K{line[:79]}")
        sys.stderr.flush()

    try:
        yield show
    finally:
        if shown:
            sys.stderr.write("\r\x1b[2K")
            sys.stderr.flush()
