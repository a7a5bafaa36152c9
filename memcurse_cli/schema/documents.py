"""Every JSON document that memcurse writes, the dataclass that has its fields, its JSON Schema."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import re
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from memcurse_cli.errors import UsageError
from memcurse_cli.schema.figures import COMPONENTS, NEVER, Component

Schema = dict[str, Any]
DIALECT = "https://json-schema.org/draft/2020-12/schema"


@dataclass(frozen=True)
class Document:
    """One kind of document.

    Attributes:
        name: what `memcurse schema` calls it.
        home: the module of `schema` and the class of its fields, imported only when asked for.
        writer: the command that writes it, with its arguments.
    """

    name: str
    home: str
    writer: str

    def load(self) -> Any:
        """The class of its fields."""
        module, _, name = self.home.partition(":")
        return getattr(importlib.import_module(f"memcurse_cli.schema.{module}"), name)

    @property
    def command(self) -> str:
        """What writes it."""
        return f"memcurse {self.writer} --json"

    @property
    def summary(self) -> str:
        """What it is, in a line."""
        return summarise(self.load())

    @property
    def identifier(self) -> str:
        """What the field ``schema`` says, with the version."""
        identifier: str = self.load().SCHEMA
        return identifier


DOCUMENTS = (
    Document("report", "report:Report", "inspect PATH"),
    Document("check", "derived:Check", "check PATH"),
    Document("comparison", "derived:Comparison", "compare BEFORE AFTER"),
    Document("tracking", "derived:Tracking", "track PATH"),
    Document("prediction", "theory:PredictionDocument", "predict"),
    Document("landscape", "theory:LandscapeReport", "landscape"),
    Document("hessian", "hessian:HessianReport", "hessian PATH"),
    Document("autocorrelation", "theory:AutocorrelationDocument", "autocorrelation DATA"),
    Document("families", "listings:FamiliesDocument", "families"),
    Document("formats", "listings:FormatsDocument", "formats"),
    Document("rules", "listings:RulesDocument", "rule"),
    Document("settings", "listings:SettingsDocument", "settings"),
)


def find_document(name: str) -> Document:
    """The document of a name.

    Raises:
        UsageError: there is none.
    """
    for document in DOCUMENTS:
        if document.name == name:
            return document
    raise UsageError(
        f"{name[:200]!r} is not a document",
        where="schema",
        remedy=f"known are {', '.join(document.name for document in DOCUMENTS)}",
    )


PLAIN = {
    float: {"type": "number"},
    int: {"type": "integer"},
    bool: {"type": "boolean"},
    str: {"type": "string"},
    types.NoneType: {"type": "null"},
}


def document_schema(document: Document, *, closed: bool = False) -> Schema:
    """The schema of a document, in JSON Schema draft 2020-12.

    Args:
        document: which.
        closed: refuse fields that the schema does not name. By default they are allowed, since a
            later version of memcurse may add some within the same version of the schema.
    """
    definitions: dict[str, Schema] = {}
    described = _object_schema(document.load(), definitions, closed=closed)
    return {
        "$schema": DIALECT,
        "$id": f"urn:memcurse:{document.name}:{document.identifier.rpartition('/')[2]}",
        "title": document.identifier,
        **described,
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


def _object_schema(kind: Any, definitions: dict[str, Schema], *, closed: bool) -> Schema:
    hints, descriptions = typing.get_type_hints(kind), describe_fields(kind)
    properties: dict[str, Schema] = {}
    required = []
    for field in dataclasses.fields(kind):
        if field.metadata == NEVER:
            continue
        hint: Any = hints[field.name]
        if field.metadata == COMPONENTS:
            optional = types.NoneType in typing.get_args(hint)
            hint = tuple[Component, ...] | None if optional else tuple[Component, ...]
        properties[field.name] = _schema(hint, definitions, closed=closed)
        if field.name in descriptions:
            properties[field.name]["description"] = descriptions[field.name]
        if field.default is dataclasses.MISSING:
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
    def schema_of(inner: Any) -> Schema:
        return _schema(inner, definitions, closed=closed)

    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint in PLAIN:
        return dict(PLAIN[hint])
    if dataclasses.is_dataclass(hint):
        name = typing.cast(type, hint).__name__
        if name not in definitions:
            definitions[name] = {}  # a class may hold itself
            definitions[name] = _object_schema(hint, definitions, closed=closed)
        return {"$ref": f"#/$defs/{name}"}
    if origin is Literal:
        return {"enum": list(arguments)}
    if origin in (typing.Union, types.UnionType):
        return {"anyOf": list(map(schema_of, arguments))}
    if origin is tuple and arguments[-1] is Ellipsis:
        return {"type": "array", "items": schema_of(arguments[0])}
    if origin is tuple:
        elements = list(map(schema_of, arguments))
        return {
            "type": "array",
            "prefixItems": elements,
            "items": False,
            "minItems": len(elements),
        }
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return {"type": "object", "additionalProperties": schema_of(arguments[1])}
    raise TypeError(f"{hint!r} has no JSON Schema")


def summarise(kind: Any) -> str:
    """The first paragraph of a class's docstring, on one line."""
    return " ".join((inspect.getdoc(kind) or "").partition("\n\n")[0].split())


def describe_fields(kind: Any) -> dict[str, str]:
    """What the annotation of each field says of it, in JSON's words: None is null there."""
    hints = typing.get_type_hints(kind, include_extras=True)
    return {
        name: re.sub(r"\bNone\b", "null", hint.__metadata__[0].replace("``", "`"))
        for name, hint in hints.items()
        if typing.get_origin(hint) is typing.Annotated
    }
