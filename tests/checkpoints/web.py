"""A web server for the tests: it serves ranges, counts what it sends, and misbehaves on demand."""

from __future__ import annotations

import gzip
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

ENDLESS = 200 << 20


class Web(ThreadingHTTPServer):
    """Serves a directory: counts the bytes ``sent``, lists the paths that were ``asked``.

    Its ``fault`` says how to misbehave; ``tag`` and ``place`` are the ETag and Content-Range of
    each answer, where they are not empty; ``moved`` has the paths that redirect to others.
    """

    daemon_threads = True

    def __init__(self, root: Path) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.root, self.fault, self.place, self.tag = root, "", "", ""
        self.moved: dict[str, str] = {}
        self.sent = 0
        self.asked: list[str] = []
        self.released = threading.Event()

    def url(self, name: str) -> str:
        return f"http://127.0.0.1:{self.server_port}/{name}"

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that leaves early is what some tests are about."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Web

    def do_GET(self) -> None:
        web = self.server
        path = unquote(urlsplit(self.path).path)
        web.asked.append(self.path)
        file = web.root / path.lstrip("/")
        if web.fault == "silent":
            web.released.wait(20)
        elif web.fault.isdigit():
            self._answer(int(web.fault), b"")
        elif path in web.moved:
            self._answer(302, b"", {"Location": web.moved[path]})
        elif not file.is_file():
            self._answer(404, b"not here")
        else:
            self._serve(file.read_bytes())

    def _serve(self, content: bytes) -> None:
        fault = self.server.fault
        if fault == "no ranges":
            self._answer(200, content)
            return
        if fault == "no length":
            self.send_response(200)
            self.send_header("Connection", "close")
            self.end_headers()
            self.wfile.write(content)
            self.close_connection = True
            return
        first, last = map(int, self.headers["Range"].removeprefix("bytes=").split("-"))
        last = min(last, len(content) - 1)
        if first > last:
            self._answer(416, b"")
            return
        part = content[first : last + 1]
        place = {"Content-Range": f"bytes {first}-{last}/{len(content)}"}
        if self.server.place:
            place = {"Content-Range": self.server.place}
        if fault == "wrong range" and first:
            place = {"Content-Range": f"bytes 0-{last - first}/{len(content)}"}
        if fault == "gzip":
            part, place = gzip.compress(part), place | {"Content-Encoding": "gzip"}
        if fault == "slow head":
            self._drip(b"HTTP/1.1 206 Partial Content\r\n")
            return
        if fault in ("short", "endless", "slow"):
            self.send_response(206)
            self.send_header("Content-Range", place["Content-Range"])
            self.end_headers()
            self.close_connection = True
            if fault == "slow":
                self._drip(part)
            if fault == "short":
                self.wfile.write(part[: len(part) // 2])
            for _ in range(ENDLESS >> 20 if fault == "endless" else 0):
                self.server.sent += 1 << 20
                self.wfile.write(bytes(1 << 20))
            return
        self._answer(206, part, place)

    def _drip(self, content: bytes) -> None:
        """Send a byte now and then, until the client or five seconds are gone."""
        for byte in content[:25]:
            self.wfile.write(bytes([byte]))
            self.server.released.wait(0.2)

    def _answer(self, status: int, content: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for key, value in (headers or {}).items():
            self.send_header(key, value)
        if self.server.tag:
            self.send_header("ETag", self.server.tag)
        self.send_header("Content-Length", str(len(content)))
        if status in (200, 206):  # before the headers, after which a client may already go on
            self.server.sent += len(content)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:
        """Nothing is printed."""


@contextmanager
def serving(root: Path) -> Iterator[Web]:
    """A server of a directory, until the block ends."""
    with Web(root) as web:
        threading.Thread(target=web.serve_forever, kwargs={"poll_interval": 0.05}).start()
        try:
            yield web
        finally:
            web.released.set()
            web.shutdown()


def unused_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]
