"""The report as JSON, `memcurse.report/1`, and back: the same fields, nothing lost.

A number that does not exist is null; NaN and Infinity are never written and never accepted. The
text is ASCII, so that any name survives any terminal and pipe.
"""

from __future__ import annotations

import dataclasses
import json
import math
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, Literal, TypeVar

from memcurse_cli.checkpoints.untrusted.json_header import parse_json
from memcurse_cli.errors import MemcurseError, UsageError
from memcurse_cli.reports.numbers import component_objects
from memcurse_cli.schema.report import SCHEMA, InputAssumption, LayerReport, Report

Part = TypeVar("Part")

ONLY_IF_ASKED_FOR = {
    "EigenvalueSummary": ("values", "relative_sensitivities"),
    "SpectrumMove": ("pairs",),
}
"""Fields, by their class, that are left out of the document instead of written as null."""


def to_json(report: Report, *, values: bool = True) -> dict[str, Any]:
    """The JSON object of a report: ``schema`` first, then the fields in their own order.

    Without ``values`` the eigenvalues and the curves behind them are left out.
    """
    if not values:
        report = dataclasses.replace(
            report, curves=(), layers=tuple(_without_values(layer) for layer in report.layers)
        )
    return {"schema": SCHEMA, **encode(report)}


def _without_values(layer: LayerReport) -> LayerReport:
    spectrum = dataclasses.replace(layer.eigenvalues, values=None, relative_sensitivities=None)
    return dataclasses.replace(layer, eigenvalues=spectrum)


def from_json(document: object, *, where: str = "report") -> Report:
    """The report that a JSON object holds; fields that a later version added are passed over.

    Args:
        document: what `json.loads` gave.
        where: what errors name as the place.

    Raises:
        UsageError: a schema of another major version, or of something else.
        MemcurseError: a field is missing or is not what the schema says.
    """
    if not isinstance(document, dict):
        raise _wrong("not a JSON object", where, "")
    schema = document.get("schema")
    if not isinstance(schema, str) or schema.partition(".report/")[0] != "memcurse":
        raise UsageError(
            "not a memcurse report", where=where, remedy="write one with memcurse inspect --json"
        )
    if schema.partition("/")[2].split(".")[0] != SCHEMA.partition("/")[2]:
        raise UsageError(
            f"the schema is {schema[:40]!r}, this version reads {SCHEMA}",
            where=where,
            remedy="write the report again with this version of memcurse",
        )
    return decode(Report, document, where=where)


def dumps(reports: Sequence[Report], *, values: bool = True) -> str:
    """The text of one report's object, or of an array of several.

    Args:
        reports: what to write.
        values: whether to write the eigenvalues and curves that the reports hold.
    """
    documents = [to_json(report, values=values) for report in reports]
    return json.dumps(documents[0] if len(documents) == 1 else documents, indent=2, allow_nan=False)


def loads(text: str | bytes, *, where: str = "report") -> list[Report]:
    """The reports in a text that `dumps` wrote.

    Raises:
        UsageError: a schema of another major version, or of something else.
        MemcurseError: not JSON, or a field is not what the schema says.
    """
    try:
        document = parse_json(text.encode() if isinstance(text, str) else text)
    except ValueError as error:
        raise _wrong(f"not JSON: {error}", where, "") from error
    documents = document if isinstance(document, list) else [document]
    return [from_json(one, where=where) for one in documents]


def encode(value: Any) -> Any:
    """The fields of a report, or of a part of one, as JSON holds them."""
    if dataclasses.is_dataclass(value):
        fields = {
            field.name: encode(getattr(value, field.name)) for field in dataclasses.fields(value)
        }
        if isinstance(value, InputAssumption):
            fields["autocorrelation"] = component_objects(value.autocorrelation)
        for name in ONLY_IF_ASKED_FOR.get(type(value).__name__, ()):
            if fields[name] is None:
                del fields[name]
        return fields
    if isinstance(value, tuple):
        return [encode(element) for element in value]
    return value


def decode(kind: type[Part], document: object, *, where: str) -> Part:
    """What `encode` wrote of a dataclass that has the field types of a report.

    Args:
        kind: the dataclass.
        document: what `json.loads` gave.
        where: what errors name as the place.

    Raises:
        MemcurseError: a field is missing or is not what its type says.
    """
    of_any: Any = kind
    decoded: Part = _decoder(of_any)(document, _Place(where))
    return decoded


@dataclasses.dataclass(frozen=True)
class _Place:
    """Where in a document a decoder stands, for its errors."""

    where: str
    path: str = ""

    def __truediv__(self, step: str | int) -> _Place:
        inside = f"[{step}]" if isinstance(step, int) else f".{step}" if self.path else step
        return _Place(self.where, self.path + inside)

    def wrong(self, what: str) -> MemcurseError:
        return _wrong(what, self.where, self.path)


def _wrong(what: str, where: str, path: str) -> MemcurseError:
    return MemcurseError(
        f"{path} {what}" if path else what,
        where=where,
        remedy="give the JSON that memcurse inspect --json wrote",
    )


Decoder = Callable[[Any, _Place], Any]


@cache
def _decoder(kind: Any) -> Decoder:
    """What reads a value of this type, and refuses every other."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if dataclasses.is_dataclass(kind):
        return _object_decoder(kind)
    if origin in (typing.Union, types.UnionType):
        (inner,) = [argument for argument in arguments if argument is not type(None)]
        return _optional_decoder(_decoder(inner))
    if origin is tuple:
        if arguments[-1] is Ellipsis:
            return _array_decoder(_decoder(arguments[0]))
        return _pair_decoder([_decoder(argument) for argument in arguments])
    if origin is Literal:
        return _choice_decoder(arguments)
    return {float: _number, int: _integer, bool: _boolean, str: _string}[kind]


def _object_decoder(kind: Any) -> Decoder:
    hints = typing.get_type_hints(kind)
    fields = dataclasses.fields(kind)
    of_input = kind is InputAssumption
    decoders = {
        field.name: _array_decoder(_component)
        if of_input and field.name == "autocorrelation"
        else _decoder(hints[field.name])
        for field in fields
    }

    def decode(value: Any, place: _Place) -> Any:
        if not isinstance(value, Mapping):
            raise place.wrong("is not an object")
        found = {}
        for field in fields:
            if field.name in value:
                found[field.name] = decoders[field.name](value[field.name], place / field.name)
            elif field.default is dataclasses.MISSING:
                raise (place / field.name).wrong("is missing")
        return kind(**found)

    return decode


def _optional_decoder(inner: Decoder) -> Decoder:
    return lambda value, place: None if value is None else inner(value, place)


def _array_decoder(inner: Decoder) -> Decoder:
    def decode(value: Any, place: _Place) -> tuple[Any, ...]:
        if not isinstance(value, list):
            raise place.wrong("is not an array")
        return tuple(inner(element, place / index) for index, element in enumerate(value))

    return decode


def _pair_decoder(inner: Sequence[Decoder]) -> Decoder:
    def decode(value: Any, place: _Place) -> tuple[Any, ...]:
        if not isinstance(value, list) or len(value) != len(inner):
            raise place.wrong(f"is not an array of {len(inner)}")
        return tuple(
            decoder(element, place / index)
            for index, (decoder, element) in enumerate(zip(inner, value, strict=True))
        )

    return decode


def _choice_decoder(choices: Sequence[Any]) -> Decoder:
    def decode(value: Any, place: _Place) -> Any:
        if value not in choices:
            raise place.wrong(f"is not one of {', '.join(choices)}")
        return value

    return decode


def _component(value: Any, place: _Place) -> tuple[float, float] | tuple[float, float, float]:
    """One ``{"weight", "rho"}`` of an autocorrelation, and its frequency where it has one."""
    if not isinstance(value, Mapping) or not {"weight", "rho"} <= value.keys():
        raise place.wrong('is not an object with "weight" and "rho"')
    weight, rho = _number(value["weight"], place / "weight"), _number(value["rho"], place / "rho")
    if "frequency" not in value:
        return weight, rho
    return weight, rho, _number(value["frequency"], place / "frequency")


def _number(value: Any, place: _Place) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise place.wrong("is not a number")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise place.wrong("is not a finite number")
    return number


def _integer(value: Any, place: _Place) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise place.wrong("is not an integer")
    _number(value, place)  # within the range that figures have
    return value


def _boolean(value: Any, place: _Place) -> bool:
    if not isinstance(value, bool):
        raise place.wrong("is not true or false")
    return value


def _string(value: Any, place: _Place) -> str:
    if not isinstance(value, str):
        raise place.wrong("is not a string")
    return value
