"""The outcome of `memcurse check` as JSON, `memcurse.check/1`."""

from __future__ import annotations

import json
from dataclasses import asdict

from memcurse_cli.diagnosis.check.check import SCHEMA, Check


def to_text(check: Check) -> str:
    """The object of a check: ``schema`` first, then the fields in their own order."""
    return json.dumps({"schema": SCHEMA, **asdict(check)}, indent=2, allow_nan=False)
