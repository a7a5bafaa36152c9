"""Files on a web server, through fsspec's HTTP session: every answer is checked and bounded."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote, urlsplit, urlunsplit

from memcurse_cli.checkpoints.lazy import Transfer
from memcurse_cli.checkpoints.names import shown_place
from memcurse_cli.checkpoints.source import Version, changed, opened_as
from memcurse_cli.errors import CheckpointError

if TYPE_CHECKING:
    from aiohttp import ClientResponse

HEAD = 1 << 16
# A server that serves no ranges can only be asked for all of a file.
MAX_WHOLE = 64 << 20
CONNECT_SECONDS = 15.0
# Without a byte for so long, the server is taken to have stopped; a whole answer may take this and
# what its length takes at the slowest rate, in bytes a second.
READ_SECONDS = 30.0
SLOWEST = 1 << 14
MAX_REDIRECTS = 10
INSTALL = "run `pip install 'memcurse-cli[remote]'`"
_PIECE = 1 << 20

Answer = TypeVar("Answer")


class HttpPlace:
    """Opens files on web servers, within one session.

    Raises:
        CheckpointError: fsspec or aiohttp is not installed.
    """

    def __init__(self, transfer: Transfer) -> None:
        try:
            import aiohttp
            from fsspec.implementations.http import HTTPFileSystem
        except ImportError as error:
            raise CheckpointError(
                "reading https:// needs the packages fsspec and aiohttp", remedy=INSTALL
            ) from error
        timeout = aiohttp.ClientTimeout(
            total=None, sock_connect=CONNECT_SECONDS, sock_read=READ_SECONDS
        )
        # A compressed answer would hide how long it is; proxies are taken from the environment.
        options = {"timeout": timeout, "trust_env": True, "auto_decompress": False}
        self._system = HTTPFileSystem(skip_instance_cache=True, client_kwargs=options)
        self._transfer = transfer

    def open(self, url: str) -> HttpFile:
        """The file at a URL; asks for its first bytes, of which the answer says the size."""
        return HttpFile(url, self._system, self._transfer)

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


class HttpFile:
    """A file on a web server.

    Attributes:
        size: its length in bytes.
        head: its first bytes; all of them where the server serves no ranges.
    """

    def __init__(self, url: str, system: Any, transfer: Transfer) -> None:
        self._url = self._asked = url
        self._system, self._transfer = system, transfer
        self.size = 0
        self._version: tuple[int, str, str] = 0, "", ""
        self.head = self._run(self._open())
        opened_as(url, shown_place(url), self._version, lambda: self._run(self._now()))

    def fetch(self, start: int, stop: int) -> bytes:
        """The bytes from ``start`` up to ``stop``."""
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
        partial = response.status == 206
        size = self._total(response, start) if partial else self._length(response)
        tag, time = (response.headers.get(name, "") for name in ("ETag", "Last-Modified"))
        return size, tag, time

    def _total(self, response: ClientResponse, start: int) -> int:
        """The size of the file, from ``Content-Range: bytes 0-99/1234``."""
        unit, _, place = response.headers.get("Content-Range", "").partition(" ")
        span, _, total = place.partition("/")
        first = span.partition("-")[0]
        if unit != "bytes" or first != str(start) or not _is_size(total):
            raise self._refused(
                "the server does not say which range it sends", "download the file first"
            )
        return int(total)

    def _length(self, response: ClientResponse) -> int:
        length = response.headers.get("Content-Length", "")
        if not _is_size(length):
            raise self._refused(
                "the server serves no ranges and does not say how long the file is",
                "download the file first",
            )
        return int(length)

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


def _is_size(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 20
