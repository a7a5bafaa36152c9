"""NumPy's arrays: .npy files alone, a directory of them, .npz archives, and Equinox's leaves.

equinox.tree_serialise_leaves writes .npy arrays one after another, without names, maybe after a
line of JSON; the shapes of Equinox's own GRU and LSTM cells tell where one lies
(equinox/_serialisation.py, equinox/nn/_rnn.py).
"""

from __future__ import annotations

import io
import math
import warnings
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import numpy as np
from numpy.lib import format as npy

from memcurse_cli.checkpoints.select import select_flat
from memcurse_cli.checkpoints.store import NUMERIC_KINDS, LazyTensor, Shape, TensorSpec, TensorStore
from memcurse_cli.checkpoints.untrusted.archive import Archive
from memcurse_cli.checkpoints.untrusted.names import about, printable
from memcurse_cli.checkpoints.untrusted.source import (
    ByteRange,
    Bytes,
    File,
    FilesBeside,
    LocalDirectory,
    naturals,
)
from memcurse_cli.errors import CheckpointError

MAGIC = b"\x93NUMPY"
SUFFIX = ".npy"
MAX_FILES = 10_000
# NumPy's own limit on the header's text is 10 000 characters.
MAX_HEADER_BYTES = 16_384
NOTES_SHOWN = 5


def open_file(file: File) -> TensorStore:
    """Read the header; the array is named after the file."""
    name = file.path.rpartition("/")[2].removesuffix(SUFFIX) or "array"
    return TensorStore(file, *arrays_of({name: file}, file.path))


def array_names(directory: LocalDirectory) -> list[str]:
    """The .npy files of a directory."""
    return [name for name in directory.files() if name.endswith(SUFFIX)]


def open_arrays(directory: LocalDirectory) -> TensorStore:
    """Every .npy file of a directory, named after its file."""
    names = array_names(directory)
    if len(names) > MAX_FILES:
        what = f"the directory has {len(names)} arrays, more than {MAX_FILES}"
        remedy = "save them in one .npz file"
        raise CheckpointError(what, where=directory.path, remedy=remedy)
    files = FilesBeside(directory)
    named = {name.removesuffix(SUFFIX): files[name] for name in names}
    tensors, notes = arrays_of(named, directory.path)
    return TensorStore(directory.path, tensors, notes, size=files.size, format="NumPy .npy")


def arrays_of(files: Mapping[str, Bytes], where: str) -> tuple[dict[str, LazyTensor], list[str]]:
    """The weights among .npy files, by their names without the suffix, and notes."""
    tensors: dict[str, LazyTensor] = {}
    notes: list[str] = []
    for name, content in files.items():
        shown = printable(name, 80)
        try:
            tensor, note = _array(content)
        except ValueError as error:
            what = f"a corrupt NumPy array: {shown}: {error}"
            raise CheckpointError(what, where=where) from error
        if tensor is not None:
            tensors[name] = tensor
        if note:
            notes.append(f"{shown} {note}")
    selected, left_out = select_flat(tensors)
    if len(notes) > NOTES_SHOWN:
        notes[NOTES_SHOWN - 1 :] = [f"{len(notes) - NOTES_SHOWN + 1} more arrays like these"]
    return selected, [*notes, *left_out]


def _array(content: Bytes) -> tuple[LazyTensor | None, str]:
    """One array, or None where it holds something else than numbers; and what to say of it."""
    shape, fortran, dtype, offset = _header(content.first(MAX_HEADER_BYTES))
    element, note = dtype.name, ""
    if dtype.kind == "V" and dtype.names is None and dtype.itemsize == 2:
        # NumPy stores the types of ml_dtypes as raw bytes; two of them are a bfloat16.
        element, note = "bfloat16", "is stored as 2 raw bytes, read as bfloat16"
    elif dtype.hasobject:
        return None, "is an array of Python objects, which only unpickling could read: left out"
    elif dtype.kind not in NUMERIC_KINDS:
        return None, f"has elements of type {printable(str(dtype), 40)}: left out"
    spec = TensorSpec(shape, element, math.prod(shape) * dtype.itemsize)
    spec.require(content.size - offset)
    big_endian = dtype.byteorder == ">"
    return LazyTensor.at(content, offset, spec, big_endian=big_endian, fortran=fortran), note


def _header(content: bytes) -> tuple[Shape, bool, np.dtype[Any], int]:
    """Shape, Fortran's order, type, and where the elements begin."""
    stream = io.BytesIO(content)
    try:
        version = npy.read_magic(stream)
        read = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}.get(version)
        if read is None:
            raise ValueError(f"version {version[0]}.{version[1]} is for structured arrays only")
        with warnings.catch_warnings():
            # NumPy warns of headers that Python 2 wrote, and reads them.
            warnings.simplefilter("ignore")
            shape, fortran, dtype = read(stream)
    # NumPy parses the header as Python literals, and a damaged one raises whatever it meets.
    except Exception as error:
        raise ValueError(f"it has no valid header ({printable(str(error), 80)})") from error
    return naturals(shape, "it has no valid shape"), fortran, dtype, stream.tell()


def open_archive(file: File, archive: Archive) -> TensorStore:
    """Read every member's header."""
    members = {
        name.removesuffix(SUFFIX): member
        for name, member in archive.items()
        if name.endswith(SUFFIX)
    }
    return TensorStore(file, *arrays_of(members, file.path))


MAX_SETTINGS_BYTES = 1 << 16
MAX_LEAVES = 100_000


def recognises(head: bytes, file: File) -> bool:
    """A second array where the first one ends, or a first one after a line of JSON."""
    start = _first_array(file)
    if start != 0:
        return start is not None
    with suppress(ValueError):
        _, first = _leaf(file, 0)
        return file.read(first.size, len(MAGIC)) == MAGIC
    return False


def open_leaves(file: File) -> TensorStore:
    """Read every header."""
    shapes: list[Shape] = []
    leaves: list[Bytes] = []
    offset = _first_array(file) or 0
    while offset < file.size:
        if len(shapes) == MAX_LEAVES:
            raise ValueError(f"it has more than {MAX_LEAVES} leaves")
        with about(f"leaf {len(shapes)}:"):
            shape, leaf = _leaf(file, offset)
        shapes.append(shape)
        leaves.append(leaf)
        offset += leaf.size
    named = dict(zip(leaf_names(shapes), leaves, strict=True))
    tensors, notes = arrays_of(named, file.path)
    unnamed = "the file has no names: leaves are numbered, and cells are known by their shapes"
    return TensorStore(file, tensors, [unnamed, *notes])


def _leaf(file: File, offset: int) -> tuple[Shape, Bytes]:
    """The array that starts here: its shape, and its bytes."""
    start = bytes(file.read(offset, min(file.size - offset, MAX_HEADER_BYTES)))
    shape, _, dtype, length = _header(start)
    if dtype.hasobject:
        raise ValueError("it is an array of Python objects")
    size = length + math.prod(shape) * dtype.itemsize
    if offset + size > file.size:
        raise ValueError("it reaches beyond the end of the file")
    return shape, ByteRange(file, offset, size)


def leaf_names(shapes: list[Shape]) -> list[str]:
    """``leaf0``, ``leaf1``, …, and ``cell0.weight_ih`` and so on for the leaves of a cell.

    A GRU cell is (3H, inputs), (3H, H), (3H), (H), and an LSTM cell (4H, inputs), (4H, H), (4H).
    """
    names = [f"leaf{index}" for index in range(len(shapes))]
    cells = 0
    for index in range(len(shapes)):
        fields = _cell(shapes[index : index + 4])
        names[index : index + len(fields)] = [f"cell{cells}.{field}" for field in fields]
        cells += bool(fields)
    return names


def _cell(shapes: list[Shape]) -> tuple[str, ...]:
    """The fields of the cell that starts here; none where none does."""
    if len(shapes) < 3 or len(shapes[0]) != 2 or len(shapes[1]) != 2 or not math.prod(shapes[1]):
        return ()
    rows, size = shapes[1]
    if shapes[0][0] != rows or shapes[2] != (rows,):
        return ()
    fields = ("weight_ih", "weight_hh", "bias")
    if rows == 4 * size:
        return fields
    return (*fields, "bias_n") if rows == 3 * size and shapes[3:] == [(size,)] else ()


def _first_array(file: File) -> int | None:
    """Where the first array starts; None where there is none."""
    head = file.first(MAX_SETTINGS_BYTES)
    if head.startswith(MAGIC):
        return 0
    found = head.find(b"\n" + MAGIC) if head.startswith(b"{") else -1
    return None if found < 0 else found + 1
