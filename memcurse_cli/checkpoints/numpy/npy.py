"""Weights saved with numpy.save: a .npy file alone, a directory of them, or members of an archive.

Headers are read first, elements by range.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.lib import format as npy

from memcurse_cli.checkpoints.elements import NUMERIC_KINDS, element_count
from memcurse_cli.checkpoints.lazy import LazyStore, LazyTensor, elements_at
from memcurse_cli.checkpoints.select import select_flat
from memcurse_cli.checkpoints.store import TensorSpec
from memcurse_cli.checkpoints.untrusted.names import printable
from memcurse_cli.checkpoints.untrusted.ranges import Bytes, naturals
from memcurse_cli.checkpoints.untrusted.source import DataFile, File, LocalDirectory
from memcurse_cli.errors import CheckpointError

MAGIC = b"\x93NUMPY"
SUFFIX = ".npy"
MAX_FILES = 10_000
# NumPy's own limit on the header's text is 10 000 characters.
MAX_HEADER_BYTES = 16_384
NOTES_SHOWN = 5


def open_file(file: File) -> LazyStore:
    """Read the header; the array is named after the file."""
    name = file.path.rpartition("/")[2].removesuffix(SUFFIX) or "array"
    tensors, notes = arrays_of({name: file}, file.path)
    return LazyStore(
        path=file.path, bytes=file.size, tensors=tensors, notes=notes, resources=[file]
    )


def array_names(directory: LocalDirectory) -> list[str]:
    """The .npy files of a directory."""
    return [name for name in directory.files() if name.endswith(SUFFIX)]


def open_arrays(directory: LocalDirectory) -> LazyStore:
    """Every .npy file of a directory, named after its file.

    Raises:
        CheckpointError: there are too many, one is damaged, or a link leads outside.
    """
    names = array_names(directory)
    if len(names) > MAX_FILES:
        raise CheckpointError(
            f"the directory has {len(names)} arrays, more than {MAX_FILES}",
            where=directory.path,
            remedy="save them in one .npz file",
        )
    files = {name.removesuffix(SUFFIX): DataFile(directory, name) for name in names}
    tensors, notes = arrays_of(files, directory.path)
    return LazyStore(
        path=directory.path,
        format="NumPy .npy",
        bytes=sum(file.size for file in files.values()),
        tensors=tensors,
        notes=notes,
    )


def arrays_of(files: Mapping[str, Bytes], where: str) -> tuple[dict[str, LazyTensor], list[str]]:
    """The weights among .npy files, by their names without the suffix, and notes.

    Raises:
        CheckpointError: a header is damaged, or a shape does not fit the bytes that follow.
    """
    tensors: dict[str, LazyTensor] = {}
    notes: list[str] = []
    for name, content in files.items():
        shown = printable(name, 80)
        try:
            tensor, note = _array(content)
        except ValueError as error:
            raise CheckpointError(
                f"a corrupt NumPy array: {shown} {error}",
                where=where,
                remedy="copy or download it again",
            ) from error
        if tensor is not None:
            tensors[name] = tensor
        if note:
            notes.append(f"{shown} {note}")
    selected, left_out = select_flat(tensors)
    if len(notes) > NOTES_SHOWN:
        more = len(notes) - NOTES_SHOWN + 1
        notes = [*notes[: NOTES_SHOWN - 1], f"{more} more arrays like these"]
    return selected, [*notes, *left_out]


def _array(content: Bytes) -> tuple[LazyTensor | None, str]:
    """One array, or None where it holds something else than numbers; and what to say of it."""
    start = bytes(content.read(0, min(content.size, MAX_HEADER_BYTES)))
    shape, fortran, dtype, offset = _header(start)
    if naturals(shape) is None:
        raise ValueError("has no valid shape")
    element, note = dtype.name, ""
    if dtype.kind == "V" and dtype.names is None and dtype.itemsize == 2:
        # NumPy stores the types of ml_dtypes as raw bytes; two of them are a bfloat16.
        element, note = "bfloat16", "is stored as 2 raw bytes, read as bfloat16"
    elif dtype.hasobject:
        return None, "is an array of Python objects, which only unpickling could read: left out"
    elif dtype.kind not in NUMERIC_KINDS:
        return None, f"has elements of type {printable(str(dtype), 40)}: left out"
    needed = element_count(shape) * dtype.itemsize
    if needed != content.size - offset:
        raise ValueError(
            f"needs {printable(str(needed), 40)} bytes for its shape and has "
            f"{content.size - offset}"
        )
    spec = TensorSpec(shape, element, needed)
    big_endian = dtype.byteorder == ">"
    return elements_at(content, offset, spec, big_endian=big_endian, fortran=fortran), note


def shape_and_length(content: bytes) -> tuple[tuple[int, ...], int]:
    """The shape of the array that starts here, and how many bytes it takes with its header.

    Raises:
        ValueError: with the fault as a clause; there is no valid header.
    """
    shape, _, dtype, offset = _header(content)
    if dtype.hasobject or naturals(shape) is None:
        raise ValueError("is an array of Python objects, or has no valid shape")
    return shape, offset + element_count(shape) * dtype.itemsize


def _header(content: bytes) -> tuple[tuple[int, ...], bool, np.dtype[Any], int]:
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
            return *read(stream), stream.tell()
    # NumPy parses the header as Python literals, and a damaged one raises whatever it meets.
    except Exception as error:
        raise ValueError(f"has no valid header ({printable(str(error), 80)})") from error
