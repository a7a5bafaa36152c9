"""Hypothesis strategies for anything that the report's types allow, not only what is sensible."""

from __future__ import annotations

import types
import typing
from typing import Any, Literal

from hypothesis import strategies as st

from memcurse_cli.schema.documents import Document, document_schema
from memcurse_cli.schema.figures import Record

FLOATS = st.floats(allow_nan=False, allow_infinity=False)
COUNTS = st.integers(0, 2**63)
NAMES = st.text(max_size=30) | st.sampled_from(["layers.0.rnn", "layers.1.rnn", "nu_log"])
SCALARS = {float: FLOATS, int: COUNTS, bool: st.booleans(), str: NAMES}


def instances(kind: Any) -> st.SearchStrategy[Any]:
    """Values of a type: a record of the schema, a scalar, a union, a tuple, a literal."""
    arguments = typing.get_args(kind)
    if isinstance(kind, type) and issubclass(kind, Record):
        hints = typing.get_type_hints(kind)
        written = (name for name in kind.__struct_fields__ if name not in kind.UNWRITTEN)
        return st.builds(kind, **{name: instances(hints[name]) for name in written})
    if typing.get_origin(kind) in (types.UnionType, typing.Union):
        return st.one_of(
            st.none() if argument is types.NoneType else instances(argument)
            for argument in arguments
        )
    if typing.get_origin(kind) is Literal:
        return st.sampled_from(arguments)
    if typing.get_origin(kind) is tuple:
        if arguments[-1] is Ellipsis:
            return st.lists(instances(arguments[0]), max_size=3).map(tuple)
        return st.tuples(*map(instances, arguments))
    return SCALARS[kind]


def closed(document: Document) -> dict[str, Any]:
    """The schema of a document that refuses fields it does not name."""
    schema = document_schema(document)
    for kind in (schema, *schema["$defs"].values()):
        kind["additionalProperties"] = False
    return schema
