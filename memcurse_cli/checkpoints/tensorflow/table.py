"""LevelDB's sorted tables, as TensorFlow's indexes are written in: keys and values in blocks.

A table ends in a footer of 48 bytes: the handles (offset, size) of an index of meta blocks and of
an index of data blocks, padded, and a magic number. A block is entries, whose keys leave out what
they share with the key before, the places of restarts and their count; after it stand a byte for
its compression and a masked CRC-32C
(https://github.com/google/leveldb/blob/main/doc/table_format.md).
"""

from __future__ import annotations

from collections.abc import Iterator

from memcurse_cli.checkpoints.untrusted.source import File

MAGIC = 0xDB4775248B80FB57.to_bytes(8, "little")
FOOTER_BYTES = 48
MAX_TABLE_BYTES = 1 << 24
MAX_ENTRIES = 500_000
MAX_KEY_BYTES = 1 << 26
RAW, SNAPPY = 0, 1
_TRAILER_BYTES = 5
_MASK = 0xA282EAD8
_POLYNOMIAL = 0x82F63B78


def entries(file: File) -> list[tuple[bytes, bytes]]:
    """Every key of the table with its value, in order.

    Raises:
        ValueError: with the fault as a clause; the table is damaged or beyond a limit.
    """
    if file.size > MAX_TABLE_BYTES:
        raise ValueError(f"its index has {file.size} bytes, more than {MAX_TABLE_BYTES}")
    content = bytes(file.read(0, file.size))
    footer = len(content) - FOOTER_BYTES
    if footer < 0 or content[-8:] != MAGIC:
        raise ValueError("it does not end as a table does")
    position = footer
    handle = [0, 0, 0, 0]
    for i in range(4):
        handle[i], position = varint(content, position, len(content) - 8)
    found: list[tuple[bytes, bytes]] = []
    # Blocks that follow one another cannot be read twice, so that no table is larger than its file.
    free = key_bytes = 0
    for _, value in _entries(_block(content[:footer], handle[2], handle[3])):
        offset, position = varint(value, 0, len(value))
        size, _ = varint(value, position, len(value))
        if offset < free:
            raise ValueError("two of its blocks overlap")
        free = offset + size
        for entry in _entries(_block(content[:footer], offset, size)):
            key_bytes += len(entry[0])
            if found and entry[0] <= found[-1][0]:
                raise ValueError("its keys are not in order")
            found.append(entry)
            if len(found) > MAX_ENTRIES or key_bytes > MAX_KEY_BYTES:
                raise ValueError(f"it has more than {MAX_ENTRIES} entries or too long keys")
    return found


def varint(content: bytes, position: int, end: int) -> tuple[int, int]:
    """A number in base 128, and where the next field begins.

    Raises:
        ValueError: it is not complete, or longer than 64 bits.
    """
    value = 0
    for shift in range(0, 70, 7):
        if position >= end:
            break
        byte = content[position]
        position += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, position
    raise ValueError(f"there is no number before byte {position}")


def masked_crc(content: bytes) -> int:
    """The CRC-32C of the bytes as LevelDB stores it: rotated by 15 bits, plus a constant."""
    crc = 0xFFFFFFFF
    for byte in content:
        crc = _TABLE[(crc ^ byte) & 255] ^ (crc >> 8)
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + _MASK) & 0xFFFFFFFF


def _crc_table() -> tuple[int, ...]:
    table = []
    for value in range(256):
        for _ in range(8):
            value = value >> 1 ^ (_POLYNOMIAL if value & 1 else 0)
        table.append(value)
    return tuple(table)


_TABLE = _crc_table()


def _block(content: bytes, offset: int, size: int) -> bytes:
    if offset + size + _TRAILER_BYTES > len(content):
        raise ValueError(f"a block of {size} bytes at byte {offset} reaches beyond its end")
    kind = content[offset + size]
    stored = int.from_bytes(content[offset + size + 1 : offset + size + _TRAILER_BYTES], "little")
    if masked_crc(content[offset : offset + size + 1]) != stored:
        raise ValueError(f"the block at byte {offset} does not have its checksum")
    if kind == SNAPPY:
        raise ValueError("its index is compressed with Snappy, which is not read")
    if kind != RAW:
        raise ValueError(f"a block is compressed in an unknown way ({kind})")
    return content[offset : offset + size]


def _entries(block: bytes) -> Iterator[tuple[bytes, bytes]]:
    restarts = int.from_bytes(block[-4:], "little") if len(block) >= 4 else -1
    end = len(block) - 4 - 4 * restarts
    if restarts < 0 or end < 0:
        raise ValueError("a block is too short for what it holds")
    position, key = 0, b""
    while position < end:
        shared, position = varint(block, position, end)
        own, position = varint(block, position, end)
        size, position = varint(block, position, end)
        if shared > len(key) or own + size > end - position:
            raise ValueError("an entry reaches beyond its block")
        key = key[:shared] + block[position : position + own]
        position += own
        yield key, block[position : position + size]
        position += size
