"""Checkpoints at a URL: read by ranges, so that little more than what is needed is fetched.

A URL is opened only where the user has given one: no local file can name one. What a remote
checkpoint names itself (shards, external data, its config.json) is looked for in its own folder.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Protocol
from urllib.parse import urlsplit

from memcurse_cli.checkpoints.lazy import Transfer
from memcurse_cli.checkpoints.names import printable, shown_place
from memcurse_cli.checkpoints.source import Directory, File, is_inside
from memcurse_cli.errors import CheckpointError

_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+)://")
PAGE = 1 << 15
# A round trip takes as long as some hundred kilobytes: a small read brings this many pages before
# and after it as well, since a layer's small tensors lie together and are read in any order. A
# large read is neither extended nor kept.
READ_AROUND = 3
LARGE_READ = 1 << 20
MAX_PAGES = (64 << 20) // PAGE


class Source(Protocol):
    """A remote file whose size is known.

    Attributes:
        size: its length in bytes.
        head: the first bytes, as far as opening it has brought them.
    """

    size: int
    head: bytes

    def fetch(self, start: int, stop: int) -> bytes:
        """The bytes from ``start`` up to ``stop``.

        Raises:
            CheckpointError: the server does not give them.
        """


class Place(Protocol):
    """A scheme's way to open what is at a URL."""

    def open(self, url: str) -> Source:
        """The file at a URL.

        Raises:
            CheckpointError: it cannot be opened; caused by a FileNotFoundError where it is missing.
        """

    def beside(self, url: str, name: str) -> str:
        """The URL of ``name``, a relative path with ``/``, in the folder of ``url``."""

    def names(self, url: str) -> list[str] | None:
        """What is in the folder at ``url``, or None where that is a file or cannot be told."""


class RemoteFile:
    """A file at a URL, read by ranges.

    Small reads are kept as pages, of which the last `MAX_PAGES` are remembered.
    """

    def __init__(self, url: str, place: Place, transfer: Transfer) -> None:
        self.path = shown_place(url)
        self.transfer = transfer
        self._url, self._place = url, place
        self._source = place.open(url)
        self.size = self._source.size
        self._pages: dict[int, bytes] = {}
        self._keep(0, self._source.head)

    def read(self, offset: int, length: int) -> bytes:
        """Exactly ``length`` bytes from ``offset``."""
        stop = offset + length
        if offset < 0 or length < 0 or stop > self.size:
            raise CheckpointError(
                f"the file ends at byte {self.size}, before the {length} bytes from byte {offset}",
                where=self.path,
                remedy="it is truncated: upload it again",
            )
        if stop <= len(self._source.head):
            return self._source.head[offset:stop]
        if length >= LARGE_READ:
            return self._fetch(offset, stop)
        first, last = offset // PAGE, -(-stop // PAGE)
        missing = [page for page in range(first, last) if page not in self._pages]
        if missing:
            self._fetch_pages(missing[0], missing[-1] + 1)
        content = b"".join(self._pages[page] for page in range(first, last))
        while len(self._pages) > MAX_PAGES:  # the oldest first
            del self._pages[next(iter(self._pages))]
        return content[offset - first * PAGE : stop - first * PAGE]

    def directory(self) -> Directory:
        """The folder that it lies in."""
        return RemoteDirectory(self._url, self._place, self.transfer)

    def close(self) -> None:
        """Forget what was kept."""
        self._pages.clear()

    def _fetch_pages(self, first: int, last: int) -> None:
        """Fetch these pages, and those around them that are not there."""
        pages = range(max(0, first - READ_AROUND), min(last + READ_AROUND, -(-self.size // PAGE)))
        while pages[0] < first and pages[0] in self._pages:
            pages = pages[1:]
        while pages[-1] >= last and pages[-1] in self._pages:
            pages = pages[:-1]
        start = pages[0] * PAGE
        self._keep(start, self._fetch(start, min(self.size, (pages[-1] + 1) * PAGE)))

    def _keep(self, start: int, content: bytes) -> None:
        for at in range(0, len(content), PAGE):
            page = content[at : at + PAGE]
            if len(page) == PAGE or start + at + len(page) == self.size:
                self._pages.pop((start + at) // PAGE, None)
                self._pages[(start + at) // PAGE] = page

    def _fetch(self, start: int, stop: int) -> bytes:
        content = self._source.fetch(start, stop)
        if len(content) != stop - start:
            raise CheckpointError(
                f"the server sent {len(content)} of the {stop - start} bytes from byte {start}",
                where=self.path,
                remedy="try again, or download the file first",
            )
        return content


class RemoteDirectory:
    """The folder at a URL, whose files are opened by name, and none outside it.

    Args:
        url: of a file in it, or its own with a ``/`` at the end.
        place: the scheme's way to open URLs.
        transfer: counts what is fetched.
        names: what is in it, where that is known.
    """

    def __init__(
        self, url: str, place: Place, transfer: Transfer, names: list[str] | None = None
    ) -> None:
        self.path = shown_place(url).rpartition("/")[0]
        self.names = sorted(names or [])
        self._url, self._place, self.transfer = url, place, transfer

    def open(self, name: str) -> File:
        """The file ``name``, a relative path with ``/``.

        Raises:
            CheckpointError: the name leads outside, or it cannot be opened.
        """
        if not is_inside(name):
            raise CheckpointError(
                "this name leads outside the checkpoint's folder, and is not opened",
                where=printable(f"{self.path}/{name}"),
                remedy="shards must lie beside their index",
            )
        return RemoteFile(self._place.beside(self._url, name), self._place, self.transfer)

    def files(self) -> list[str]:
        """The names in it, hidden ones left out."""
        return [name for name in self.names if not name.startswith(".")]


def is_url(path: object) -> bool:
    """Whether a path is ``scheme://…``, of any scheme."""
    return isinstance(path, str) and _URL.match(path) is not None


def open_remote(url: str) -> RemoteFile | RemoteDirectory:
    """What is at a URL.

    Raises:
        CheckpointError: the scheme is not known, a package is missing, or it cannot be opened.
    """
    transfer = Transfer()
    try:
        scheme = urlsplit(url).scheme.lower()
    except ValueError:  # whose text quotes the URL
        raise CheckpointError(
            "this is not a URL", where=shown_place(url), remedy="check its spelling"
        ) from None
    if scheme not in PLACES:
        raise CheckpointError(
            f"{printable(scheme, 40)}:// is not a kind of path that memcurse reads",
            where=shown_place(url),
            remedy=f"give a path on this machine, or {', '.join(f'{s}://' for s in PLACES)}",
        )
    place = PLACES[scheme](url, transfer)
    names = place.names(url)
    if names is None:
        return RemoteFile(url, place, transfer)
    return RemoteDirectory(f"{url.rstrip('/')}/", place, transfer, names)


def _http(url: str, transfer: Transfer) -> Place:
    from memcurse_cli.checkpoints.remote_http import HttpPlace

    return HttpPlace(transfer)


def _objects(url: str, transfer: Transfer) -> Place:
    from memcurse_cli.checkpoints.remote_objects import ObjectPlace

    return ObjectPlace(url, transfer)


PLACES: dict[str, Callable[[str, Transfer], Place]] = {
    "https": _http,
    "http": _http,
    "s3": _objects,
    "gs": _objects,
    "hf": _objects,
}
