"""Every document as JSON and back, both read off the fields of its class, as ASCII.

A number that does not exist is null; NaN and Infinity are never written and never accepted.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec
from msgspec.structs import replace

from memcurse_cli.errors import MemcurseError, UsageError
from memcurse_cli.schema.figures import ORDER, Component, Record
from memcurse_cli.schema.report import (
    WITHIN,
    LayerReport,
    Report,
    UsableRate,
    judged,
    known_rate,
    longest_memory,
    smallest_rate,
)

Part = TypeVar("Part")

# Findings that 0.1 gave the severity, and a rate to stay below, of its own verdict.
JUDGED_BY_STEPS = ("MC201", "MC202", "MC203", "MC204", "MC207")


def to_json(document: Any, *, values: bool = True) -> dict[str, Any]:
    """The JSON object of one of `documents.DOCUMENTS`: ``schema``, then the fields in their order.

    With ``values`` it has the eigenvalues that the document holds, and what comes with them.
    """
    return {"schema": document.SCHEMA, **encode(document, values=values)}


def to_text(*documents: Any, values: bool = True) -> str:
    """The text of one document's object, or of an array of several; see `to_json`.

    Raises `ValueError` where a number is NaN or infinite.
    """
    written = [to_json(document, values=values) for document in documents]
    return json.dumps(written[0] if len(written) == 1 else written, indent=2, allow_nan=False)


def encode(value: Any, *, values: bool = True) -> Any:
    """The fields of a document, or of a part of one, as JSON holds them; `to_json`'s arguments."""
    if isinstance(value, Component):
        return dict(zip(value.__struct_fields__, value, strict=False))
    if isinstance(value, Record):
        return {
            name: encode(held, values=values)
            for name, held in msgspec.structs.asdict(value).items()
            if name not in value.UNWRITTEN
            and not (name in value.DETAIL and (held is None or not values))
        }
    if isinstance(value, tuple | list):
        return [encode(element, values=values) for element in value]
    if isinstance(value, Mapping):
        return {key: encode(element, values=values) for key, element in value.items()}
    return value


def from_json(document: object, *, where: str = "report") -> Report:
    """The report that a JSON object holds; fields that a later version added are passed over.

    One of memcurse 0.1, ``memcurse.report/1``, is judged anew by its usable rates. Raises, at
    ``where``, `UsageError` for a schema of another major version or of something else, and
    `MemcurseError` for a field that is missing or is not what the schema says.
    """
    if not isinstance(document, dict):
        raise not_a_report("not a JSON object", where)
    schema = document.get("schema")
    if not isinstance(schema, str) or schema.partition(".report/")[0] != "memcurse":
        what = "not a memcurse report"
        raise UsageError(what, where=where, remedy="write one with memcurse inspect --json")
    major = schema.partition("/")[2].split(".")[0]
    if major == "1":
        return _judged_anew(decode(Report, _in_fields_of_now(document), where=where))
    if major != Report.SCHEMA.partition("/")[2]:
        what = f"the schema is {schema[:40]!r}, this version reads {Report.SCHEMA}"
        remedy = "write the report again with this version of memcurse"
        raise UsageError(what, where=where, remedy=remedy)
    return decode(Report, document, where=where)


def _in_fields_of_now(document: dict[str, Any]) -> Any:
    """``memcurse.report/1`` with the fields that were renamed, and blanks for those added.

    What is not as that schema has it stays as it is, for the decoder to refuse.
    """
    assumed = document.get("input")
    rate = assumed.get("learning_rate") if isinstance(assumed, dict) else None
    unknown = encode(UsableRate(None, None))
    # By the name of the array that an object stands in.
    added = {
        "": {"usable_rate": unknown, "memory": None, "findings": [], "actions": []},
        "layers": {"learning_rate": rate, "memory": None},
        "parameters": {"learning_rate": rate},
    }
    renamed = {"stable_lr": "effect_rate", "examples": "names"}

    def now(value: Any, array: str) -> Any:
        if isinstance(value, list):
            return [now(element, array) for element in value]
        if not isinstance(value, dict):
            return value
        fields = {renamed.get(name, name): now(held, name) for name, held in value.items()}
        return fields | added.get(array, {})

    return now(document, "")


def _judged_anew(report: Report) -> Report:
    """A report of version 0.1 by the rules of this one: its usable rates decide."""

    def ranged(usable: UsableRate | None) -> UsableRate | None:
        if usable is None or usable.rate is None or usable.limited_by is None:
            return usable
        if usable.limited_by not in WITHIN:  # which no report of that version says
            return None
        return known_rate(usable.rate, usable.limited_by)

    def anew(layer: LayerReport) -> LayerReport:
        usable = ranged(layer.usable_rate)
        findings = tuple(one for one in layer.findings if one.code not in JUDGED_BY_STEPS)
        what_if = tuple(replace(one, usable_rate=ranged(one.usable_rate)) for one in layer.what_if)
        return judged(replace(layer, usable_rate=usable, findings=findings, what_if=what_if))

    layers = tuple(map(anew, report.layers))
    return replace(
        report,
        layers=layers,
        verdict=max((layer.verdict for layer in layers), key=ORDER.index, default="ok"),
        sentence=f"Written by memcurse {report.version} and judged by its usable rates: inspect "
        "the checkpoint again for what to do.",
        usable_rate=smallest_rate(layer.usable_rate for layer in layers),
        memory=longest_memory(layer.memory for layer in layers),
    )


def decode(kind: type[Part], document: object, *, where: str) -> Part:
    """What `encode` wrote of a part of a document, as its class.

    Raises `MemcurseError`, at ``where``, for a field that is missing or is not what its type says,
    and for a number that is not finite.
    """
    try:
        json.dumps(document, allow_nan=False)
        return msgspec.convert(document, kind)
    except msgspec.ValidationError as error:
        what, _, path = str(error).partition(" - at `$")
        place = path.removeprefix(".").removesuffix("`")
        raise not_a_report(f"{place}: {what.lower()}" if place else what.lower(), where) from None
    except ValueError:
        raise not_a_report("a number is not finite", where) from None


def not_a_report(what: str, where: str) -> MemcurseError:
    """The error of a text that is not a report's JSON."""
    return MemcurseError(
        what, where=where, remedy="give the JSON that memcurse inspect --json wrote"
    )
