"""docs/json.md describes every field of every JSON document.

`MEMCURSE_UPDATE_README=1 pytest tests/docs/test_json_page.py` writes the page anew.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from memcurse_cli.schema.documents import DOCUMENTS, Document
from memcurse_cli.schema.json_codec import document_schema

PAGE = Path(__file__).resolve().parents[2] / "docs" / "json.md"
HEAD = """\
# JSON

Every command that prints figures prints them as JSON with `--json`. The field `schema` says what a
document is and which version its fields have; within a version fields are added but never renamed.
A number that does not exist, because it diverges or was not computed, is `null`; NaN and Infinity
are never written. The schema command prints a document's JSON Schema (draft 2020-12), for example
`memcurse schema report`; this page says the same in tables.
"""


def anchor(name: str) -> str:
    """What a heading is linked by."""
    return name.lower()


def kind(schema: Mapping[str, Any]) -> str:
    """A field's type in a few words."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{anchor(name)})"
    if "const" in schema:
        return f"`{schema['const']}`"
    if "enum" in schema:
        return ", ".join(f"`{one}`" for one in schema["enum"])
    if "anyOf" in schema:
        return " or ".join(map(kind, schema["anyOf"]))
    if "prefixItems" in schema:
        return f"[{', '.join(map(kind, schema['prefixItems']))}]"
    if schema["type"] == "array":
        return f"array of {kind(schema['items'])}"
    if "additionalProperties" in schema:
        return f"object of {kind(schema['additionalProperties'])} by name"
    return str(schema["type"])


def cell(text: str) -> str:
    """Text that does not end its column."""
    return text.replace("|", "\\|")


def table(schema: Mapping[str, Any]) -> str:
    """The fields of one object; those that may be missing are marked."""
    rows = ["| field | type | meaning |", "|---|---|---|"]
    for name, field in schema["properties"].items():
        shown = f"`{name}`" + ("" if name in schema["required"] else " *")
        rows.append(f"| {shown} | {cell(kind(field))} | {cell(field['description'])} |")
    return "\n".join(rows)


def section(document: Document, told: set[str]) -> str:
    """One document, and the objects in it that no earlier one has told."""
    schema = document_schema(document)
    parts = [
        f"## {document.identifier}",
        f"{document.summary} Written by the command `{document.command}`.".replace("`", ""),
        table(schema),
    ]
    for name, definition in schema["$defs"].items():
        if name not in told:
            told.add(name)
            parts += [f"### {name}", definition["description"], table(definition)]
    return "\n\n".join(parts)


def page() -> str:
    """The whole page."""
    told: set[str] = set()
    sections = [section(document, told) for document in DOCUMENTS]
    foot = (
        "\\* may be missing: newer than the first documents of its schema, or only where asked for."
    )
    return "\n\n".join([HEAD.rstrip(), foot, *sections]) + "\n"


def test_the_page_describes_every_field() -> None:
    if os.environ.get("MEMCURSE_UPDATE_README"):
        PAGE.write_text(page(), encoding="utf-8")
    assert PAGE.read_text(encoding="utf-8") == page()


def test_an_object_has_one_meaning_in_every_document() -> None:
    meanings: dict[str, Any] = {}
    for document in DOCUMENTS:
        for name, definition in document_schema(document)["$defs"].items():
            assert meanings.setdefault(name, definition) == definition, name
