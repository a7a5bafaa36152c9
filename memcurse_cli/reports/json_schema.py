"""JSON Schemas of the documents, read off the dataclasses that hold their fields.

A field's type gives its schema, and its line under ``Attributes:`` its description. A dataclass
that gains a field gains it in the schema with no further work.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
import types
import typing
from collections.abc import Mapping
from typing import Any, Literal

from memcurse_cli.reports.documents import Component, Document
from memcurse_cli.reports.json_codec import ONLY_IF_ASKED_FOR

DIALECT = "https://json-schema.org/draft/2020-12/schema"

Schema = dict[str, Any]

PAIRS_AS_COMPONENTS = {("InputAssumption", "autocorrelation")}
"""(weight, ρ) pairs that are written as objects with these names."""

NOT_WRITTEN = {("LayerHessianReport", "picture")}
"""Fields that are never part of a document."""

PLAIN = {
    float: {"type": "number"},
    int: {"type": "integer"},
    bool: {"type": "boolean"},
    str: {"type": "string"},
}


def document_schema(document: Document, *, closed: bool = False) -> Schema:
    """The schema of a document, in JSON Schema draft 2020-12.

    Args:
        document: which.
        closed: refuse fields that the schema does not name. By default they are allowed, since a
            later version of memcurse may add some within the same version of the schema.
    """
    root = document.load()
    definitions: dict[str, Schema] = {}
    described = _object(root, definitions, closed=closed)
    return {
        "$schema": DIALECT,
        "$id": f"urn:memcurse:{document.name}:{document.identifier.rpartition('/')[2]}",
        "title": document.identifier,
        **described,
        "description": document.summary,
        "properties": {
            "schema": {
                "const": document.identifier,
                "description": "What the document is, and the version of its fields.",
            },
            **described["properties"],
        },
        "required": ["schema", *described["required"]],
        "$defs": dict(sorted(definitions.items())),
    }


def _object(kind: Any, definitions: dict[str, Schema], *, closed: bool) -> Schema:
    hints = typing.get_type_hints(kind)
    descriptions = describe_fields(kind)
    properties: dict[str, Schema] = {}
    required = []
    for field in dataclasses.fields(kind):
        place = (kind.__name__, field.name)
        if place in NOT_WRITTEN:
            continue
        hint: Any = hints[field.name]
        if place in PAIRS_AS_COMPONENTS:
            hint = tuple[Component, ...]
        found = _schema(hint, definitions, closed=closed)
        if field.name in descriptions:
            found = {**found, "description": descriptions[field.name]}
        properties[field.name] = found
        default = (field.default, field.default_factory) != (dataclasses.MISSING,) * 2
        if not default and field.name not in ONLY_IF_ASKED_FOR.get(kind.__name__, ()):
            required.append(field.name)
    schema: Schema = {
        "type": "object",
        "description": summarise(kind),
        "properties": properties,
        "required": required,
    }
    if closed:
        schema["unevaluatedProperties"] = False
    return schema


def _schema(hint: Any, definitions: dict[str, Schema], *, closed: bool) -> Schema:
    if hint in PLAIN:
        return dict(PLAIN[hint])
    if hint is type(None):
        return {"type": "null"}
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if dataclasses.is_dataclass(hint):
        name = typing.cast(type, hint).__name__
        if name not in definitions:
            definitions[name] = {}  # a class may hold itself
            definitions[name] = _object(hint, definitions, closed=closed)
        return {"$ref": f"#/$defs/{name}"}
    if origin is Literal:
        return {"enum": list(arguments)}
    if origin in (typing.Union, types.UnionType):
        return {"anyOf": [_schema(one, definitions, closed=closed) for one in arguments]}
    if origin is tuple and arguments[-1] is Ellipsis:
        return {"type": "array", "items": _schema(arguments[0], definitions, closed=closed)}
    if origin is tuple:
        return {
            "type": "array",
            "prefixItems": [_schema(one, definitions, closed=closed) for one in arguments],
            "items": False,
            "minItems": len(arguments),
        }
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return {
            "type": "object",
            "additionalProperties": _schema(arguments[1], definitions, closed=closed),
        }
    raise TypeError(f"{hint!r} has no JSON Schema")


def summarise(kind: Any) -> str:
    """The first paragraph of a class's docstring, on one line."""
    return " ".join((inspect.getdoc(kind) or "").partition("\n\n")[0].split())


def describe_fields(kind: Any) -> dict[str, str]:
    """What the section ``Attributes:`` of a class's docstring says of each field."""
    _, _, section = (inspect.getdoc(kind) or "").partition("\nAttributes:\n")
    found: dict[str, list[str]] = {}
    name = ""
    for line in section.splitlines():
        start = re.match(r"    (\w+): (.*)", line)
        if start is not None:
            name = start[1]
            found[name] = [start[2]]
        elif line.startswith("        ") and name:
            found[name].append(line.strip())
        elif line.strip():
            break
    return {name: _plain(" ".join(lines)) for name, lines in found.items()}


def _plain(text: str) -> str:
    """A description in JSON's words: null for None, and one kind of quotation mark."""
    return re.sub(r"\bNone\b", "null", text.replace("``", "`"))
