"""Sequences of samples: tables of text, or one array of any checkpoint format."""

from __future__ import annotations

import csv
import os
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from memcurse_cli.checkpoints.open import open_checkpoint
from memcurse_cli.checkpoints.untrusted.names import printable, shown_place
from memcurse_cli.checkpoints.untrusted.source import read_bounded, unchanged_while_read
from memcurse_cli.errors import CheckpointError, UsageError

TEXT_EXTENSIONS = (".csv", ".txt", ".tsv", ".dat")
MAX_TEXT_BYTES = 1 << 30
NAMES_SHOWN = 5


@unchanged_while_read()
def read_series(path: str | os.PathLike[str], name: str | None = None) -> NDArray[Any]:
    """One array of samples of shape (T), (T, F) or (N, T, F).

    Nothing in any file is unpickled. A text file (`TEXT_EXTENSIONS`) is a table with a step per
    line and a feature per column, with or without a line of headings; empty cells are NaN. Any
    other is a checkpoint, of which ``name`` says the array where it holds several.
    Raises CheckpointError: the file is missing, damaged, or not numeric, or changed while it was
    read. UsageError: no array or several arrays are meant by the name.
    """
    shown = shown_place(path, 200)
    if shown.lower().endswith(TEXT_EXTENSIONS):
        if name is not None:
            what, remedy = "a table of text has no named arrays", "leave --array out"
            raise UsageError(what, where=shown, remedy=remedy)
        return _table(read_bounded(path, MAX_TEXT_BYTES), shown)
    with open_checkpoint(path) as store:
        names = tuple(store.tensors)
        listed = ", ".join(names[:NAMES_SHOWN]) + (", …" if len(names) > NAMES_SHOWN else "")
        if name is None and len(names) > 1:
            what = f"the file holds {len(names)} arrays ({listed})"
            remedy = "name one with --array NAME"
            raise UsageError(what, where=shown, remedy=remedy)
        if name is not None and name not in names:
            what, remedy = f"no array is called {printable(name, 80)!r}", f"there are {listed}"
            raise UsageError(what, where=shown, remedy=remedy)
        return store.read(names[0] if name is None else name)


def _table(content: bytes, where: str) -> NDArray[np.float64]:
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise _not_numeric(where, line, "bytes that are not text") from error
    rows: list[list[float | None]] = []
    width, headed = 0, False
    for line, cells in _rows(text):
        values = [_number(cell) for cell in cells]
        wrong = [cell for cell, value in zip(cells, values, strict=True) if value is None]
        if wrong:
            if rows or headed or set(cells) - {"", *wrong}:
                raise _not_numeric(where, line, f"'{printable(wrong[0], 40)}'")
            headed, width = True, len(cells)
            continue
        if width and len(cells) != width:
            what = f"line {line} has {len(cells)} columns, the lines before it {width}"
            remedy = "give every step the same features"
            raise CheckpointError(what, where=where, remedy=remedy)
        width = len(cells)
        rows.append(values)
    table = np.array(rows, np.float64).reshape(len(rows), width)
    return table[:, 0] if width == 1 else table


def _rows(text: str) -> Iterator[tuple[int, list[str]]]:
    """The line number and the cells of each line; blank lines and # comments are passed over."""
    lines = text.splitlines()
    kept = [(n, line) for n, line in enumerate(lines, 1) if line.strip().partition("#")[0]]
    first = kept[0][1] if kept else ""
    separator = next((mark for mark in ",;\t" if mark in first), None)
    for number, line in kept:
        cells = next(csv.reader([line], delimiter=separator)) if separator else line.split()
        yield number, [cell.strip() for cell in cells]


def _number(cell: str) -> float | None:
    """NaN where the cell is empty; None where it holds something else."""
    try:
        return float(cell or "nan")
    except ValueError:
        return None


def _not_numeric(where: str, line: int, what: str) -> CheckpointError:
    what = f"line {line} holds {what}, which is not a number"
    remedy = "give numbers, one step per line, and at most one line of headings"
    return CheckpointError(what, where=where, remedy=remedy)
