"""A comparison as JSON, `memcurse.comparison/1`."""

from __future__ import annotations

import json

from memcurse_cli.diagnosis.comparison import SCHEMA, Comparison
from memcurse_cli.reports.json_report import encode


def to_text(comparison: Comparison) -> str:
    """The object of a comparison: ``schema`` first, then the fields in their own order."""
    return json.dumps({"schema": SCHEMA, **encode(comparison)}, indent=2, allow_nan=False)
