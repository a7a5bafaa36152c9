"""What equinox.tree_serialise_leaves writes: .npy arrays one after another, and no names.

A line of JSON with the model's settings may stand before them, as Equinox's documentation does it.
The leaves follow the fields of the model's modules, so that the shapes of Equinox's own GRU and
LSTM cells tell where one lies (equinox/_serialisation.py, equinox/nn/_rnn.py).
"""

from __future__ import annotations

from math import prod

from memcurse_cli.checkpoints.lazy import LazyStore
from memcurse_cli.checkpoints.numpy.npy import MAGIC, MAX_HEADER_BYTES, arrays_of, shape_and_length
from memcurse_cli.checkpoints.untrusted.ranges import ByteRange
from memcurse_cli.checkpoints.untrusted.source import File

MAX_SETTINGS_BYTES = 1 << 16
MAX_LEAVES = 100_000
Shape = tuple[int, ...]


def recognises(head: bytes, file: File) -> bool:
    """A second array where the first one ends, or a first one after a line of JSON."""
    start = _start(head, file)
    if start != 0:
        return start is not None
    try:
        _, length = shape_and_length(_range(file, 0))
    except ValueError:
        return False
    if length + len(MAGIC) > file.size:
        return False
    return bytes(file.read(length, len(MAGIC))) == MAGIC


def open_file(file: File) -> LazyStore:
    """Read every header."""
    shapes: list[Shape] = []
    places: list[tuple[int, int]] = []
    offset = _start(bytes(file.read(0, min(file.size, MAX_SETTINGS_BYTES))), file) or 0
    while offset < file.size:
        if len(shapes) == MAX_LEAVES:
            raise ValueError(f"it has more than {MAX_LEAVES} leaves")
        try:
            shape, length = shape_and_length(_range(file, offset))
        except ValueError as error:
            raise ValueError(f"leaf {len(shapes)} {error}") from error
        if offset + length > file.size:
            raise ValueError(f"leaf {len(shapes)} reaches beyond the end of the file")
        shapes.append(shape)
        places.append((offset, length))
        offset += length
    content = {
        name: ByteRange(file, start, length)
        for name, (start, length) in zip(leaf_names(shapes), places, strict=True)
    }
    tensors, notes = arrays_of(content, file.path)
    unnamed = "the file has no names: leaves are numbered, and cells are known by their shapes"
    return LazyStore(
        path=file.path,
        bytes=file.size,
        tensors=tensors,
        notes=[unnamed, *notes],
        resources=[file],
    )


def leaf_names(shapes: list[Shape]) -> list[str]:
    """``leaf0``, ``leaf1``, …, and ``cell0.weight_ih`` and so on for the leaves of a cell.

    A GRU cell is (3H, inputs), (3H, H), (3H), (H), and an LSTM cell (4H, inputs), (4H, H), (4H).
    """
    names = [f"leaf{index}" for index in range(len(shapes))]
    cells = 0
    for index in range(len(shapes)):
        fields = _cell(shapes[index : index + 4])
        for place, field in enumerate(fields):
            names[index + place] = f"cell{cells}.{field}"
        cells += bool(fields)
    return names


def _cell(shapes: list[Shape]) -> tuple[str, ...]:
    """The fields of the cell that starts here; none where none does."""
    if len(shapes) < 3 or len(shapes[0]) != 2 or len(shapes[1]) != 2 or not prod(shapes[1]):
        return ()
    rows, size = shapes[1]
    if shapes[0][0] != rows or shapes[2] != (rows,):
        return ()
    fields = ("weight_ih", "weight_hh", "bias")
    if rows == 4 * size:
        return fields
    return (*fields, "bias_n") if rows == 3 * size and shapes[3:] == [(size,)] else ()


def _start(head: bytes, file: File) -> int | None:
    """Where the first array starts; None where there is none."""
    if head.startswith(MAGIC):
        return 0
    if not head.startswith(b"{"):
        return None
    settings = bytes(file.read(0, min(file.size, MAX_SETTINGS_BYTES)))
    found = settings.find(b"\n" + MAGIC)
    return None if found < 0 else found + 1


def _range(file: File, offset: int) -> bytes:
    return bytes(file.read(offset, min(file.size - offset, MAX_HEADER_BYTES)))
