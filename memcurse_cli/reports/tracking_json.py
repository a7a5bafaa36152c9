"""A tracked run as JSON, `memcurse.track/1`, and a snapshot of it back from its cache."""

from __future__ import annotations

import json
from typing import Any

from memcurse_cli.reports.json_report import decode, encode
from memcurse_cli.tracking.series import SCHEMA, Snapshot, Tracking


def to_text(tracking: Tracking) -> str:
    """The object of a run: ``schema`` first, then the fields in their own order."""
    return json.dumps({"schema": SCHEMA, **encode(tracking)}, indent=2, allow_nan=False)


def snapshot_to_json(snapshot: Snapshot) -> Any:
    """The JSON value of one snapshot."""
    encoded: Any = encode(snapshot)
    return encoded


def snapshot_from_json(document: Any) -> Snapshot:
    """The snapshot that `snapshot_to_json` wrote.

    Raises:
        MemcurseError: it is not one.
    """
    snapshot: Snapshot = decode(Snapshot, document, where="cache")
    return snapshot
