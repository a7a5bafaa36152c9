"""A tracked run as JSON, `memcurse.track/1`, and a snapshot of it back from its cache."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from memcurse_cli.reports.json_codec import decode, encode
from memcurse_cli.schema.track import SCHEMA, Snapshot, TrackedStep, Tracking


def to_json(tracking: Tracking, *, layers: bool = True) -> dict[str, Any]:
    """The object of a run: ``schema`` first, then the fields in their own order.

    Without ``layers`` every snapshot has none, only its summary.
    """
    if not layers:
        tracking = replace(tracking, steps=tuple(map(_without_layers, tracking.steps)))
    return {"schema": SCHEMA, **encode(tracking)}


def to_text(tracking: Tracking) -> str:
    """The object of a run as text."""
    return json.dumps(to_json(tracking), indent=2, allow_nan=False)


def _without_layers(step: TrackedStep) -> TrackedStep:
    return (
        step if step.snapshot is None else replace(step, snapshot=replace(step.snapshot, layers=()))
    )


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
