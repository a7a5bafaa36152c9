"""JSON from an untrusted file: size, nesting and duplicate keys are checked."""

from __future__ import annotations

import json
from typing import Any, NoReturn

from memcurse_cli.checkpoints.untrusted.names import printable

MAX_JSON_BYTES = 100_000_000
# Bounds what the parser may allocate: an empty list is 2 bytes of JSON and 56 of memory.
MAX_CONTAINERS = 3_000_000
INTEGER_DIGITS = 20  # of an unsigned integer of 64 bits


def parse_object(content: bytes, *, infinity: bool = False) -> dict[str, Any]:
    """The JSON object in ``content``.

    Args:
        content: UTF-8.
        infinity: whether to understand ``Infinity`` and ``-Infinity``, which are not JSON.

    Raises:
        ValueError: with the fault as a clause; as `parse_json`, or it is not an object.
    """
    parsed = parse_json(content, infinity=infinity)
    if not isinstance(parsed, dict):
        raise ValueError("it is not a JSON object")
    return parsed


def parse_json(content: bytes, *, infinity: bool = False) -> Any:
    """The JSON value in ``content``; the arguments of `parse_object`.

    Raises:
        ValueError: with the fault as a clause; the content is too large, not JSON, nested too
            deeply, or has a key twice.
    """
    if len(content) > MAX_JSON_BYTES:
        raise ValueError(f"it has more than {MAX_JSON_BYTES} bytes")
    if content.count(b"[") + content.count(b"{") > MAX_CONTAINERS:
        raise ValueError(f"it has more than {MAX_CONTAINERS} lists and objects")
    try:
        return json.loads(
            content.decode("utf-8-sig"),
            object_pairs_hook=_unique,
            parse_int=_integer,
            parse_constant=_infinity if infinity else _no_constant,
        )
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    except UnicodeDecodeError as error:
        raise ValueError("it is not UTF-8") from error
    except ValueError as error:
        raise ValueError(f"it is not valid JSON ({printable(str(error), 120)})") from error


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    entries = dict(pairs)
    if len(entries) != len(pairs):
        raise ValueError("a key stands twice")
    return entries


def _integer(text: str) -> int:
    if len(text) > INTEGER_DIGITS:  # no double may hold it, nor Python print it
        raise ValueError(f"a whole number has more than {INTEGER_DIGITS} digits")
    return int(text)


def _infinity(text: str) -> float:
    return float(text) if text.endswith("Infinity") else _no_constant(text)


def _no_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is not a number")
