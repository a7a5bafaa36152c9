"""Every JSON document that memcurse writes, the record that has its fields, its JSON Schema."""

from __future__ import annotations

import importlib
import inspect
import re
import typing
from typing import Any

import msgspec
from msgspec import Struct

from memcurse_cli.errors import UsageError
from memcurse_cli.schema.figures import HessianPicture, Record

Schema = dict[str, Any]


class Document(Struct, frozen=True):
    """One kind of document."""

    name: str  # what `memcurse schema` calls it
    home: str  # the module of `schema` and the class of its fields, imported only when asked for
    writer: str  # the command that writes it, with its arguments

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
    Document("groups", "derived:ParameterGroups", "groups PATH"),
    Document("prediction", "theory:Prediction", "predict"),
    Document("landscape", "theory:LandscapeReport", "landscape"),
    Document("hessian", "hessian:HessianReport", "hessian PATH"),
    Document("initialization", "derived:Initialization", "init FAMILY"),
    Document("autocorrelation", "theory:AutocorrelationDocument", "autocorrelation DATA"),
    Document("families", "listings:FamiliesDocument", "families"),
    Document("formats", "listings:FormatsDocument", "formats"),
    Document("rules", "listings:RulesDocument", "rule"),
    Document("settings", "listings:SettingsDocument", "settings"),
)


def find_document(name: str) -> Document:
    """The document of a name; raises `UsageError` where there is none."""
    for document in DOCUMENTS:
        if document.name == name:
            return document
    what = f"{name[:200]!r} is not a document"
    remedy = f"known are {', '.join(document.name for document in DOCUMENTS)}"
    raise UsageError(what, where="schema", remedy=remedy)


def document_schema(document: Document) -> Schema:
    """The schema of a document, in JSON Schema draft 2020-12.

    Fields that it does not name are allowed: a later version of memcurse may add some.
    """
    kind = document.load()
    _, definitions = msgspec.json.schema_components(
        [kind],
        schema_hook=lambda _: {"type": "array"},  # of NumPy, which no document holds
        ref_template="#/$defs/{name}",
    )
    kinds = Record.__subclasses__()
    for one in kinds:
        kinds += one.__subclasses__()
        if (described := definitions.get(one.__name__)) is None:
            continue
        described["description"] = summarise(one)
        for name, text in describe_fields(one).items():
            described["properties"][name]["description"] = text
        for name in one.UNWRITTEN:
            del described["properties"][name]
    definitions.pop(HessianPicture.__name__, None)
    whole = definitions.pop(kind.__name__)
    named = {
        "const": document.identifier,
        "description": "What the document is, and the version of its fields.",
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"urn:memcurse:{document.name}:{document.identifier.rpartition('/')[2]}",
        **whole,
        "title": document.identifier,
        "properties": {"schema": named, **whole["properties"]},
        "required": ["schema", *whole["required"]],
        "$defs": dict(sorted(definitions.items())),
    }


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
