"""The outcome of `memcurse check` as workflow commands, which GitHub shows as annotations."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path

from memcurse_cli.reports.check.terminal import sentence, subject, summary
from memcurse_cli.reports.console import to_ascii, visible
from memcurse_cli.schema.derived import Check, Judgement


def to_text(check: Check, *, file: Path | None = None) -> str:
    """One ``::error`` per failure, one ``::warning`` per figure that is allowed to be missing.

    Within a line ``%``, ``\\r`` and ``\\n`` are escaped, in a property ``:`` and ``,`` too, as in
    actions/toolkit; other control characters, which a tensor's name may hold, are made visible.
    The text is ASCII where standard output can write nothing else and no file is named.
    """
    unicode = file is not None or (sys.stdout.encoding or "").lower().startswith("utf")
    # Before the escapes: in ASCII a character can become one that has to be escaped.
    written = str if unicode else to_ascii
    lines = [
        _annotation("error" if judgement.fails else "warning", report.path, judgement, written)
        for report in check.reports
        for judgement in (*report.failures, *report.missing)
    ]
    return "\n".join([*lines, f"memcurse check: {written(summary(check))}"])


def _annotation(level: str, path: str, judgement: Judgement, written: Callable[[str], str]) -> str:
    title = f"{judgement.rule} {subject(judgement)}"
    path, title, said = map(written, (path, title, sentence(judgement)))
    return f"::{level} file={_property(path)},title={_property(title)}::{_data(said)}"


def _data(text: str) -> str:
    kept = (part if part in "\r\n" else visible(part) for part in re.split("([\r\n])", text))
    return "".join(kept).replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
