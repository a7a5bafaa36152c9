"""Attack files in Flax's msgpack."""

from __future__ import annotations

from pathlib import Path

import msgpack
import numpy as np
from attacks.build import attack
from flax import serialization


def _written(directory: Path, content: bytes) -> Path:
    (directory / "a.msgpack").write_bytes(content)
    return directory / "a.msgpack"


def _array(shape: tuple[int, ...]) -> msgpack.ExtType:
    return msgpack.ExtType(1, msgpack.packb((shape, "float32", bytes(8))))


@attack("needs")
def msgpack_array_of_10_to_the_36_elements(directory: Path) -> Path:
    return _written(directory, msgpack.packb({"w": _array((10**18, 10**18))}))


@attack("claims at least")
def msgpack_map_of_four_billion_entries(directory: Path) -> Path:
    return _written(directory, b"\x81\xa1w\xdf\xff\xff\xff\xff")


@attack("claims at least")
def msgpack_lists_of_four_billion_lists(directory: Path) -> Path:
    return _written(directory, b"\x81\xa1w" + b"\xdd\xff\xff\xff\xff" * 1000)


@attack("entries")
def msgpack_list_of_two_million_lists(directory: Path) -> Path:
    return _written(
        directory, b"\x81\xa1w\xdd" + (2 * 10**6).to_bytes(4, "big") + b"\x90" * (2 * 10**6)
    )


@attack("nested more than")
def msgpack_nested_a_million_deep(directory: Path) -> Path:
    return _written(directory, b"\x81\xa1w" * 10**6 + b"\x01")


@attack("stands twice")
def msgpack_key_that_stands_twice(directory: Path) -> Path:
    entry = msgpack.packb("w") + msgpack.packb(_array((2,)))
    return _written(directory, b"\x82" + entry + entry)


@attack("the same name")
def msgpack_names_that_join_alike(directory: Path) -> Path:
    tree = {"a": {"b/c": _array((2,))}, "a/b": {"c": _array((2,))}}
    return _written(directory, msgpack.packb(tree))


@attack("holds no weights")
def msgpack_object_of_another_extension(directory: Path) -> Path:
    # msgpack-numpy and others pickle what they do not know; no extension but Flax's is opened.
    return _written(directory, msgpack.packb({"w": msgpack.ExtType(127, b"cos\nsystem\n.")}))


@attack("a key of")
def msgpack_name_of_a_million_characters(directory: Path) -> Path:
    return _written(directory, msgpack.packb({"a": 1, "w" * 10**6: _array((2,))}))


@attack("opens")
def msgpack_names_that_write_to_the_terminal(directory: Path) -> Path:
    tree = {"\x1b]0;owned\x07": {"\x1b[2Jkernel": np.eye(3), "\u202ebias": np.ones(3)}}
    return _written(directory, serialization.msgpack_serialize(tree))
