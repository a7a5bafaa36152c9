"""The schemas follow the classes, describe every field, and hold what they should."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Annotated, ClassVar, Literal

import jsonschema
import pytest
from hypothesis import given, settings
from reports.strategies import closed, instances

import memcurse_cli
from memcurse_cli.schema.documents import DOCUMENTS, Document, document_schema, find_document
from memcurse_cli.schema.figures import Record
from memcurse_cli.schema.json_codec import to_json
from memcurse_cli.schema.report import Report

CLOSED = closed(find_document("report"))
VALIDATOR = jsonschema.Draft202012Validator(CLOSED)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda document: document.name)
def test_a_schema_is_one_and_describes_every_field(document: Document) -> None:
    schema = document_schema(document)
    jsonschema.Draft202012Validator.check_schema(schema)
    for name, kind in {document.name: schema, **schema["$defs"]}.items():
        assert kind["description"], name
        for field, found in kind["properties"].items():
            assert found.get("description"), f"{name}.{field} is not described"


def test_every_identifier_of_the_source_is_a_document() -> None:
    package = Path(memcurse_cli.__file__).parent
    written = {
        found
        for path in package.rglob("*.py")
        for found in re.findall(r"\"(memcurse\.[a-z]+/\d+)\"", path.read_text())
    }
    assert written == {document.identifier for document in DOCUMENTS}


@given(instances(Report))
@settings(max_examples=30)
def test_every_report_is_what_the_schema_says(made: Report) -> None:
    VALIDATOR.validate(json.loads(json.dumps(to_json(made))))


class Example(Record, frozen=True):
    """A class."""

    SCHEMA: ClassVar = "e/1"

    first: Annotated[int | None, "what it is: ``None``."]
    second: Annotated[tuple[Literal["a", "b"], float], "another."]
    third: dict[str, bool]


def test_types_are_what_json_makes_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    example = Document("example", "listings:Example", "")
    monkeypatch.setattr("memcurse_cli.schema.listings.Example", Example, raising=False)
    schema = closed(example)
    validator = jsonschema.Draft202012Validator(schema)
    good = {"schema": "e/1", "first": None, "second": ["a", 1], "third": {"x": True}}
    validator.validate(good)
    for change in (
        {"first": 1.5},
        {"second": ["c", 1]},
        {"second": ["a"]},
        {"second": ["a", 1, 2]},
        {"third": {"x": 1}},
    ):
        assert not validator.is_valid({**good, **change}), change
