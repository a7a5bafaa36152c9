"""What has been read once is not read again: reports by the content of their checkpoints.

An entry is a file whose first line is the hash of the rest. One that is damaged, or that another
version wrote, is passed over and written anew. Several runs may share a cache.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import stat
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import asdict

from memcurse_cli.checkpoints.open import CONFIG_NAME, MAX_CONFIG_BYTES, RECORDS, open_checkpoint
from memcurse_cli.checkpoints.untrusted.names import MAX_JSON_BYTES, parse_json, shown_place
from memcurse_cli.checkpoints.untrusted.source import read_bounded
from memcurse_cli.errors import CheckpointError, MemcurseError, UsageError
from memcurse_cli.files import write_whole
from memcurse_cli.schema.json_codec import decode, encode
from memcurse_cli.schema.report import Report
from memcurse_cli.tracking.executors import Reading
from memcurse_cli.version import VERSION

DIGEST_BYTES = 32
SETTLED = 2_000_000_000  # ns after which a change leaves another time on any file system
LAYOUT = 4  # counts the changes of what an entry holds or its key is made of
# Of a larger checkpoint, what figures need is read sooner than all of it.
MAX_HASHED_BYTES = 1 << 36
# The ends of files that describe what lies in others beside them.
WHOLE_DIRECTORY = (".json", "_METADATA", ".metadata", "manifest.ocdbt")

Signature = tuple[tuple[str, int, int, int], ...]


def default_directory() -> Path:
    """Where this system keeps what can be made again."""
    from platformdirs import user_cache_path

    return user_cache_path("memcurse", appauthor=False) / "track"


class Cache(Struct, frozen=True):
    """A folder of reports."""

    directory: Path  # where; it is made when the first entry is written
    required: bool = True  # a folder that cannot be written to is an error, else nothing is kept

    def get(self, key: str) -> Report | None:
        """The report of a key; None where there is none that is whole."""
        with suppress(MemcurseError):
            return decode(Report, self._load(key), where="cache")
        return None

    def put(self, key: str, report: Report) -> None:
        """Keep a report; raises `UsageError` where a required folder cannot be written to."""
        self._store(key, encode(report))

    def _load(self, key: str) -> Any:
        try:
            entry = read_bounded(self._place(key), MAX_JSON_BYTES)
            digest, _, body = entry.partition(b"\n")
            return parse_json(body) if _hash(body).encode() == digest else None
        except (CheckpointError, ValueError):
            return None

    def _store(self, key: str, document: Any) -> None:
        body = json.dumps(document, allow_nan=False).encode()
        place = self._place(key)
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
            # A report may be of a private run: only its user reads it.
            write_whole(place, _hash(body).encode() + b"\n" + body, mode=0o600)
        except OSError as error:
            in_the_way = place.is_dir() or place.parent.is_file()  # of this entry, not of all
            if in_the_way or not self.required:
                return
            raise UsageError(
                f"cannot be written: {error.strerror or error}",
                where=shown_place(self.directory),
                remedy="name another folder with --cache, or give --no-cache",
            ) from error

    def key_of(self, path: str, reading: Reading) -> str:
        """The hash of a checkpoint's bytes and of all that its figures hang on beside them.

        Raises what `hash_content` does, and `CheckpointError` for what is no checkpoint.
        """
        made_by = {"layout": LAYOUT, "version": VERSION, "reading": asdict(reading)}
        made_by["content"] = self._content(path)
        return _hash(json.dumps(made_by, sort_keys=True).encode())

    def _content(self, path: str) -> str:
        """The hash of the bytes, or the one known for these sizes, times and inodes, as in git.

        A file that was changed so lately that its time may not tell the next change is not known.
        """
        key = _hash(os.path.abspath(path).encode(errors="surrogateescape"))
        now = [list(file) for file in signature(path) or ()]
        known = self._load(key)
        if isinstance(known, dict) and now and known.get("signature") == now:
            return str(known.get("content"))
        open_checkpoint(path).close()
        content = hash_content(path)
        newest = max((changed for _, _, changed, _ in signature(path) or ()), default=0)
        if now and time.time_ns() - newest > SETTLED:
            self._store(key, {"signature": now, "content": content})
        return content

    def _place(self, key: str) -> Path:
        return self.directory / key[:2] / f"{key}.json"


def hash_content(path: str) -> str:
    """The hash of a checkpoint's names and bytes; `OSError`, `CheckpointError` (also too large)."""
    digest = hashlib.blake2b(digest_size=DIGEST_BYTES)
    if sum(size for _, size, _, _ in signature(path) or ()) > MAX_HASHED_BYTES:
        raise CheckpointError("it is too large to be hashed", where=shown_place(path), remedy="")
    for name, at in _files(path):
        with open(at, "rb") as file:
            content = hashlib.file_digest(file, hashlib.blake2b)
        digest.update(json.dumps(name).encode() + content.digest())
    return digest.hexdigest()


def _hash(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=DIGEST_BYTES).hexdigest()


def signature(path: str) -> Signature | None:
    """What tells without reading whether a checkpoint was changed; None where it is gone."""
    try:
        return tuple(
            (name, status.st_size, status.st_mtime_ns, status.st_ino)
            for name, file in _files(path)
            for status in (os.stat(file),)
        )
    except OSError:
        return None


def _files(path: str) -> Iterator[tuple[str, str]]:
    """The files that a checkpoint may be read from, with names that do not hang on its place."""
    if os.path.isdir(path) or path.endswith(WHOLE_DIRECTORY):
        root = path if os.path.isdir(path) else os.path.dirname(path) or "."
        below = (os.path.join(at, name) for at, _, names in os.walk(root) for name in names)
        regular = (file for file in below if stat.S_ISREG(os.stat(file).st_mode))
        yield from sorted((os.path.relpath(file, root), file) for file in regular)
        return
    # The array of a lone .npy file is called what the file is called.
    yield os.path.basename(path) if path.endswith(".npy") else "", path
    for name in (CONFIG_NAME, *RECORDS):
        beside = os.path.join(os.path.dirname(path), name)
        most = MAX_CONFIG_BYTES if name == CONFIG_NAME else math.inf
        if os.path.isfile(beside) and os.path.getsize(beside) <= most:
            yield name, beside
