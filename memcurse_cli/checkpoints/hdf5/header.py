"""HDF5's object headers: the messages that describe a group or a dataset, and its attributes.

The layout is that of the HDF5 File Format Specification, version 3.0
(https://support.hdfgroup.org/documentation/hdf5/latest/_f_m_t3.html), in the forms that h5py and
Keras write: object headers of versions 1 and 2 (libver='latest'), with addresses and lengths of 8
bytes, little-endian.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from memcurse_cli.checkpoints.hdf5.dense import (
    ATTRIBUTE_NAMES,
    UNDEFINED,
    FractalHeap,
    tree_records,
    unpack,
)
from memcurse_cli.checkpoints.untrusted.source import File

MAX_MESSAGES = 100_000
MAX_PARTS = 1000
MAX_TEXT_BYTES = 100_000_000

DATASPACE, LINK_INFO, DATATYPE, LINK, EXTERNAL_FILES, LAYOUT = 1, 2, 3, 6, 7, 8
FILTERS, ATTRIBUTE, CONTINUATION, SYMBOL_TABLE, ATTRIBUTE_INFO = 11, 12, 16, 17, 21

_FIXED, _FLOAT, _STRING, _OPAQUE, _ENUM, _VARIABLE = 0, 1, 3, 5, 8, 9
# By size in bytes, bits of the exponent and bits of the mantissa.
_FLOATS = {
    (2, 5, 10): "float16",
    (2, 8, 7): "bfloat16",
    (4, 8, 23): "float32",
    (8, 11, 52): "float64",
}

Messages = list[tuple[int, bytes]]


@dataclass(frozen=True)
class Datatype:
    """The type of one element.

    Attributes:
        kind: a NumPy name, ``opaque``, ``text``, ``variable text``, or "" for any other.
        size: bytes per element.
        big_endian: the byte order.
    """

    kind: str
    size: int
    big_endian: bool = False


def read_messages(file: File, address: int) -> Messages:
    """The type and content of every message of the object header at an address.

    Raises:
        ValueError: the header is too long, or damaged.
    """
    start = bytes(file.read(address, 16))
    if start.startswith(b"OHDR"):
        return _messages_2(file, address, start)
    version, _, count, _, size = unpack("BBHII", start)
    if version != 1:
        raise ValueError(f"there is no object header at byte {address}")
    messages: Messages = []
    for content in _blocks(file, address + 16, size, messages):
        position = 0
        while position + 8 <= len(content) and len(messages) < count:
            kind, size, flags = unpack("HHB", content, position)
            _add(messages, kind, flags, content[position + 8 : position + 8 + size])
            position += 8 + size
    return messages


def _messages_2(file: File, address: int, start: bytes) -> Messages:
    """The messages of a version 2 header, whose parts each end in a checksum."""
    version, flags = unpack("BB", start, 4)
    if version != 2:
        raise ValueError(f"there is no object header at byte {address}")
    position = 6 + (16 if flags & 32 else 0) + (4 if flags & 16 else 0)
    width = 1 << (flags & 3)
    size = int.from_bytes(file.read(address + position, width), "little")
    messages: Messages = []
    first = True
    for content in _blocks(file, address + position + width, size, messages):
        position, end = (0, len(content)) if first else (4, len(content) - 4)
        if not first and not content.startswith(b"OCHK"):
            raise ValueError("an object header does not continue where it says")
        first = False
        step = 6 if flags & 4 else 4  # the order of creation may follow
        while position + step <= end and len(messages) < MAX_MESSAGES:
            kind, size, kept = unpack("BHB", content, position)
            position += step
            _add(messages, kind, kept, content[position : min(end, position + size)])
            position += size
    return messages


def _blocks(file: File, offset: int, length: int, messages: Messages) -> Iterator[bytes]:
    """The parts of a header: the first, and those that its messages say it continues in."""
    seen: set[int] = set()
    followed = 0
    while True:
        if offset in seen:
            raise ValueError("an object header continues where it has begun")
        seen.add(offset)
        yield bytes(file.read(offset, length))
        rest = [body for kind, body in messages if kind == CONTINUATION]
        if followed == len(rest):
            return
        offset, length = unpack("QQ", rest[followed])
        followed += 1
        if followed > MAX_PARTS:
            raise ValueError(f"an object header has more than {MAX_PARTS} parts")


def _add(messages: Messages, kind: int, flags: int, body: bytes) -> None:
    # A shared message, such as a committed type, has its content in another object.
    messages.append((-1 if flags & 2 else kind, body))


def first_message(messages: Messages, kind: int) -> bytes | None:
    """The content of the first message of a kind."""
    return next((body for other, body in messages if other == kind), None)


def parse_shape(body: bytes) -> tuple[int, ...] | None:
    """The dimensions in a dataspace message; None where the dataspace is null."""
    version, rank = unpack("BB", body)
    if version not in (1, 2) or rank > 32:
        raise ValueError("a dataspace of an unknown version")
    if version == 2 and body[3:4] == b"\x02":
        return None
    return unpack(f"{rank}Q", body, 8 if version == 1 else 4)


def parse_limits(body: bytes) -> tuple[int, ...]:
    """What the dimensions in a dataspace message may grow to; 2⁶⁴ - 1 stands for no limit."""
    version, rank, flags = unpack("BBB", body)
    start = 8 if version == 1 else 4
    return unpack(f"{rank}Q", body, start + 8 * rank if flags & 1 else start)


def parse_datatype(body: bytes) -> Datatype:
    """The element type in a datatype message."""
    first, bits, _, _, size = unpack("BBBBI", body)
    kind, big_endian = first & 15, bool(bits & 1)
    if kind == _FIXED:
        _, precision = unpack("HH", body, 8)
        if size in (1, 2, 4, 8) and precision == 8 * size:
            return Datatype(f"{'' if bits & 8 else 'u'}int{precision}", size, big_endian)
    elif kind == _FLOAT and not bits & 64:
        _, _, _, exponent, _, mantissa = unpack("HHBBBB", body, 8)
        return Datatype(_FLOATS.get((size, exponent, mantissa), ""), size, big_endian)
    elif kind == _ENUM and size == 1:
        return Datatype("bool", size)
    elif kind == _OPAQUE:
        return Datatype("opaque", size)
    elif kind == _STRING:
        return Datatype("text", size)
    elif kind == _VARIABLE and bits & 15 == 1:
        return Datatype("variable text", size)
    return Datatype("", size)


def text_attribute(file: File, messages: Messages, name: str) -> str:
    """The value of a text attribute that holds one text; "" where there is none.

    Raises:
        ValueError: it is damaged.
    """
    for body in _attributes(file, messages):
        version, _, *sizes = unpack("BBHHH", body)
        step = 8 if version == 1 else 1
        position = 9 if version == 3 else 8
        parts = []
        for size in sizes:
            parts.append(body[position : position + size])
            position += -(-size // step) * step
        if parts[0].rstrip(b"\0") == name.encode() and parse_shape(parts[2]) in ((), (1,)):
            datatype = parse_datatype(parts[1])
            if datatype.kind == "text":
                return _decode(body[position : position + datatype.size])
            if datatype.kind == "variable text":
                size, collection, index = unpack("IQI", body, position)
                return _decode(_heap_object(file, collection, index, size)) if size else ""
    return ""


def _attributes(file: File, messages: Messages) -> Iterator[bytes]:
    """The attribute messages, in the header or in a heap."""
    for kind, body in messages:
        if kind == ATTRIBUTE:
            yield body
        elif kind == ATTRIBUTE_INFO:
            _, flags = unpack("BB", body)
            address, names = unpack("QQ", body, 4 if flags & 1 else 2)
            if address == UNDEFINED:
                continue
            heap = FractalHeap(file, address)
            for record in tree_records(file, names, ATTRIBUTE_NAMES):
                attribute = heap.object(record[:8])
                if attribute is not None:
                    yield attribute


def _decode(content: bytes) -> str:
    return content.rstrip(b"\0").decode("utf-8", "replace")


def _heap_object(file: File, address: int, wanted: int, size: int) -> bytes:
    """The first bytes of an object of a global heap collection."""
    header = bytes(file.read(address, 16))
    (total,) = unpack("Q", header, 8)
    if not header.startswith(b"GCOL") or size > MAX_TEXT_BYTES:
        raise ValueError(f"there is no heap of texts at byte {address}")
    position = 16
    for _ in range(MAX_MESSAGES):
        if position + 16 > total:
            break
        index, _, _, length = unpack("HHIQ", bytes(file.read(address + position, 16)))
        if index == wanted and size <= length:
            return bytes(file.read(address + position + 16, size))
        position += 16 + -(-length // 8) * 8
    raise ValueError(f"the heap of texts at byte {address} lacks one of them")
