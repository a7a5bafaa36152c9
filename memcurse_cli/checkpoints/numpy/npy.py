"""NumPy's .npy arrays, in an archive or a directory: headers first, elements by range.

Weights saved with numpy.save, one file each: a .npy file alone, or a directory of them.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Mapping
from typing import Any, NoReturn

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from memcurse_cli.checkpoints.elements import NUMERIC_KINDS, decode, element_count
from memcurse_cli.checkpoints.lazy import LazyStore, LazyTensor
from memcurse_cli.checkpoints.optimizer.training_state import select_flat
from memcurse_cli.checkpoints.store import TensorSpec
from memcurse_cli.checkpoints.torch.pickle_machine import Bytes
from memcurse_cli.checkpoints.untrusted.names import printable
from memcurse_cli.checkpoints.untrusted.source import DataFile, File, LocalDirectory
from memcurse_cli.errors import CheckpointError

SUFFIX = ".npy"
# NumPy's own limit on the header's text is 10 000 characters.
MAX_HEADER_BYTES = 16_384
MAX_DIMENSIONS = 64


def arrays_of(files: Mapping[str, Bytes], where: str) -> tuple[dict[str, LazyTensor], list[str]]:
    """The weights among .npy files, by their names without the suffix, and notes.

    Raises:
        CheckpointError: a header is damaged, or a shape does not fit the bytes that follow.
    """
    tensors: dict[str, LazyTensor] = {}
    notes = []
    for name, content in files.items():
        array = _Array(content, name, where)
        if array.reason:
            notes.append(f"{printable(name, 80)} {array.reason}: left out")
        else:
            tensors[name] = LazyTensor(array.spec, array)
        if array.assumption:
            notes.append(f"{printable(name, 80)} {array.assumption}")
    selected, left_out = select_flat(tensors)
    return selected, [*_shortened(notes), *left_out]


class _Array:
    """The header of one array, and its reader."""

    def __init__(self, content: Bytes, name: str, where: str) -> None:
        self._content, self._name, self._where = content, name, where
        self.reason = self.assumption = ""
        stream = io.BytesIO(content.read(0, min(content.size, MAX_HEADER_BYTES)))
        try:
            shape, fortran, dtype = _read_header(stream)
        # NumPy parses the header as Python literals, and a damaged one raises whatever it meets.
        except Exception as error:
            self._refuse(f"has no valid header ({printable(str(error), 80)})")
        self._offset, self._fortran = stream.tell(), fortran
        if len(shape) > MAX_DIMENSIONS or any(type(n) is not int or n < 0 for n in shape):
            self._refuse("has no valid shape")
        self._big_endian = dtype.byteorder == ">"
        element = dtype.name
        if dtype.kind == "V" and dtype.names is None and dtype.itemsize == 2:
            # NumPy stores the types of ml_dtypes as raw bytes; two of them are a bfloat16.
            element, self.assumption = "bfloat16", "is stored as 2 raw bytes, read as bfloat16"
        elif dtype.hasobject:
            self.reason = "is an array of Python objects, which only unpickling could read"
        elif dtype.kind not in NUMERIC_KINDS:
            self.reason = f"has elements of type {printable(str(dtype), 40)}"
        needed = element_count(shape) * dtype.itemsize
        if not self.reason and needed != content.size - self._offset:
            self._refuse(
                f"needs {printable(str(needed), 40)} bytes for its shape and has "
                f"{content.size - self._offset}"
            )
        self.spec = TensorSpec(shape, element, needed)

    def __call__(self) -> NDArray[Any]:
        content = self._content.read(self._offset, self.spec.bytes)
        shape = self.spec.shape
        array = decode(
            content, self.spec.dtype, shape[::-1] if self._fortran else shape, self._big_endian
        )
        return array.T if self._fortran else array

    def _refuse(self, fault: str) -> NoReturn:
        raise CheckpointError(
            f"a corrupt NumPy array: {printable(self._name, 80)} {fault}",
            where=self._where,
            remedy="copy or download it again",
        )


def header_and_length(content: bytes) -> tuple[tuple[int, ...], int]:
    """The shape of the array that starts here, and how many bytes it takes with its header.

    Raises:
        ValueError: with the fault as a clause; there is no valid header.
    """
    stream = io.BytesIO(content)
    try:
        shape, _, dtype = _read_header(stream)
    except Exception as error:
        raise ValueError(f"has no valid header ({printable(str(error), 80)})") from error
    if dtype.hasobject or any(type(size) is not int or size < 0 for size in shape):
        raise ValueError("is an array of Python objects, or has no valid shape")
    return shape, stream.tell() + element_count(shape) * dtype.itemsize


def _read_header(stream: io.BytesIO) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    version = npy.read_magic(stream)
    with warnings.catch_warnings():
        # NumPy warns of headers that Python 2 wrote, and reads them.
        warnings.simplefilter("ignore")
        if version == (1, 0):
            return npy.read_array_header_1_0(stream)
        if version == (2, 0):
            return npy.read_array_header_2_0(stream)
    raise ValueError(f"version {version[0]}.{version[1]} is for structured arrays only")


def _shortened(notes: list[str], limit: int = 5) -> list[str]:
    if len(notes) <= limit:
        return notes
    return [*notes[: limit - 1], f"{len(notes) - limit + 1} more arrays like these"]


MAGIC = b"\x93NUMPY"
MAX_FILES = 10_000


class NpyFiles:
    """One .npy array."""

    name = "NumPy .npy"
    # A directory of arrays is one checkpoint, so that the suffix does not choose one of them.
    extensions = ()
    recognised_by = "a .npy header; a directory of such files is read as one checkpoint"

    def recognises(self, head: bytes, file: File) -> bool:
        """The first six bytes."""
        return head.startswith(MAGIC)

    def open(self, file: File) -> LazyStore:
        """Read the header; the array is named after the file."""
        name = file.path.rpartition("/")[2].removesuffix(SUFFIX) or "array"
        tensors, notes = arrays_of({name: file}, file.path)
        return LazyStore(
            path=file.path,
            format=self.name,
            bytes=file.size,
            tensors=tensors,
            notes=notes,
            resources=[file],
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
        format=NpyFiles.name,
        bytes=sum(file.size for file in files.values()),
        tensors=tensors,
        notes=notes,
    )
