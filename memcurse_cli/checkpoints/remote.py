"""Checkpoints at a URL: read by ranges, so that little more than what is needed is fetched.

What a remote checkpoint names itself (shards, its config.json) is looked for in its own folder.
Object stores are asked through fsspec's file systems, web servers within its HTTP session: fsspec's
own HTTP files read whatever a server sends, and compare neither range nor version of an answer.
"""

from __future__ import annotations

import asyncio
import threading
from abc import abstractmethod
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote, urlsplit, urlunsplit

from memcurse_cli.checkpoints.store import Transfer
from memcurse_cli.checkpoints.untrusted.names import printable, shown_place, shown_text
from memcurse_cli.checkpoints.untrusted.source import (
    Directory,
    File,
    Version,
    changed,
    listed,
    opened_as,
    require_inside,
)
from memcurse_cli.errors import CheckpointError

if TYPE_CHECKING:
    from aiohttp import ClientResponse

# A round trip takes as long as some hundred kilobytes, and a layer's small tensors lie together:
# small reads are of whole pages, of which the last are kept. A large read is neither.
PAGE = 1 << 17
MAX_PAGES = (64 << 20) // PAGE
LARGE_READ = 1 << 20
# A server that serves no ranges can only be asked for all of a file.
MAX_WHOLE = 64 << 20
MAX_REDIRECTS = 10
CONNECT_SECONDS = 15.0
# Without a byte for so long, the server is taken to have stopped; a whole answer may take this and
# what its length takes at the slowest rate, in bytes a second.
READ_SECONDS = 30.0
SLOWEST = 1 << 14
# The package that each scheme needs beside fsspec.
_STORES = {"s3": "s3fs", "gs": "gcsfs", "hf": "huggingface_hub"}
PACKAGES = {"https": "aiohttp", "http": "aiohttp", **_STORES}
# What object stores call the mark of an object's version.
TAGS = ("ETag", "etag", "generation", "blob_id")
_PIECE = 1 << 20
_TOO_SLOW = "the server does not answer or sends too slowly", "try again later"

Answer = TypeVar("Answer")


def open_remote(url: str) -> RemoteFile | RemoteDirectory:
    """What is at a URL; CheckpointError: unknown scheme, missing package, or it does not open."""
    try:
        parts = urlsplit(url)
    except ValueError:  # whose text quotes the URL
        what, remedy = "this is not a URL", "check its spelling"
        raise CheckpointError(what, where=shown_place(url), remedy=remedy) from None
    scheme, transfer = parts.scheme.lower(), Transfer()
    if scheme not in PACKAGES:
        what = f"{printable(scheme, 40)}:// is not a kind of path that memcurse reads"
        remedy = f"give a path on this machine, or {', '.join(f'{s}://' for s in PACKAGES)}"
        raise CheckpointError(what, where=shown_place(url), remedy=remedy)
    if scheme not in _STORES:
        system = _web_system()
        if parts.path.endswith("/"):
            what = "a web server's folder cannot be listed"
            remedy = "name the file in it, such as model.safetensors or its .index.json"
            raise CheckpointError(what, where=shown_place(url), remedy=remedy)
        return _WebFile(url, system, transfer)
    system = _object_store(url, scheme)
    if not _asked(url, 0, partial(system.isdir, url)):
        return _StoredObject(url, system, transfer)
    found = _asked(url, 0, partial(system.ls, url, detail=False))
    names = [str(name).rstrip("/").rpartition("/")[2] for name in found]
    return RemoteDirectory(_StoredObject, f"{url.rstrip('/')}/", system, transfer, names)


class RemoteFile(File):
    """A file at a URL, read by ranges."""

    head = b""  # its first bytes, where the server sent them with its size

    def __init__(self, url: str, system: Any, transfer: Transfer) -> None:
        self.path = shown_place(url)
        self.transfer = transfer
        self._url, self._system = url, system
        version = self._open()
        self.size = int(version[0])
        opened_as(url, self.path, version, self._now)
        self._pages = {0: self.head[:PAGE]} if len(self.head) in (PAGE, self.size) else {}

    @abstractmethod
    def _open(self) -> tuple[Any, ...]:
        """The size and what else tells the file's version."""

    @abstractmethod
    def _now(self) -> Version | None:
        """The version that the server has now; None where it has the file no longer."""

    @abstractmethod
    def _fetch(self, start: int, stop: int) -> bytes:
        """What the server sends of these bytes."""

    @staticmethod
    def beside(url: str, name: str) -> str:
        """The URL of a file in the same folder."""
        return f"{url.rpartition('/')[0]}/{name}"

    def _read(self, offset: int, length: int) -> bytes:
        stop = offset + length
        if stop <= len(self.head):
            return self.head[offset:stop]
        if length >= LARGE_READ:
            return self._exactly(offset, stop)
        first, last = offset // PAGE, -(-stop // PAGE)
        missing = [page for page in range(first, last) if page not in self._pages]
        if missing:
            start = missing[0] * PAGE
            content = self._exactly(start, min(self.size, (missing[-1] + 1) * PAGE))
            for at in range(0, len(content), PAGE):
                self._pages[(start + at) // PAGE] = content[at : at + PAGE]
        content = b"".join(self._pages[page] for page in range(first, last))
        while len(self._pages) > MAX_PAGES:  # the oldest first
            del self._pages[next(iter(self._pages))]
        return content[offset - first * PAGE : stop - first * PAGE]

    def directory(self) -> Directory:
        """The folder that it lies in."""
        return RemoteDirectory(type(self), self._url, self._system, self.transfer, [])

    def close(self) -> None:
        """Forget what was kept."""
        self._pages.clear()

    def _exactly(self, start: int, stop: int) -> bytes:
        content = self._fetch(start, stop)
        if len(content) != stop - start:
            what = f"the server sent {len(content)} of the {stop - start} bytes from byte {start}"
            raise self._refused(what, "try again, or download the file first")
        return content

    def _refused(self, what: str, remedy: str) -> CheckpointError:
        return CheckpointError(what, where=self.path, remedy=remedy)


class RemoteDirectory:
    """The folder of files of one kind, which are opened by name, and none outside it.

    ``url`` is that of a file in it, or its own with a ``/`` at the end; ``names`` what it holds.
    """

    def __init__(
        self, kind: type[RemoteFile], url: str, system: Any, transfer: Transfer, names: list[str]
    ) -> None:
        self.path = shown_place(url).rpartition("/")[0]
        self.names = listed(names, self.path)
        self.transfer = transfer
        self._kind, self._url, self._system = kind, url, system

    def open(self, name: str) -> File:
        """The file ``name``, a relative path with ``/`` that must not lead outside."""
        require_inside(name, self.path)
        return self._kind(self._kind.beside(self._url, name), self._system, self.transfer)

    def files(self) -> list[str]:
        """The names in it, hidden ones left out."""
        return [name for name in self.names if not name.startswith(".")]


def _web_system() -> Any:
    try:
        import aiohttp
        from fsspec.implementations.http import HTTPFileSystem
    except ImportError as error:
        what = "reading https:// needs the packages fsspec and aiohttp"
        raise CheckpointError(what, remedy="run `pip install 'memcurse-cli[remote]'`") from error
    timeout = aiohttp.ClientTimeout(sock_connect=CONNECT_SECONDS, sock_read=READ_SECONDS)
    # A compressed answer would hide how long it is; proxies are taken from the environment.
    options = {"timeout": timeout, "trust_env": True, "auto_decompress": False}
    return HTTPFileSystem(skip_instance_cache=True, client_kwargs=options)


class _WebFile(RemoteFile):
    """A file on a web server, whose head is all of it where the server serves no ranges."""

    @staticmethod
    def beside(url: str, name: str) -> str:
        """The URL of a file in the same folder; the query, which may give access, is kept."""
        parts = urlsplit(url)
        folder = parts.path.rpartition("/")[0]
        return urlunsplit(parts._replace(path=f"{folder}/{quote(name)}", fragment=""))

    def _open(self) -> Version:
        self._asked = self._url
        self._version = self._run(self._first())
        return self._version

    def _now(self) -> Version | None:
        return self._run(self._version_now())

    def _fetch(self, start: int, stop: int) -> bytes:
        return self._run(self._range(start, stop))

    async def _first(self) -> Version:
        async with await self._get(0, PAGE) as response:
            if response.status == 416:  # no first byte: an empty file
                return 0, "", ""
            size, *marks = self._version_of(response, 0)
            length = size
            if response.status == 206:
                self._asked, length = str(response.url), min(PAGE, size)
            elif size > MAX_WHOLE:
                what = f"the server does not serve ranges, and all {size} bytes are more than "
                what += f"the {MAX_WHOLE} that are fetched whole"
                raise self._refused(what, "download the file first")
            self.head = await self._body(response, length)
            return size, *marks

    async def _range(self, start: int, stop: int) -> bytes:
        async with await self._get_again(start, stop) as response:
            version = self._version_of(response, start)
            if response.status != 206:
                what = "the server sent something else than the range that it was asked for"
                raise self._refused(what, "download the file first")
            if version != self._version:
                raise changed(self.path)
            return await self._body(response, stop - start)

    async def _version_now(self) -> Version | None:
        async with await self._get_again(0, 1) as response:
            if response.status in (404, 410):
                return None
            return (0, "", "") if response.status == 416 else self._version_of(response, 0)

    async def _get_again(self, start: int, stop: int) -> ClientResponse:
        response = await self._get(start, stop)
        # What a redirection gave for some time is asked for anew.
        if response.status in (401, 403, 404, 410) and self._asked != self._url:
            response.close()
            self._asked = self._url
            response = await self._get(start, stop)
        return response

    async def _get(self, start: int, stop: int) -> ClientResponse:
        session = await self._system.set_session()
        headers = {"Range": f"bytes={start}-{stop - 1}", "Accept-Encoding": "identity"}
        async with asyncio.timeout(CONNECT_SECONDS + READ_SECONDS):
            response: ClientResponse = await session.get(
                self._system.encode_url(self._asked), headers=headers, max_redirects=MAX_REDIRECTS
            )
        if self._url.lower().startswith("https:") and response.url.scheme != "https":
            response.close()
            what = "the server redirects from https to an insecure address, which is not followed"
            raise self._refused(what, "download the file by other means")
        return response

    async def _body(self, response: ClientResponse, length: int) -> bytes:
        """At most ``length`` bytes: whatever else the server sends is not read."""
        content = bytearray()
        async with asyncio.timeout(READ_SECONDS + length / SLOWEST):
            while len(content) < length:
                piece = await response.content.read(min(_PIECE, length - len(content)))
                if not piece:
                    what = f"the server sent {len(content)} of {length} bytes and stopped"
                    raise self._refused(what, "try again")
                content += piece
        return self.transfer.count(bytes(content))

    def _version_of(self, response: ClientResponse, start: int) -> tuple[int, str, str]:
        """The size of the file, and what the server marks this version of it with."""
        status, header = response.status, response.headers.get
        if status in (404, 410):
            missing = FileNotFoundError(status)
            raise self._refused(f"no such file (HTTP {status})", "check the URL") from missing
        if status in (401, 403, 407):
            remedy = "use a URL that gives access, or download the file first"
            raise self._refused(f"the server refuses access (HTTP {status})", remedy)
        if status not in (200, 206):
            raise self._refused(f"the server answers with HTTP {status}", "try again later")
        if header("Content-Encoding", "identity") not in ("identity", ""):
            remedy = "download the file and unpack it first"
            raise self._refused("the server compresses what it sends", remedy)
        size = header("Content-Length", "")
        fault = "the server serves no ranges and does not say how long the file is"
        if status == 206:  # Content-Range: bytes 0-99/1234
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

        try:
            content: Answer = sync(self._system.loop, lambda: work)
            return content
        except TimeoutError as error:
            raise self._refused(*_TOO_SLOW) from error
        except aiohttp.TooManyRedirects as error:
            what = f"the server redirects more than {MAX_REDIRECTS} times"
            raise self._refused(what, "check the URL") from error
        except (aiohttp.InvalidURL, ValueError):  # which quote parts of the URL
            raise self._refused("this is not a URL", "check its spelling") from None
        except (aiohttp.ClientError, OSError) as error:
            what = f"the server cannot be reached ({type(error).__name__})"
            raise self._refused(what, "check the URL and the connection") from error


def _object_store(url: str, scheme: str) -> Any:
    """The file system of one object store, with the credentials that its package finds itself."""
    try:
        import fsspec

        return fsspec.filesystem(scheme)
    except (ImportError, ValueError) as error:
        what = f"reading {scheme}:// needs the packages fsspec and {PACKAGES[scheme]}"
        remedy = f"run `pip install 'memcurse-cli[remote]' {PACKAGES[scheme]}`"
        raise CheckpointError(what, where=shown_place(url), remedy=remedy) from error
    except Exception as error:  # each store's package has exceptions of its own
        raise _unreadable(url, error) from error


class _StoredObject(RemoteFile):
    """One object, whose size is known without its content."""

    def _open(self) -> tuple[Any, ...]:
        described = _asked(self._url, 0, partial(self._system.info, self._url))
        return described["size"], *map(described.get, TAGS)

    def _now(self) -> Version | None:
        self._system.invalidate_cache()
        try:
            return self._open()
        except CheckpointError as error:
            if isinstance(error.__cause__, FileNotFoundError):
                return None
            raise

    def _fetch(self, start: int, stop: int) -> bytes:
        read = partial(self._system.cat_file, self._url, start=start, end=stop)
        return self.transfer.count(bytes(_asked(self._url, stop - start, read)))


def _asked(url: str, size: int, question: Callable[[], Any]) -> Any:
    """The answer of a package, from a thread that is left behind: some know no deadline."""
    answer: Future[Any] = Future()

    def ask() -> None:
        try:
            answer.set_result(question())
        except Exception as error:
            answer.set_exception(error)

    threading.Thread(target=ask, daemon=True).start()
    try:
        return answer.result(READ_SECONDS + size / SLOWEST)
    except Exception as error:  # each store's package has exceptions of its own
        raise _unreadable(url, error) from error


def _unreadable(url: str, error: Exception) -> CheckpointError:
    """The one line for what a store's package says; caused by the same exception."""
    what, remedy = "no such file", "check the URL"
    if isinstance(error, PermissionError):
        what, remedy = "the store refuses access", "log in to it, or check the URL"
    elif isinstance(error, TimeoutError):
        what, remedy = _TOO_SLOW
    elif not isinstance(error, FileNotFoundError):
        said = printable(shown_text(str(error).strip().partition("\n")[0]), 120)
        what = f"the store does not give it ({type(error).__name__}{': ' if said else ''}{said})"
        remedy = "check the URL, the connection and the credentials"
    return CheckpointError(what, where=shown_place(url), remedy=remedy)
