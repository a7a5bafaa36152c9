"""Compressed blocks and zip archives: bounded, read by range, and never extracted."""

from __future__ import annotations

import io
import struct
import zipfile
import zlib
from collections import Counter
from typing import NoReturn

from memcurse_cli.checkpoints.untrusted.names import printable
from memcurse_cli.checkpoints.untrusted.source import Bytes, File
from memcurse_cli.errors import CheckpointError

_PIECE = 1 << 20
# Deflate cannot do better than 1032 to 1. Trained weights reach 10 to 1, so that a large block
# which claims much more is made to exhaust memory.
MAX_DEFLATE_RATIO = 1032
MAX_LARGE_RATIO = 100
LARGE_BLOCK = 1 << 28
# Zstandard's own default for decoders: a window of 128 MiB.
MAX_ZSTD_WINDOW = 1 << 27


def largest_ratio(size: int) -> int:
    """How many times the compressed bytes so large a deflated block may have."""
    return MAX_LARGE_RATIO if size > LARGE_BLOCK else MAX_DEFLATE_RATIO


def check_ratio(size: int, compressed: int) -> None:
    """Refuse a large size that so few compressed bytes cannot honestly have."""
    if size > LARGE_BLOCK and size > compressed * MAX_LARGE_RATIO:
        raise ValueError(f"it claims {size} bytes from {compressed} compressed ones")


def inflate(content: bytes, limit: int) -> bytes:
    """A gzip or zlib stream of at most ``limit`` bytes."""
    check_ratio(limit, len(content))
    inflater = zlib.decompressobj(zlib.MAX_WBITS | 32)
    try:
        return _require_most(inflater.decompress(content, limit + 1), limit)
    except zlib.error as error:
        raise ValueError(f"a block cannot be decompressed ({error})") from error


def decompress_zstd(content: bytes, limit: int) -> bytes:
    """A Zstandard frame of at most ``limit`` bytes."""
    try:
        import zstandard
    except ImportError as error:
        raise CheckpointError(
            "its blocks are compressed with Zstandard, and the package zstandard is not installed",
            remedy="run `pip install 'memcurse-cli[orbax]'`",
        ) from error
    check_ratio(limit, len(content))
    reader = zstandard.ZstdDecompressor(max_window_size=MAX_ZSTD_WINDOW).stream_reader(content)
    joined = bytearray()
    try:
        while made := reader.read(min(_PIECE, limit + 1 - len(joined))):
            joined += made
        return _require_most(bytes(joined), limit)
    except zstandard.ZstdError as error:
        raise ValueError("a block cannot be decompressed by Zstandard") from error


def _require_most(content: bytes, limit: int) -> bytes:
    if len(content) > limit:
        raise ValueError(f"a block has more than the {limit} bytes that it should have")
    return content


MAX_MEMBERS = 1_000_000
_LOCAL_HEADER = struct.Struct("<4s22xHH")
_BROKEN = (
    zipfile.BadZipFile,
    NotImplementedError,
    OSError,
    EOFError,
    OverflowError,
    ValueError,
    struct.error,
)


class Member(Bytes):
    """A member of a zip archive, which where it is compressed is inflated anew for each reading."""

    def __init__(self, file: File, archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> None:
        self._file, self._archive, self._member = file, archive, member
        self.size = member.file_size
        self.compressed = member.compress_type != zipfile.ZIP_STORED

    def _read(self, offset: int, length: int) -> bytes | bytearray:
        name, start = self._member.filename, self._member.header_offset
        if not self.compressed:
            magic, *lengths = _LOCAL_HEADER.unpack(self._file.read(start, _LOCAL_HEADER.size))
            if magic != b"PK\x03\x04":
                _refuse(name, "has no header where the archive's directory says")
            return self._file.read(start + _LOCAL_HEADER.size + sum(lengths) + offset, length)
        try:
            with self._archive.open(self._member) as stream:
                stream.seek(offset)
                content = stream.read(length)
        except (*_BROKEN, zlib.error) as error:
            _refuse(name, f"cannot be decompressed ({printable(str(error), 80)})")
        if len(content) < length:
            _refuse(name, "is shorter than it claims")
        return content


class Archive(dict[str, Member]):
    """The members of a zip archive, by name in its order.

    Refused are archives that are truncated, encrypted or compressed in a way that no checkpoint is,
    and members that overlap, repeat a name or claim impossible sizes.
    """

    def __init__(self, file: File) -> None:
        try:
            archive = zipfile.ZipFile(Stream(file))
        except _BROKEN as error:
            fault = printable(str(error).lower(), 80)
            raise CheckpointError(f"a truncated or corrupt zip archive ({fault})") from error
        members = archive.infolist()
        _check(members, file.size)
        super().__init__((member.filename, Member(file, archive, member)) for member in members)


def _check(members: list[zipfile.ZipInfo], end: int) -> None:
    if len(members) > MAX_MEMBERS:
        _refuse(members[0].filename, f"is one of more than {MAX_MEMBERS} members")
    names = Counter(member.filename for member in members)
    if len(names) < len(members):
        _refuse(names.most_common(1)[0][0], "stands twice in the archive")
    position = 0
    for member in sorted(members, key=lambda member: member.header_offset):
        name, stored = member.filename, member.compress_type == zipfile.ZIP_STORED
        if member.flag_bits & 1:
            _refuse(name, "is encrypted", remedy="decrypt the archive first")
        if not stored and member.compress_type != zipfile.ZIP_DEFLATED:
            _refuse(name, "is compressed by a method that no checkpoint uses")
        if member.header_offset < position:
            _refuse(name, "overlaps another member")
        position = member.header_offset + _LOCAL_HEADER.size + member.compress_size
        if position > end:
            _refuse(name, "reaches beyond the end of the file")
        size, packed = member.file_size, member.compress_size
        if size > packed * (1 if stored else largest_ratio(size)):
            _refuse(name, f"claims {size} bytes from {packed} compressed ones")


def _refuse(name: str, fault: str, **remedy: str) -> NoReturn:
    what = f"a corrupt zip archive: its member {printable(name, 60)} {fault}"
    raise CheckpointError(what, **remedy)


class Stream(io.RawIOBase):
    """Bytes as the seekable stream that `zipfile` and `tarfile` want."""

    def __init__(self, file: Bytes) -> None:
        self._file, self._position = file, 0

    def seekable(self) -> bool:
        """Whether `seek` works."""
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Go to a position, which may be beyond the end."""
        origin = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._file.size}
        self._position = origin[whence] + offset
        if self._position < 0:
            raise ValueError("a position before the start of the archive")
        return self._position

    def read(self, size: int = -1) -> bytes:
        """At most ``size`` bytes, for which no more memory is taken than there are bytes."""
        left = max(0, self._file.size - self._position)
        content = bytes(self._file.read(self._position, left if size < 0 else min(size, left)))
        self._position += len(content)
        return content
