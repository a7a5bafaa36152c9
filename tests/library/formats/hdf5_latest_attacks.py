"""Attack files in the structures that HDF5 has since version 1.8: heaps, B-trees, chunk indexes."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from attacks.build import attack

Limits = tuple[int | None, ...] | None


def _chunked(directory: Path, limits: Limits, shape: tuple[int, ...] = (40, 30)) -> Path:
    with h5py.File(directory / "a.h5", "w", libver="latest") as file:
        chunks = (2,) * len(shape)
        file.create_dataset("w", data=np.ones(shape), chunks=chunks, maxshape=limits)
    return directory / "a.h5"


def _linked(directory: Path, count: int) -> Path:
    with h5py.File(directory / "a.h5", "w", libver="latest") as file:
        for index in range(count):
            file[f"a name of a dataset {index}"] = 1.0
    return directory / "a.h5"


def _edited(path: Path, mark: bytes, change: Callable[[bytearray, int], Any]) -> Path:
    """The file with a change to its last structure that begins with a mark."""
    content = bytearray(path.read_bytes())
    at = content.rindex(mark)
    change(content, at)
    path.write_bytes(content)
    return path


def _set(layout: str, place: int, *values: int) -> Callable[[bytearray, int], Any]:
    return lambda content, at: struct.pack_into(f"<{layout}", content, at + place, *values)


def _child_is_itself(content: bytearray, at: int) -> None:
    """Every child of an internal node becomes the node."""
    (width,) = struct.unpack_from("<H", content, content.rindex(b"BTHD") + 10)
    (count,) = struct.unpack_from("<H", content, content.rindex(b"BTHD") + 24)
    for child in range(count + 1):
        place = at + 6 + count * width + child * 9
        struct.pack_into("<QB", content, place, at, count)


@attack("back to itself")
def hdf5_tree_within_itself(directory: Path) -> Path:
    return _edited(_chunked(directory, (None, None)), b"BTIN", _child_is_itself_deeply)


def _child_is_itself_deeply(content: bytearray, at: int) -> None:
    # The depth is claimed to be 32, so that every node may have children.
    _child_is_itself(content, at)
    tree = content.rindex(b"BTHD")
    struct.pack_into("<H", content, tree + 12, 1)
    struct.pack_into("<Q", content, at + 6, at)


@attack("impossible shape")
def hdf5_tree_of_65535_levels(directory: Path) -> Path:
    return _edited(_chunked(directory, (None, None)), b"BTHD", _set("H", 12, 65535))


@attack("claims")
def hdf5_tree_of_10_to_the_18_records(directory: Path) -> Path:
    return _edited(_chunked(directory, (None, None)), b"BTHD", _set("Q", 26, 10**18))


@attack("ends at byte")
def hdf5_tree_with_nodes_of_4_gigabytes(directory: Path) -> Path:
    return _edited(_chunked(directory, (None, None)), b"BTHD", _set("I", 6, 2**32 - 1))


@attack("too short")
def hdf5_fixed_array_of_no_chunk(directory: Path) -> Path:
    return _edited(_chunked(directory, None), b"FAHD", _set("Q", 8, 0))


@attack("ends at byte")
def hdf5_fixed_array_of_34_gigabytes(directory: Path) -> Path:
    return _edited(_chunked(directory, None), b"FAHD", _set("BQ", 7, 32, 2**32))


@attack("impossible shape")
def hdf5_extensible_array_of_odd_blocks(directory: Path) -> Path:
    return _edited(_chunked(directory, (None, 30)), b"EAHD", _set("BB", 9, 3, 3))


@attack("ends at byte")
def hdf5_extensible_array_outside_the_file(directory: Path) -> Path:
    return _edited(_chunked(directory, (None,), (4000,)), b"EAIB", _set("10Q", 14, *(2**62,) * 10))


@attack("ends at byte")
def hdf5_heap_within_itself(directory: Path) -> Path:
    path = _linked(directory, 3000)
    content = path.read_bytes()
    root = content.rindex(b"FHIB")
    blocks = 16
    return _edited(path, b"FHIB", _set(f"{blocks}Q", 17, *(root,) * blocks))


@attack("in no block of its heap")
def hdf5_objects_outside_their_heap(directory: Path) -> Path:
    # Each record is a hash, a byte of flags, an offset of 4 bytes and a length of 2.
    everywhere = b"\0" * 5 + b"\xff" * 6
    path = _linked(directory, 20)
    return _edited(path, b"BTLF", lambda content, at: _fill(content, at + 6, everywhere * 20))


def _fill(content: bytearray, at: int, new: bytes) -> None:
    content[at : at + len(new)] = new


@attack("without end")
def hdf5_groups_that_share_a_long_list(directory: Path) -> Path:
    """Many groups with the same list of many names."""
    with h5py.File(directory / "a.h5", "w", libver="latest") as file:
        shared = file.create_group("shared")
        for index in range(6000):
            shared[f"{index}"] = h5py.SoftLink("/")
        for index in range(600):
            group = file.create_group(f"g{index}")
            for name in range(9):
                group[f"{name}"] = h5py.SoftLink("/")
        file.flush()
    content = bytearray((directory / "a.h5").read_bytes())
    # The link information message of each group: its heap and its B-tree of names.
    places = []
    at = content.find(b"OHDR")
    while at >= 0:
        places.append(content.find(b"\x02\x12\x00\x00", at, at + 40) + 6)
        at = content.find(b"OHDR", at + 1)
    longest = max(
        (place for place in places if place > 6), key=lambda place: _total(content, place)
    )
    lists = bytes(content[longest : longest + 16])
    for place in places[1:]:
        if place > 6:
            content[place : place + 16] = lists
    (directory / "a.h5").write_bytes(content)
    return directory / "a.h5"


def _total(content: bytearray, place: int) -> int:
    """How many names the list of a link information message has."""
    (tree,) = struct.unpack_from("<Q", content, place + 8)
    if content[tree : tree + 4] != b"BTHD":
        return 0
    (total,) = struct.unpack_from("<Q", content, tree + 26)
    return int(total)
