"""Checkpoints at a URL: read by ranges, so that little more than what is needed is fetched.

A URL is opened only where the user has given one: no local file can name one. What a remote
checkpoint names itself (shards, external data, its config.json) is looked for in its own folder.

Web servers are asked within fsspec's HTTP session, object stores through fsspec's file systems.
fsspec's own HTTP files are not used: they read whatever a server sends, however much that is, and
compare neither the range nor the version of an answer with what was asked for.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote, urlsplit, urlunsplit

from memcurse_cli.checkpoints.store import Transfer
from memcurse_cli.checkpoints.untrusted.names import printable, shown_place, shown_text
from memcurse_cli.checkpoints.untrusted.source import (
    MAX_DIRECTORY_ENTRIES,
    Directory,
    File,
    Version,
    changed,
    is_inside,
    opened_as,
    require_within,
)
from memcurse_cli.errors import CheckpointError

if TYPE_CHECKING:
    from aiohttp import ClientResponse

# A round trip takes as long as some hundred kilobytes, and a layer's small tensors lie together:
# small reads are of whole pages, of which the last are kept. A large read is neither.
PAGE = 1 << 17
MAX_PAGES = (64 << 20) // PAGE
LARGE_READ = 1 << 20
HEAD = PAGE
# A server that serves no ranges can only be asked for all of a file.
MAX_WHOLE = 64 << 20
MAX_REDIRECTS = 10
CONNECT_SECONDS = 15.0
# Without a byte for so long, the server is taken to have stopped; a whole answer may take this and
# what its length takes at the slowest rate, in bytes a second.
READ_SECONDS = 30.0
SLOWEST = 1 << 14
# The package that each scheme needs beside fsspec.
PACKAGES = {
    "https": "aiohttp",
    "http": "aiohttp",
    "s3": "s3fs",
    "gs": "gcsfs",
    "hf": "huggingface_hub",
}
# What object stores call the mark of an object's version.
TAGS = ("ETag", "etag", "generation", "blob_id")
_PIECE = 1 << 20

Answer = TypeVar("Answer")


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
    if scheme not in PACKAGES:
        raise CheckpointError(
            f"{printable(scheme, 40)}:// is not a kind of path that memcurse reads",
            where=shown_place(url),
            remedy=f"give a path on this machine, or {', '.join(f'{s}://' for s in PACKAGES)}",
        )
    is_web = scheme in ("http", "https")
    place = _HttpPlace(transfer) if is_web else _ObjectPlace(url, transfer)
    names = place.names(url)
    if names is None:
        return RemoteFile(url, place, transfer)
    return RemoteDirectory(f"{url.rstrip('/')}/", place, transfer, names)


class RemoteFile:
    """A file at a URL, read by ranges."""

    def __init__(self, url: str, place: _Place, transfer: Transfer) -> None:
        self.path = shown_place(url)
        self.transfer = transfer
        self._url, self._place = url, place
        self._source = place.open(url)
        self.size = self._source.size
        self._pages: dict[int, bytes] = {}
        if len(self._source.head) in (PAGE, self.size):
            self._pages[0] = self._source.head[:PAGE]

    def read(self, offset: int, length: int) -> bytes:
        """Exactly ``length`` bytes from ``offset``."""
        require_within(self, offset, length)
        stop = offset + length
        if stop <= len(self._source.head):
            return self._source.head[offset:stop]
        if length >= LARGE_READ:
            return self._fetch(offset, stop)
        first, last = offset // PAGE, -(-stop // PAGE)
        missing = [page for page in range(first, last) if page not in self._pages]
        if missing:
            start = missing[0] * PAGE
            content = self._fetch(start, min(self.size, (missing[-1] + 1) * PAGE))
            for at in range(0, len(content), PAGE):
                self._pages[(start + at) // PAGE] = content[at : at + PAGE]
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
        names: what is in it, where that is known.
    """

    def __init__(
        self, url: str, place: _Place, transfer: Transfer, names: list[str] | None = None
    ) -> None:
        self.path = shown_place(url).rpartition("/")[0]
        self.names = sorted(names or [])
        self._url, self._place, self.transfer = url, place, transfer

    def open(self, name: str) -> File:
        """The file ``name``, a relative path with ``/`` that must not lead outside."""
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


class _HttpPlace:
    """Opens files on web servers, within one session."""

    def __init__(self, transfer: Transfer) -> None:
        try:
            import aiohttp
            from fsspec.implementations.http import HTTPFileSystem
        except ImportError as error:
            raise CheckpointError(
                "reading https:// needs the packages fsspec and aiohttp",
                remedy="run `pip install 'memcurse-cli[remote]'`",
            ) from error
        timeout = aiohttp.ClientTimeout(
            total=None, sock_connect=CONNECT_SECONDS, sock_read=READ_SECONDS
        )
        # A compressed answer would hide how long it is; proxies are taken from the environment.
        options = {"timeout": timeout, "trust_env": True, "auto_decompress": False}
        self._system = HTTPFileSystem(skip_instance_cache=True, client_kwargs=options)
        self._transfer = transfer

    def open(self, url: str) -> _HttpFile:
        return _HttpFile(url, self._system, self._transfer)

    def beside(self, url: str, name: str) -> str:
        """The URL of a file in the same folder; the query, which may give access, is kept."""
        parts = urlsplit(url)
        folder = parts.path.rpartition("/")[0]
        return urlunsplit(parts._replace(path=f"{folder}/{quote(name)}", fragment=""))

    def names(self, url: str) -> None:
        """A web server does not list its folders."""
        if urlsplit(url).path.endswith("/"):
            raise CheckpointError(
                "a web server's folder cannot be listed",
                where=shown_place(url),
                remedy="name the file in it, such as model.safetensors or its .index.json",
            )


class _HttpFile:
    """A file on a web server: its size, and its first bytes, all where it serves no ranges."""

    def __init__(self, url: str, system: Any, transfer: Transfer) -> None:
        self._url = self._asked = url
        self._system, self._transfer = system, transfer
        self.size = 0
        self._version: tuple[int, str, str] = 0, "", ""
        self.head = self._run(self._open())
        opened_as(url, shown_place(url), self._version, lambda: self._run(self._now()))

    def fetch(self, start: int, stop: int) -> bytes:
        return self._run(self._range(start, stop))

    async def _open(self) -> bytes:
        async with await self._get(0, HEAD) as response:
            if response.status == 416:  # no first byte: an empty file
                return b""
            self._check(response)
            self._version = self._version_of(response, 0)
            self.size = self._version[0]
            if response.status == 206:
                self._asked = str(response.url)
                return await self._body(response, min(HEAD, self.size))
            if self.size > MAX_WHOLE:
                raise self._refused(
                    f"the server does not serve ranges, and all {self.size} bytes are more than "
                    f"the {MAX_WHOLE} that are fetched whole",
                    "download the file first",
                )
            return await self._body(response, self.size)

    async def _range(self, start: int, stop: int) -> bytes:
        async with await self._get_again(start, stop) as response:
            self._check(response)
            if response.status != 206:
                raise self._refused(
                    "the server sent something else than the range that it was asked for",
                    "download the file first",
                )
            if self._version_of(response, start) != self._version:
                raise changed(shown_place(self._url))
            return await self._body(response, stop - start)

    async def _now(self) -> Version | None:
        """What the server says of the file now; None where it has it no longer."""
        async with await self._get_again(0, 1) as response:
            if response.status in (404, 410):
                return None
            if response.status == 416:
                return 0, "", ""
            self._check(response)
            return self._version_of(response, 0)

    async def _get_again(self, start: int, stop: int) -> ClientResponse:
        response = await self._get(start, stop)
        # What a redirection gave for some time is asked for anew.
        if response.status in (401, 403, 404, 410) and self._asked != self._url:
            response.close()
            self._asked = self._url
            response = await self._get(start, stop)
        return response

    async def _get(self, start: int, stop: int) -> ClientResponse:
        import asyncio

        session = await self._system.set_session()
        headers = {"Range": f"bytes={start}-{stop - 1}", "Accept-Encoding": "identity"}
        async with asyncio.timeout(CONNECT_SECONDS + READ_SECONDS):
            response: ClientResponse = await session.get(
                self._system.encode_url(self._asked), headers=headers, max_redirects=MAX_REDIRECTS
            )
        if self._url.lower().startswith("https:") and response.url.scheme != "https":
            response.close()
            raise self._refused(
                "the server redirects from https to an insecure address, which is not followed",
                "download the file by other means",
            )
        return response

    async def _body(self, response: ClientResponse, length: int) -> bytes:
        """At most ``length`` bytes: whatever else the server sends is not read."""
        import asyncio

        content = bytearray()
        async with asyncio.timeout(READ_SECONDS + length / SLOWEST):
            while len(content) < length:
                piece = await response.content.read(min(_PIECE, length - len(content)))
                if not piece:
                    break
                content += piece
        if len(content) < length:
            raise self._refused(
                f"the server sent {len(content)} of {length} bytes and stopped", "try again"
            )
        return self._transfer.count(bytes(content))

    def _check(self, response: ClientResponse) -> None:
        status = response.status
        if status in (404, 410):
            raise self._refused(f"no such file (HTTP {status})", "check the URL") from (
                FileNotFoundError(status)
            )
        if status in (401, 403, 407):
            raise self._refused(
                f"the server refuses access (HTTP {status})",
                "use a URL that gives access, or download the file first",
            )
        if status not in (200, 206):
            raise self._refused(f"the server answers with HTTP {status}", "try again later")
        if response.headers.get("Content-Encoding", "identity") not in ("identity", ""):
            raise self._refused(
                "the server compresses what it sends", "download the file and unpack it first"
            )

    def _version_of(self, response: ClientResponse, start: int) -> tuple[int, str, str]:
        """The size of the file, and what the server marks this version of it with."""
        header = response.headers.get
        size = header("Content-Length", "")
        fault = "the server serves no ranges and does not say how long the file is"
        if response.status == 206:  # Content-Range: bytes 0-99/1234
            unit, _, place = header("Content-Range", "").partition(" ")
            span, _, size = place.partition("/")
            fault = "the server does not say which range it sends"
            if unit != "bytes" or span.partition("-")[0] != str(start):
                size = ""
        if not (size.isascii() and size.isdigit() and len(size) < 20):
            raise self._refused(fault, "download the file first")
        return int(size), header("ETag", ""), header("Last-Modified", "")

    def _run(self, work: Coroutine[Any, Any, Answer]) -> Answer:
        import aiohttp
        from fsspec.asyn import sync
        from fsspec.exceptions import FSTimeoutError

        try:
            content: Answer = sync(self._system.loop, lambda: work)
            return content
        except (TimeoutError, FSTimeoutError, aiohttp.ServerTimeoutError) as error:
            raise self._refused(
                "the server does not answer or sends too slowly", "try again later"
            ) from error
        except aiohttp.TooManyRedirects as error:
            raise self._refused(
                f"the server redirects more than {MAX_REDIRECTS} times", "check the URL"
            ) from error
        except (aiohttp.InvalidURL, ValueError):  # which quote parts of the URL
            raise self._refused("this is not a URL", "check its spelling") from None
        except (aiohttp.ClientError, OSError) as error:
            raise self._refused(
                f"the server cannot be reached ({type(error).__name__})",
                "check the URL and the connection",
            ) from error

    def _refused(self, what: str, remedy: str) -> CheckpointError:
        return CheckpointError(what, where=shown_place(self._url), remedy=remedy)


class _ObjectPlace:
    """Opens files of one object store, with the credentials that its package finds by itself."""

    def __init__(self, url: str, transfer: Transfer) -> None:
        scheme = url.partition(":")[0].lower()
        self._transfer = transfer
        try:
            import fsspec

            self._system: Any = fsspec.filesystem(scheme)
        except (ImportError, ValueError) as error:
            raise CheckpointError(
                f"reading {scheme}:// needs the packages fsspec and {PACKAGES[scheme]}",
                where=shown_place(url),
                remedy=f"run `pip install 'memcurse-cli[remote]' {PACKAGES[scheme]}`",
            ) from error
        except Exception as error:  # each store's package has exceptions of its own
            raise _unreadable(url, error) from error

    def open(self, url: str) -> _ObjectFile:
        return _ObjectFile(url, self._system, self._transfer)

    def beside(self, url: str, name: str) -> str:
        return f"{url.rpartition('/')[0]}/{name}"

    def names(self, url: str) -> list[str] | None:
        """What is under a prefix."""
        if not _asked(url, 0, lambda: self._system.isdir(url)):
            return None
        listed = _asked(url, 0, lambda: self._system.ls(url, detail=False))
        if len(listed) > MAX_DIRECTORY_ENTRIES:
            raise CheckpointError(
                f"the folder has more than {MAX_DIRECTORY_ENTRIES} entries",
                where=shown_place(url),
                remedy="name the checkpoint's file",
            )
        return [str(name).rstrip("/").rpartition("/")[2] for name in listed]


class _ObjectFile:
    """One object, whose size is known without its content."""

    head = b""

    def __init__(self, url: str, system: Any, transfer: Transfer) -> None:
        self._url, self._system, self._transfer = url, system, transfer
        version = self._version()
        self.size = int(version[0])
        opened_as(url, shown_place(url), version, self._now)

    def fetch(self, start: int, stop: int) -> bytes:
        content = _asked(
            self._url,
            stop - start,
            lambda: self._system.cat_file(self._url, start=start, end=stop),
        )
        return self._transfer.count(bytes(content))

    def _version(self) -> tuple[Any, ...]:
        described = _asked(self._url, 0, lambda: self._system.info(self._url))
        return described["size"], *map(described.get, TAGS)

    def _now(self) -> Version | None:
        self._system.invalidate_cache()
        try:
            return self._version()
        except CheckpointError as error:
            if isinstance(error.__cause__, FileNotFoundError):
                return None
            raise


_Place = _HttpPlace | _ObjectPlace


def _asked(url: str, size: int, question: Callable[[], Any]) -> Any:
    """The answer of an object store's package, of ``size`` bytes, within the time that it may take.

    Some of the packages know no deadline, so that they are asked in a thread, which is left behind
    when its time is over.
    """
    answers: queue.SimpleQueue[tuple[Any, Exception | None]] = queue.SimpleQueue()

    def ask() -> None:
        try:
            answers.put((question(), None))
        except Exception as error:  # each store's package has exceptions of its own
            answers.put((None, error))

    threading.Thread(target=ask, daemon=True).start()
    try:
        answer, error = answers.get(timeout=READ_SECONDS + size / SLOWEST)
    except queue.Empty:
        answer, error = None, TimeoutError()
    if error is not None:
        raise _unreadable(url, error) from error
    return answer


def _unreadable(url: str, error: Exception) -> CheckpointError:
    """The one line for what a store's package says; caused by the same exception."""
    what, remedy = "no such file", "check the URL"
    if isinstance(error, PermissionError):
        what, remedy = "the store refuses access", "log in to it, or check the URL"
    elif isinstance(error, TimeoutError):
        what, remedy = "the store does not answer or sends too slowly", "try again later"
    elif not isinstance(error, FileNotFoundError):
        said = printable(shown_text(str(error).strip().partition("\n")[0]), 120)
        what = f"the store does not give it ({type(error).__name__}{': ' if said else ''}{said})"
        remedy = "check the URL, the connection and the credentials"
    return CheckpointError(what, where=shown_place(url), remedy=remedy)
