"""Where bytes come from: files and directories of which nothing else is touched, read by ranges."""

from __future__ import annotations

import errno
import glob
import io
import os
import stat
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from contextvars import ContextVar
from functools import cached_property
from itertools import islice
from pathlib import Path, PurePath
from typing import Literal, Protocol

from memcurse_cli.checkpoints.untrusted.names import is_url, printable, shown_place
from memcurse_cli.errors import CheckpointError, MemcurseError

MAX_DIMENSIONS = 64  # as in NumPy and PyTorch


class Bytes(ABC):
    """Bytes that are read by ranges: a file, a member of an archive, or a part of either."""

    size: int  # how many there are

    def read(self, offset: int, length: int) -> bytes | bytearray:
        """Exactly ``length`` bytes from ``offset``; ValueError where there are not so many."""
        if offset < 0 or length < 0 or offset + length > self.size:
            wanted = f"the {length} bytes from byte {offset}"
            raise ValueError(f"the file ends at byte {self.size}, before {wanted}")
        return self._read(offset, length)

    @abstractmethod
    def _read(self, offset: int, length: int) -> bytes | bytearray:
        """The same of a range that there is."""

    def first(self, most: int) -> bytes:
        """The first bytes, at most so many."""
        return bytes(self.read(0, min(self.size, most)))

    def whole(self, most: int, what: str = "it") -> bytes:
        """All of them; ValueError where ``what`` has more than ``most``."""
        if self.size > most:
            raise ValueError(f"{what} has {self.size} bytes, more than {most}")
        return self.first(most)

    def part(self, offset: int, size: int, label: str) -> ByteRange:
        """Those that a file claims for something; ValueError where they reach beyond the end."""
        end = offset + size
        if end > self.size:
            reached = printable(str(end), 40)
            raise ValueError(f"{label} lies at bytes {offset} to {reached} of {self.size}")
        return ByteRange(self, offset, size)


def naturals(values: object, fault: str, count: int | None = None) -> tuple[int, ...]:
    """A shape, a stride or a place that a file claims; ValueError of ``fault`` where it is none.

    It has ``count`` natural numbers, or at most `MAX_DIMENSIONS`, each an index of 64 bits.
    """
    if isinstance(values, list | tuple) and len(values) <= MAX_DIMENSIONS:
        natural = all(type(n) is int and 0 <= n < 2**62 for n in values)
        if natural and count in (None, len(values)):
            return tuple(values)
    raise ValueError(fault)


def matching(path: str) -> list[str]:
    """What a path names: itself, or what matches a glob pattern, sorted, which may be nothing.

    A URL is no pattern, nor is what exists, whatever its name. Of ``**`` the folders are left out
    that hold another match, through which it only led.
    """
    if is_url(path) or os.path.lexists(path) or not glob.has_magic(path):
        return [path]
    found = sorted(set(glob.iglob(path, recursive=True)))
    crossed = {folder for one in found for folder in PurePath(one).parents}
    return [one for one in found if PurePath(one) not in crossed]


class ByteRange(Bytes):
    """A part of other bytes."""

    def __init__(self, source: Bytes, offset: int, size: int) -> None:
        self._source, self._offset, self.size = source, offset, size

    def _read(self, offset: int, length: int) -> bytes | bytearray:
        return self._source.read(self._offset + offset, length)


class InlineBytes(Bytes):
    """Bytes that are in memory already."""

    def __init__(self, content: bytes | bytearray) -> None:
        self._content, self.size = content, len(content)

    def _read(self, offset: int, length: int) -> bytes:
        return bytes(self._content[offset : offset + length])


Order = Literal["little", "big"]


class Cursor:
    """Reads one field after another, integers in one byte order; ValueError at the end."""

    chunk = 1 << 12

    def __init__(
        self, source: Bytes | bytes | bytearray, position: int = 0, order: Order = "little"
    ) -> None:
        self.source = source if isinstance(source, Bytes) else InlineBytes(source)
        self._order = order
        self._chunk = memoryview(b"")
        self._start, self._index = position, 0

    @property
    def position(self) -> int:
        """Where the next field begins."""
        return self._start + self._index

    @position.setter
    def position(self, value: int) -> None:
        self._index = value - self._start
        if not 0 <= self._index <= len(self._chunk):
            self._start, self._index, self._chunk = value, 0, memoryview(b"")

    @property
    def left(self) -> int:
        """How many bytes follow."""
        return self.source.size - self.position

    def take(self, count: int) -> bytes:
        """The next bytes."""
        end = self._index + count
        if end > len(self._chunk):
            start, left = self.position, self.left
            if count > left:
                raise ValueError(f"it ends at byte {self.source.size}, in the middle of a field")
            self._chunk = memoryview(self.source.read(start, min(left, max(count, self.chunk))))
            self._start, self._index, end = start, 0, count
        piece = self._chunk[self._index : end]
        self._index = end
        return bytes(piece)

    def number(self, count: int, signed: bool = False) -> int:
        """The integer in the next bytes."""
        return int.from_bytes(self.take(count), self._order, signed=signed)

    def varint(self) -> int:
        """The integer of at most 64 bits that stands in base 128, its lowest digit first."""
        value = 0
        for shift in range(0, 70, 7):
            byte = self.take(1)[0]
            value |= (byte & 127) << shift
            if byte < 128:
                return value & (1 << 64) - 1
        raise ValueError("it has an integer of more than 64 bits")

    def skip(self, count: int) -> ByteRange:
        """Pass over the next bytes, and return them unread."""
        if count > self.left:
            wanted = f"the {count} bytes that follow byte {self.position}"
            raise ValueError(f"it ends at byte {self.source.size}, before {wanted}")
        skipped = ByteRange(self.source, self.position, count)
        self.position += count
        return skipped


# What tells one version of a file from another: sizes, times, inodes, a server's tags.
Version = tuple[object, ...]

MAX_DIRECTORY_ENTRIES = 100_000
MAX_FILES_BESIDE = 10_000

# Of the files opened in a block of `unchanged_while_read`: their names in messages, their versions,
# and how to ask for those again.
_Opened = dict[str, tuple[str, Version, Callable[[], Version | None]]]
_OPENED: ContextVar[_Opened | None] = ContextVar("_OPENED", default=None)


@contextmanager
def unchanged_while_read() -> Iterator[None]:
    """A block at whose end every file that was opened in it must be what it was at first.

    One that is gone by then was read as it was. Of blocks within each other the outermost counts.
    Raises CheckpointError: a file has changed, so that what was read may mix two versions of it.
    """
    if _OPENED.get() is not None:
        yield
        return
    opened: _Opened = {}
    token = _OPENED.set(opened)
    fault = None
    try:
        yield
    except MemcurseError as error:  # what was wrong may be the mixture
        fault = error
    finally:
        _OPENED.reset(token)
    for shown, version, now in opened.values():
        if now() not in (version, None):
            raise changed(shown) from fault
    if fault is not None:
        raise fault


def opened_as(where: str, shown: str, version: Version, now: Callable[[], Version | None]) -> None:
    """Let the block around this, if there is one, know which version of a file was opened.

    ``now`` gives what it is when it is called, None where it is gone.
    """
    opened = _OPENED.get()
    if opened is not None and opened.setdefault(where, (shown, version, now))[1] != version:
        raise changed(shown)


def changed(where: str) -> CheckpointError:
    """The one line for a file of which two versions were met."""
    what, remedy = "the file changed while it was read", "run this again when nothing writes to it"
    return CheckpointError(what, where=where, remedy=remedy)


class File(Bytes):
    """A file that is read by ranges."""

    path: str  # what to call it in messages

    @abstractmethod
    def directory(self) -> Directory:
        """The directory that it lies in."""

    def close(self) -> None:
        """Release the file."""


class Directory(Protocol):
    """A directory whose files are opened by name, and none outside it."""

    path: str  # its path, printable
    names: list[str]  # what is in it, sorted; nothing where a server does not say

    def open(self, name: str) -> File:
        """The file ``name``, a relative path with ``/`` that must not lead outside."""

    def files(self) -> Iterable[str]:
        """The names of its regular files, hidden ones left out."""


class LocalFile(File):
    """A regular file on this machine.

    ``shown`` is what messages call it, ``directory`` where the files beside it are if links have
    been followed to ``path``. CheckpointError: it is missing, cannot be opened, or is a FIFO, a
    socket or a device, refused before a byte is read, so that opening never blocks.
    """

    def __init__(
        self, path: str | os.PathLike[str], shown: str = "", directory: Path | None = None
    ) -> None:
        self.path = printable(shown) if shown else shown_place(path, 200)
        self._directory = directory or Path(path).parent
        # Without O_NONBLOCK the open itself waits for a writer when the path is a FIFO.
        flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
        try:
            descriptor = os.open(path, flags)
        except (OSError, ValueError) as error:
            raise unreadable(self.path, error) from error
        status = os.fstat(descriptor)
        self.size = status.st_size
        if not stat.S_ISREG(status.st_mode):
            os.close(descriptor)
            what, remedy = "this is a folder, where a file is needed", "put the file there"
            if not stat.S_ISDIR(status.st_mode):
                what = "this is neither a regular file nor a directory"
                remedy = "copy its content into a file"
            raise CheckpointError(what, where=self.path, remedy=remedy)
        self._file = io.FileIO(descriptor)
        opened_as(os.fspath(path), self.path, _version(status), lambda: _version_now(path))

    def _read(self, offset: int, length: int) -> bytearray:
        content = bytearray(length)
        view = memoryview(content)
        try:
            self._file.seek(offset)
            while view:  # one read returns at most 2 GiB on Linux
                count = self._file.readinto(view)
                if not count:  # it has been cut off since it was opened
                    raise changed(self.path)
                view = view[count:]
        except OSError as error:
            raise unreadable(self.path, error) from error
        return content

    def directory(self) -> LocalDirectory:
        """The directory that it lies in."""
        return LocalDirectory(self._directory)

    def close(self) -> None:
        """Release the file."""
        self._file.close()


def _version(status: os.stat_result) -> Version:
    return status.st_size, status.st_mtime_ns, status.st_ino


def _version_now(path: str | os.PathLike[str]) -> Version | None:
    with suppress(OSError):
        return _version(os.stat(path))
    return None


class LocalDirectory:
    """A local directory, outside which no file is opened; CheckpointError: it cannot be listed."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = shown_place(path, 200)
        self._root = Path(path)
        try:
            self._resolved = self._root.resolve(strict=True)
            with os.scandir(self._root) as entries:
                names = [entry.name for entry in islice(entries, MAX_DIRECTORY_ENTRIES + 1)]
        except (OSError, ValueError, RuntimeError) as error:
            raise unreadable(self.path, error) from error
        self.names = listed(names, self.path)

    def locate(self, name: str) -> Path:
        """The path of ``name``, a relative path with ``/``, after links are followed."""
        where = require_inside(name, self.path)
        try:
            target = self._root.joinpath(name).resolve(strict=True)
        except (OSError, ValueError, RuntimeError) as error:
            raise unreadable(where, error) from error
        # The Hugging Face cache keeps each snapshot as links into one `blobs` folder beside it.
        above = self._resolved.parent
        blobs = above.parent / "blobs" if above.name == "snapshots" else None
        if not (target.is_relative_to(self._resolved) or target.parent == blobs):
            raise CheckpointError(
                "this symbolic link leads outside the checkpoint's directory, and is not followed",
                where=where,
                remedy="copy the file into the directory, or name the file itself",
            )
        return target

    def has(self, name: str) -> bool:
        """Whether there is a ``name``; CheckpointError where it would lie outside."""
        try:
            self.locate(name)
        except CheckpointError as error:
            if isinstance(error.__cause__, FileNotFoundError | NotADirectoryError):
                return False
            raise
        return True

    def open(self, name: str) -> LocalFile:
        """The file ``name``; the errors of `locate` and `LocalFile`."""
        beside = self._root.joinpath(name).parent
        return LocalFile(self.locate(name), shown=f"{self.path}/{name}", directory=beside)

    def inside(self, name: str) -> LocalDirectory:
        """The directory ``name`` in it; the errors of `locate`."""
        self.locate(name)
        return LocalDirectory(self._root / name)

    def files(self) -> Iterator[str]:
        """The names of its regular files, links included, hidden ones left out."""
        for name in self.names:
            if not name.startswith(".") and (self._root / name).is_file():
                yield name


class DataFile(File):
    """A file of a directory that has hundreds of them: opened for each read and closed again."""

    def __init__(self, directory: LocalDirectory, name: str) -> None:
        self._directory, self._name = directory, name
        self.path = printable(f"{directory.path}/{name}")

    @cached_property
    def size(self) -> int:  # type: ignore[override]
        """Its length in bytes."""
        with closing(self._directory.open(self._name)) as file:
            return file.size

    def _read(self, offset: int, length: int) -> bytes | bytearray:
        with closing(self._directory.open(self._name)) as file:
            return file.read(offset, length)

    def directory(self) -> LocalDirectory:
        """The directory that it lies in."""
        return self._directory


class FilesBeside(dict[str, File]):
    """The files of a directory that hold a checkpoint's elements, by their relative paths."""

    def __init__(self, directory: Directory) -> None:
        super().__init__()
        self._directory = directory

    def __missing__(self, name: str) -> File:
        if len(self) >= MAX_FILES_BESIDE:
            raise ValueError(f"it names more than {MAX_FILES_BESIDE} files")
        if isinstance(self._directory, LocalDirectory):
            self[name] = DataFile(self._directory, name)
        else:
            self[name] = self._directory.open(name)
        return self[name]

    @property
    def size(self) -> int:
        """How many bytes they have together."""
        return sum(file.size for file in self.values())


class Part(File):
    """Bytes within a file, such as a member of an archive, as a file that is closed with it."""

    def __init__(self, content: Bytes, file: File, path: str = "") -> None:
        self._content, self._file = content, file
        self.path, self.size = path or file.path, content.size

    def _read(self, offset: int, length: int) -> bytes | bytearray:
        return self._content.read(offset, length)

    def directory(self) -> Directory:
        """The directory that the file lies in."""
        return self._file.directory()

    def close(self) -> None:
        """Release the file."""
        self._file.close()


def read_bounded(path: str | os.PathLike[str], most: int) -> bytes:
    """The content of a `LocalFile`; CheckpointError as there, or of more than ``most`` bytes."""
    with closing(LocalFile(path)) as file:
        if file.size > most:
            what = f"the file has {file.size} bytes, more than the {most} that are read"
            raise CheckpointError(what, where=file.path, remedy="give the right file")
        return file.first(most)


def directory_here(file: File) -> LocalDirectory:
    """The directory of a file, where it is one of this machine."""
    directory = file.directory()
    if isinstance(directory, LocalDirectory):
        return directory
    what = "this checkpoint is a folder of many files, which is not read over the network"
    remedy = "copy the folder to this machine"
    raise CheckpointError(what, where=file.path, remedy=remedy)


def listed(names: list[str], where: str) -> list[str]:
    """The names in a directory in order, of which there must not be too many."""
    if len(names) > MAX_DIRECTORY_ENTRIES:
        what = f"the directory has more than {MAX_DIRECTORY_ENTRIES} entries"
        remedy = "name the checkpoint's file"
        raise CheckpointError(what, where=where, remedy=remedy)
    return sorted(names)


def require_inside(name: str, directory: str) -> str:
    """What to call a file; refused is a path that can lead to what is not inside its directory."""
    where = printable(f"{directory}/{name}")
    if "\\" in name or ":" in name or {"", ".", ".."} & set(name.split("/")):
        what = "this name leads outside the checkpoint's directory, and is not opened"
        remedy = "shards must lie beside their index"
        raise CheckpointError(what, where=where, remedy=remedy)
    return where


_MISSING = "no such file or directory", "check the path"
_DENIED = "permission denied", "ask its owner for read access"
_UNREADABLE = {
    errno.ENOENT: _MISSING,
    errno.ENOTDIR: _MISSING,
    errno.EACCES: _DENIED,
    errno.EPERM: _DENIED,
    errno.ENAMETOOLONG: ("the path is too long", "check the path"),
    errno.ELOOP: ("the symbolic link leads back to itself", "name the file itself"),
}


def unreadable(where: str, error: Exception) -> CheckpointError:
    """The one line for a path that the operating system does not let us read."""
    code = errno.ELOOP if isinstance(error, RuntimeError) else getattr(error, "errno", None)
    reason = getattr(error, "strerror", None) or "the file cannot be read"
    what, remedy = printable(str(reason).lower()), "check the file"
    if isinstance(error, ValueError):
        what, remedy = "the path holds a null byte or cannot be encoded", "check the path"
    what, remedy = _UNREADABLE.get(code or 0, (what, remedy))
    return CheckpointError(what, where=where, remedy=remedy)
