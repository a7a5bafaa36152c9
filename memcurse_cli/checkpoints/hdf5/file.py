"""HDF5 files: their groups and datasets, read without libhdf5.

libhdf5 opens other files by itself, loads plug-ins by name, and a damaged file can make it loop
for ever, where no caller can interrupt it. What Keras and h5py write needs only a small part of the
format, which is read here by range and with every step bounded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NoReturn

from numpy.typing import NDArray

from memcurse_cli.checkpoints.hdf5.dataset import Dataset
from memcurse_cli.checkpoints.hdf5.header import (
    LAYOUT,
    LINK,
    LINK_INFO,
    LINK_NAMES,
    SYMBOL_TABLE,
    UNDEFINED,
    FractalHeap,
    Messages,
    first_message,
    read_messages,
    text_attribute,
    tree_records,
    unpack,
)
from memcurse_cli.checkpoints.select import MAX_DEPTH, MAX_TENSORS, Path
from memcurse_cli.checkpoints.store import LazyTensor
from memcurse_cli.checkpoints.untrusted.names import MAX_NAME_LENGTH, printable
from memcurse_cli.checkpoints.untrusted.source import File, Part
from memcurse_cli.errors import CheckpointError

HDF5_MAGIC = b"\x89HDF\r\n\x1a\n"
LARGEST_HEAP = 100_000_000
# A header is read once or twice, and what many of them share not much more often.
MAX_READINGS = 16
READ_COST = 256
_HARD, _SOFT, _EXTERNAL = 0, 1, 64
_SYMBOL_BYTES = 40


class Metered(Part):
    """A file of which only so much may be read: lists that many groups share are read for each.

    Attributes:
        left: how many bytes may still be read, or None for any number.
    """

    def __init__(self, file: File) -> None:
        super().__init__(file, file)
        self.left: int | None = MAX_READINGS * file.size + LARGEST_HEAP

    def read(self, offset: int, length: int) -> bytes | bytearray:
        """Exactly ``length`` bytes from ``offset``; ValueError where too much has been read."""
        if self.left is not None:
            self.left -= length + READ_COST
            if self.left < 0:
                raise ValueError("its headers refer to one another without end")
        return super().read(offset, length)


class Hdf5File:
    """The groups and datasets of an HDF5 file.

    Attributes:
        datasets: every dataset of numbers by the names that lead to it, in the order of the file.
        groups: every group by its path, and its ``name`` attribute or "".
        notes: what was left out.
    """

    def __init__(self, file: File) -> None:
        self._file = metered = Metered(file)
        self.groups: dict[Path, str] = {}
        self._headers: dict[Path, Messages] = {}
        self._found: list[tuple[int, Path, LazyTensor]] = []
        self._at: dict[int, LazyTensor] = {}
        self._soft_links: list[Path] = []
        self._others: list[Path] = []
        try:
            self._walk(self._root())
        except ValueError as error:
            self._refuse((), str(error))
        metered.left = None
        # Headers are written one after another, so that their addresses give the model's order.
        self._found.sort(key=lambda entry: entry[:2])
        self.datasets = {path: tensor for _, path, tensor in self._found}
        if len(self.datasets) < len(self._found):
            self._refuse((), "two of its tensors have the same name")
        self.notes = [
            *_counted(self._soft_links, "soft links", "not followed"),
            *_counted(self._others, "datasets of another type than real numbers", "left out"),
        ]

    def attribute(self, name: str, path: Path = ()) -> str:
        """A text attribute of the root or of another group; "" where there is none."""
        try:
            return text_attribute(self._file, self._headers.get(path, []), name)
        except ValueError as error:
            self._refuse(path, str(error))

    def _root(self) -> int:
        (version,) = self._file.read(8, 1)
        if version > 3:
            raise ValueError(f"its superblock has version {version}")
        if version > 1:
            head = bytes(self._file.read(0, 48))
            sizes = head[9:11]
            base, _, end, root = unpack("4Q", head, 12)
        else:
            head = bytes(self._file.read(0, 100))
            sizes = head[13:15]
            # Version 1 has four more bytes before the addresses.
            base, _, end, _, _, root = unpack("6Q", head, 24 + 4 * version)
        if sizes != b"\x08\x08":
            raise ValueError("its addresses have not 8 bytes")
        if base != 0:
            raise ValueError("it does not begin at its first byte")
        if end > self._file.size:
            raise ValueError(f"it is truncated at byte {self._file.size} of {end}")
        address: int = root
        return address

    def _walk(self, root: int) -> None:
        pending: list[tuple[Path, int]] = [((), root)]
        seen: set[int] = set()
        while pending:
            path, address = pending.pop()
            # A dataset may have two names; a group, which may be within itself, is read once.
            if address in seen and address not in self._at:
                continue
            seen.add(address)
            if len(seen) + len(self._found) - len(self._at) > MAX_TENSORS:
                raise ValueError(f"it holds more than {MAX_TENSORS} objects")
            if len(path) > MAX_DEPTH or sum(map(len, path)) > MAX_NAME_LENGTH:
                raise ValueError(
                    f"its groups are nested more than {MAX_DEPTH} deep, "
                    f"or a name has more than {MAX_NAME_LENGTH} characters"
                )
            if address in self._at:
                self._found.append((address, path, self._at[address]))
                continue
            try:
                messages = read_messages(self._file, address)
                if first_message(messages, LAYOUT) is not None:
                    self._add(path, address, messages)
                    continue
                self._headers[path] = messages
                self.groups[path] = text_attribute(self._file, messages, "name")
                pending += [((*path, name), child) for name, child in self._links(path, messages)]
            except ValueError as error:
                self._refuse(path, str(error))

    def _add(self, path: Path, address: int, messages: Messages) -> None:
        dataset = Dataset(self._file, messages)
        if dataset.spec is None:
            self._others.append(path)
        else:
            load = self._loader(path, dataset)
            self._at[address] = LazyTensor(dataset.spec, load, identity=load)
            self._found.append((address, path, self._at[address]))

    def _loader(self, path: Path, dataset: Dataset) -> Callable[[], NDArray[Any]]:
        def load() -> NDArray[Any]:
            try:
                return dataset.load()
            except ValueError as error:
                self._refuse(path, str(error))

        return load

    def _links(self, path: Path, messages: Messages) -> Iterator[tuple[str, int]]:
        """The names in a group and the addresses of what they stand for."""
        table = first_message(messages, SYMBOL_TABLE)
        if table is not None:
            tree, heap = unpack("QQ", table)
            yield from self._symbols(path, tree, self._heap(heap))
        info = first_message(messages, LINK_INFO)
        if info is not None:
            _, flags = unpack("BB", info)
            address, names = unpack("QQ", info, 10 if flags & 1 else 2)
            if address != UNDEFINED:
                yield from self._dense(path, FractalHeap(self._file, address), names)
        for kind, body in messages:
            if kind == LINK:
                yield from self._link(path, body)

    def _dense(self, path: Path, heap: FractalHeap, names: int) -> Iterator[tuple[str, int]]:
        for record in tree_records(self._file, names, LINK_NAMES):
            body = heap.object(record[4:])
            if body is None:
                raise ValueError("a name is stored apart from the others")
            yield from self._link(path, body)

    def _link(self, path: Path, body: bytes) -> Iterator[tuple[str, int]]:
        version, flags = unpack("BB", body)
        if version != 1:
            raise ValueError("it has a link of an unknown version")
        position, link = 2, _HARD
        if flags & 8:
            (link,) = unpack("B", body, position)
            position += 1
        position += (8 if flags & 4 else 0) + (1 if flags & 16 else 0)
        width = 1 << (flags & 3)
        length = int.from_bytes(body[position : position + width], "little")
        position += width
        name = _name(body[position : position + length])
        if link == _SOFT:
            self._soft_links.append((*path, name))
        elif link == _HARD:
            yield name, unpack("Q", body, position + length)[0]
        else:
            kind = "a link to another file" if link == _EXTERNAL else "a link of an unknown kind"
            raise ValueError(f"{printable(name, 80)} is {kind}, which is not followed")

    def _heap(self, address: int) -> bytes:
        header = bytes(self._file.read(address, 32))
        size, _, start = unpack("QQQ", header, 8)
        if not header.startswith(b"HEAP") or size > LARGEST_HEAP:
            raise ValueError(f"there is no heap of names at byte {address}")
        return bytes(self._file.read(start, size))

    def _symbols(self, path: Path, root: int, heap: bytes) -> Iterator[tuple[str, int]]:
        pending = [root]
        seen: set[int] = set()
        while pending:
            address = pending.pop()
            if address in seen or len(seen) > MAX_TENSORS:
                raise ValueError("its list of names leads back to itself")
            seen.add(address)
            header = bytes(self._file.read(address, 8))
            if header.startswith(b"SNOD"):
                (used,) = unpack("H", header, 6)
                table = bytes(self._file.read(address + 8, _SYMBOL_BYTES * used))
                for position in range(0, len(table), _SYMBOL_BYTES):
                    offset, child, cached = unpack("QQI", table, position)
                    name = _name(_terminated(heap, offset))
                    if cached == 2:  # the entry keeps a soft link's target
                        self._soft_links.append((*path, name))
                    else:
                        yield name, child
            elif header.startswith(b"TREE\0"):
                (used,) = unpack("H", header, 6)
                # Keys and children alternate, a key first.
                entries = unpack(f"{2 * used}Q", bytes(self._file.read(address + 24, 16 * used)))
                pending += entries[1::2]
            else:
                raise ValueError(f"there is no list of names at byte {address}")

    def _refuse(self, path: Path, fault: str) -> NoReturn:
        at = f" at {_shown(path)}" if path else ""
        raise CheckpointError(
            f"this HDF5 file cannot be read{at}: {printable(fault)}",
            where=self._file.path,
            remedy="copy or download it again, or save the weights with Keras once more",
        )


def _counted(paths: list[Path], what: str, verdict: str) -> list[str]:
    if not paths:
        return []
    return [f"{what}, {len(paths)} in all (such as {_shown(paths[0])}): {verdict}"]


def _terminated(heap: bytes, offset: int) -> bytes:
    end = heap.find(b"\0", offset, offset + MAX_NAME_LENGTH + 1)
    if end < 0:
        raise ValueError(f"a name is damaged or has more than {MAX_NAME_LENGTH} characters")
    return heap[offset:end]


def _name(content: bytes) -> str:
    if not content or len(content) > MAX_NAME_LENGTH:
        raise ValueError(f"a name is empty or has more than {MAX_NAME_LENGTH} characters")
    return content.decode("utf-8", "replace")


def _shown(path: Path) -> str:
    return printable("/".join(path), 80)
