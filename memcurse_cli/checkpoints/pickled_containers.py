"""Python's own containers as pickles call for them, built from plain data."""

from __future__ import annotations

from memcurse_cli.checkpoints.pickle_lines import EscapedBytes
from memcurse_cli.checkpoints.pickle_machine import Constructor
from memcurse_cli.checkpoints.pickle_values import Global, PickleError, Record


def _dictionary(*arguments: object) -> object:
    # OrderedDict(), dict(pairs), defaultdict(factory, entries)
    entries: dict[object, object] = {}
    source = arguments[-1] if arguments else None
    if isinstance(source, dict):
        entries.update(source)
    elif isinstance(source, list | tuple):
        for pair in source:
            if not isinstance(pair, list | tuple) or len(pair) != 2:
                raise PickleError("it has a malformed dictionary")
            if not isinstance(pair[0], str | bytes | int):
                continue
            entries[pair[0]] = pair[1]
    return entries


def _listed(values: object = ()) -> list[object]:
    return list(values) if isinstance(values, list | tuple) else []


def _encoded(text: object, encoding: object = "latin1") -> object:
    # How protocols 0 to 2 write bytes: text in which each character is one of them.
    if isinstance(text, EscapedBytes) and encoding in ("latin1", "latin-1"):
        return text
    if not isinstance(text, str) or encoding not in ("latin1", "latin-1", "utf-8", "utf8"):
        raise PickleError("it encodes what is not text")
    return text.encode("latin-1" if "latin" in str(encoding) else "utf-8", "replace")


def _record(function: object, *rest: object) -> Record:
    return Record(function)


def _first(value: object = b"", *_: object) -> object:
    return value


def python_constructors() -> dict[Global, Constructor]:
    """How to build dictionaries, lists and byte strings."""
    table: dict[Global, Constructor] = {
        Global("collections", "OrderedDict"): _dictionary,
        Global("collections", "defaultdict"): _dictionary,
        Global("_codecs", "encode"): _encoded,
        Global("copyreg", "_reconstructor"): _record,
        Global("copy_reg", "_reconstructor"): _record,
    }
    for builtins in ("builtins", "__builtin__"):
        table[Global(builtins, "dict")] = _dictionary
        for kind in ("list", "set", "frozenset", "tuple"):
            table[Global(builtins, kind)] = _listed
        table[Global(builtins, "bytearray")] = _first
    return table
