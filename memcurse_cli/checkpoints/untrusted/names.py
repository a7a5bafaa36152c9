"""Text from elsewhere: names made safe to print, JSON of bounded size and depth."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any

MAX_NAME_LENGTH = 1000

_SCHEME = re.compile(r"([^?#@]*?(?<![A-Za-z0-9+.-])[A-Za-z0-9+.-]{2,}:[/\\]+)")
_NAMED = re.compile(r"([^?#@]*[/\\]{2}|[/\\]*)[^/\\:]*:[^/\\]*@")
_KEYED = re.compile(r"(?s)().*?\?[A-Za-z][\w.%-]*=")
_QUERY = re.compile(r"[?#]|[;&][\w.%-]+=")
_HOST = re.compile(r"(\[[^\]]*\]?|[^:]*)(:(\d*|PORT))?")  # as in our own dask://HOST:PORT
_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+)://")
_WORD = re.compile(r"""[^\s'"`()<>\[\]{},;:.](?:\S*[^\s'"`()<>\[\]{},;:.])?""")


def is_url(path: object) -> bool:
    """Whether a path is ``scheme://…``, of any scheme."""
    return isinstance(path, str) and _URL.match(path) is not None


def printable(text: str, limit: int = 200, keep: str = "") -> str:
    r"""``text`` with every character that is not printable escaped (``\x1b``), and shortened.

    Unicode counts controls, bidirectional overrides, lone surrogates and line separators as not
    printable; letters of any script stay as they are. The result is printable in turn.
    Of more than ``limit`` characters the middle is replaced by ``…``; those of ``keep`` stay.
    """
    if len(text) <= limit and text.isprintable():
        return text
    if len(text) > limit:
        head = (limit - 1) // 2
        text = f"{text[:head]}…{text[len(text) - (limit - 1 - head) :]}"
    escaped = "".join(
        character if character.isprintable() or character in keep else ascii(character)[1:-1]
        for character in text
    )
    return escaped if len(escaped) <= limit else f"{escaped[: limit - 1]}…"


def shown_place(place: str | os.PathLike[str], limit: int = 1000) -> str:
    """A path or URL that a user gave, as every report and message names it, made `printable`."""
    return printable(_without_credentials(os.fsdecode(place)), limit)


def shown_text(text: str) -> str:
    """A message of a library's, or one with what a user typed: each URL in it as `shown_place`."""
    return _WORD.sub(lambda word: _without_credentials(word[0]), text)


def _without_credentials(place: str) -> str:
    """A URL without name, password, query and fragment, any of which may be secret.

    A URL that is misspelt holds secrets as well, so that this does not parse it but takes for one
    whatever has a scheme (also one that lacks a slash), begins with ``NAME:PASSWORD@`` or has a
    query ``?KEY=``. Any other path is returned as it is.
    """
    url = _SCHEME.match(place) or _NAMED.match(place) or _KEYED.match(place)
    if url is None:
        return place
    start = url.end(1)
    shown = _QUERY.split(place[start:], maxsplit=1)[0]
    host = re.split(r"[/\\]", shown, maxsplit=1)[0]
    path = shown[len(host) :]
    host = host.rpartition("@")[2]
    if _HOST.fullmatch(host) is None or re.search(r":[/\\]+[^/\\]*@", path):
        # A password with a / ? or # of its own, or a URL within another.
        _, at, rest = place[start:].rpartition("@")
        if at:
            host, path = "", _QUERY.split(rest, maxsplit=1)[0]
        else:
            host = host.partition(":")[0]
    return place[:start] + host + path


@contextmanager
def about(what: str) -> Iterator[None]:
    """A block of which a ValueError, whose text is a clause, is said to be about ``what``."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"{what} {error}") from error


MAX_JSON_BYTES = 100_000_000
# Bounds what the parser may allocate: an empty list is 2 bytes of JSON and 56 of memory.
MAX_CONTAINERS = 3_000_000
INTEGER_DIGITS = 20  # of an unsigned integer of 64 bits
INFINITE = ("Infinity", "-Infinity")
NOT_FINITE = (*INFINITE, "NaN")


def parse_object(content: bytes, *, understood: Collection[str] = ()) -> dict[str, Any]:
    """The JSON object in ``content``; ValueError as `parse_json`, or where it is not an object."""
    parsed = parse_json(content, understood=understood)
    if not isinstance(parsed, dict):
        raise ValueError("it is not a JSON object")
    return parsed


def parse_json(content: bytes, *, understood: Collection[str] = ()) -> Any:
    """The JSON value in ``content``, which is UTF-8.

    ``understood`` are those of `NOT_FINITE`, which JSON has not, that are taken for numbers.
    Raises ValueError, with a clause: too large, not JSON, nested too deeply, or a key twice.
    """
    if len(content) > MAX_JSON_BYTES:
        raise ValueError(f"it has more than {MAX_JSON_BYTES} bytes")
    if content.count(b"[") + content.count(b"{") > MAX_CONTAINERS:
        raise ValueError(f"it has more than {MAX_CONTAINERS} lists and objects")

    def constant(text: str) -> float:
        if text in understood:
            return float(text)
        raise ValueError(f"{text} is not a number")

    try:
        return json.loads(
            content.decode("utf-8-sig"),
            object_pairs_hook=_unique,
            parse_int=_integer,
            parse_constant=constant,
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
