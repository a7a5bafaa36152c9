"""What check and compare are given: reports as JSON, or checkpoints that are inspected first."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from memcurse_cli.checkpoints.untrusted.json_header import MAX_JSON_BYTES, parse_json
from memcurse_cli.checkpoints.untrusted.names import is_url, shown_place
from memcurse_cli.checkpoints.untrusted.source import LocalFile, read_bounded
from memcurse_cli.errors import CheckpointError, UsageError

if TYPE_CHECKING:
    import typer

    from memcurse_cli.schema.report import Report

STDIN = "-"
READING = {
    "rho": "--rho",
    "autocorrelation": "--autocorrelation",
    "horizon": "--horizon",
    "readout": "--readout",
    "learning_rate": "--lr",
    "watch_limit": "--watch-limit",
    "cursed_limit": "--cursed-limit",
    "family": "--family",
    "layer": "--layer",
    "assume": "--assume",
    "device": "--device",
    "spectra": "--spectra",
}
BLANK = b" \t\r\n\xef\xbb\xbf"
PEEK = 4096


def read_reports(
    path: str, inspect: Callable[[str], Report], reading_options: list[str]
) -> list[Report]:
    """The reports that a JSON file or standard input holds, or that of a checkpoint.

    Args:
        path: a checkpoint, the JSON of memcurse inspect, or ``-`` for that JSON on standard input.
        inspect: reports on a checkpoint.
        reading_options: options that were given and say how to read a checkpoint.

    Raises:
        UsageError: such an option beside a report, which has been taken already.
        MemcurseError: what cannot be read.
    """
    text = _stdin() if path == STDIN else _report_text(path)
    if text is None:
        return [inspect(path)]
    where = "standard input" if path == STDIN else shown_place(path)
    if reading_options:
        raise UsageError(
            f"{where} is a report, whose figures are taken already",
            where=reading_options[0],
            remedy="give the option to memcurse inspect, or name the checkpoint itself",
        )
    return load_reports(text, where)


def load_reports(text: bytes, where: str) -> list[Report]:
    """The reports of a JSON text, at least one.

    Raises:
        MemcurseError: the text holds none.
    """
    from memcurse_cli.reports.json_codec import loads

    reports = loads(text, where=where)
    if not reports:
        raise UsageError(
            "holds no report", where=where, remedy="write one with memcurse inspect --json"
        )
    return reports


def load_baseline(path: Path) -> list[Report]:
    """The reports of ``--baseline``.

    Raises:
        MemcurseError: it cannot be read or holds none.
    """
    return load_reports(read_bounded(path, MAX_JSON_BYTES), shown_place(path))


def _stdin() -> bytes:
    if sys.stdin is None or sys.stdin.isatty():
        raise UsageError(
            "standard input is a terminal",
            where=STDIN,
            remedy="pipe a report in: memcurse inspect model.safetensors --json | memcurse check -",
        )
    text = sys.stdin.buffer.read(MAX_JSON_BYTES + 1)
    if not text.strip(BLANK):
        raise UsageError(
            "nothing was piped in",
            where="standard input",
            remedy="pipe the JSON of memcurse inspect --json; did that command fail?",
        )
    if text.lstrip(BLANK)[:1] not in (b"{", b"["):
        raise UsageError(
            "not JSON",
            where="standard input",
            remedy="pipe the output of memcurse inspect --json; a checkpoint is given by its path",
        )
    return text


def _report_text(path: str) -> bytes | None:
    """The text of a file whose content is a report's; None for whatever else it is."""
    if is_url(path):
        return None
    try:
        file = LocalFile(path)
    except CheckpointError:  # a folder, or nothing at all: inspecting it will say what is wrong
        return None
    try:
        head = file.read(0, min(PEEK, file.size))
        if head.lstrip(BLANK)[:1] not in (b"{", b"["):
            return None
        text = bytes(file.read(0, min(file.size, MAX_JSON_BYTES + 1)))
        document = parse_json(text)
    except ValueError:  # of a damaged report, the bytes are for the error that says what is wrong
        return text if path.endswith(".json") else None
    finally:
        file.close()
    first = document[0] if isinstance(document, list) and document else document
    is_report = isinstance(first, dict) and str(first.get("schema", "")).startswith("memcurse.")
    return text if is_report or isinstance(document, list) else None


def given_options(context: typer.Context) -> list[str]:
    """The options on the command line that say how to read a checkpoint."""
    sources = {name: context.get_parameter_source(name) for name in READING}
    return [
        option
        for name, option in READING.items()
        if (source := sources[name]) is not None and source.name == "COMMANDLINE"
    ]
