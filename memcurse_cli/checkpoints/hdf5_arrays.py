"""The arrays in which HDF5 lists the chunks of a dataset, one element for each.

The layout is that of the HDF5 File Format Specification 3.0, VII.C and VII.D.
"""

from __future__ import annotations

from memcurse_cli.checkpoints.hdf5_fields import UNDEFINED, unpack
from memcurse_cli.checkpoints.source import File


class _Blocks:
    """Elements of one size in blocks, of which the last one read is kept."""

    def __init__(self, file: File, width: int) -> None:
        self._file, self._width = file, width
        self._block, self._start = b"", -1

    def at(self, block: int, index: int, count: int) -> bytes:
        """An element of the block of ``count`` elements at an address."""
        if block != self._start:
            self._block = bytes(self._file.read(block, count * self._width))
            self._start = block
        return self._block[index * self._width : (index + 1) * self._width]

    def bit(self, address: int, index: int) -> bool:
        """A bit of the map at an address that says which pages there are."""
        (byte,) = self._file.read(address + index // 8, 1)
        return bool(byte >> (7 - index % 8) & 1)


class FixedArray:
    """As many elements as the dataset can have chunks, in pages where they are many."""

    def __init__(self, file: File, address: int) -> None:
        header = bytes(file.read(address, 28))
        version, _, width, bits, count, block = unpack("BBBBQQ", header, 4)
        if not header.startswith(b"FAHD") or version or not width or bits > 32:
            raise ValueError(f"there is no list of chunks at byte {address}")
        self._count, self._page, self._width = count, 1 << bits, width
        self._block = block
        self._blocks = _Blocks(file, width)
        self._file = file
        if block != UNDEFINED and bytes(file.read(block, 4)) != b"FADB":
            raise ValueError(f"there is no list of chunks at byte {block}")

    def element(self, number: int) -> bytes:
        """The element of a number; nothing where it was never set."""
        if number >= self._count:
            raise ValueError("its list of chunks is too short")
        if self._block == UNDEFINED:
            return b""
        start = self._block + 14
        if self._count <= self._page:
            return self._blocks.at(start, number, self._count)
        page, index = divmod(number, self._page)
        pages = -(-self._count // self._page)
        if not self._blocks.bit(start, page):
            return b""
        start += -(-pages // 8) + 4 + page * (self._page * self._width + 4)
        return self._blocks.at(start, index, min(self._page, self._count - page * self._page))


class ExtensibleArray:
    """Elements in an index block, then in data blocks that grow, which super blocks list.

    The sizes follow from the header's parameters alone (H5EAhdr.c, H5EA__hdr_init).
    """

    def __init__(self, file: File, address: int) -> None:
        header = bytes(file.read(address, 72))
        version, _, width, bits, inside, least, pointers, page = unpack("8B", header, 4)
        (index,) = unpack("Q", header, 60)
        if not header.startswith(b"EAHD") or version or not width or bits > 64:
            raise ValueError(f"there is no list of chunks at byte {address}")
        if not least or least & (least - 1) or not pointers or pointers & (pointers - 1):
            raise ValueError("its list of chunks has an impossible shape")
        self._file, self._blocks = file, _Blocks(file, width)
        self._width, self._inside, self._least, self._page = width, inside, least, 1 << page
        self._index, self._offset_bytes = index, -(-bits // 8)
        self._levels = 1 + bits - (least.bit_length() - 1)
        # So many levels have their data blocks in the index block, the rest in super blocks.
        self._direct = 2 * (pointers.bit_length() - 1)
        self._direct_blocks = 2 * (pointers - 1)
        if index != UNDEFINED and bytes(file.read(index, 4)) != b"EAIB":
            raise ValueError(f"there is no list of chunks at byte {index}")

    def element(self, number: int) -> bytes:
        """The element of a number; nothing where it was never set."""
        if self._index == UNDEFINED:
            return b""
        start = self._index + 14
        if number < self._inside:
            return self._blocks.at(start, number, self._inside)
        start += self._inside * self._width
        number -= self._inside
        first = 0
        for level in range(self._levels):
            blocks, each = 1 << level // 2, self._least << (level + 1) // 2
            if number < blocks * each:
                break
            number -= blocks * each
            first += blocks
        else:
            raise ValueError("its list of chunks is too short")
        block, number = divmod(number, each)
        if level < self._direct:
            return self._data(self._pointer(start + 8 * (first + block)), number, each)
        start += 8 * (self._direct_blocks + level - self._direct)
        place = self._pointer(start)
        if place == UNDEFINED:
            return b""
        if bytes(self._file.read(place, 4)) != b"EASB":
            raise ValueError(f"there is no list of chunks at byte {place}")
        maps = place + 14 + self._offset_bytes
        pages = each // self._page if each > self._page else 0
        pointer = self._pointer(maps + blocks * -(-pages // 8) + 8 * block)
        # One map lists the pages of all data blocks, bit after bit.
        if pages and not self._blocks.bit(maps, block * pages + number // self._page):
            return b""
        return self._data(pointer, number, each)

    def _data(self, block: int, number: int, count: int) -> bytes:
        """An element of a data block."""
        if block == UNDEFINED:
            return b""
        start = block + 14 + self._offset_bytes
        if count <= self._page:
            return self._blocks.at(start, number, count)
        page, index = divmod(number, self._page)
        start += 4 + page * (self._page * self._width + 4)
        return self._blocks.at(start, index, self._page)

    def _pointer(self, place: int) -> int:
        return int.from_bytes(self._file.read(place, 8), "little")
