"""Files in object stores (S3, Google Cloud Storage, the Hugging Face Hub), through fsspec."""

from __future__ import annotations

from typing import Any

from memcurse_cli.checkpoints.lazy import Transfer
from memcurse_cli.checkpoints.names import printable, shown_place, shown_text
from memcurse_cli.checkpoints.remote_http import READ_SECONDS, SLOWEST
from memcurse_cli.checkpoints.source import MAX_DIRECTORY_ENTRIES, Version, opened_as
from memcurse_cli.errors import CheckpointError

# The package that each scheme needs beside fsspec.
PACKAGES = {"s3": "s3fs", "gs": "gcsfs", "hf": "huggingface_hub"}
# What the stores' packages call the mark of an object's version.
TAGS = ("ETag", "etag", "generation", "blob_id")


class ObjectPlace:
    """Opens files of one object store, with the credentials that its package finds by itself.

    Raises:
        CheckpointError: fsspec or the store's package is not installed.
    """

    def __init__(self, url: str, transfer: Transfer) -> None:
        scheme = url.partition(":")[0].lower()
        package = PACKAGES[scheme]
        self._where, self._transfer = shown_place(url), transfer
        try:
            import fsspec

            self._system: Any = fsspec.filesystem(scheme)
        except (ImportError, ValueError) as error:
            raise CheckpointError(
                f"reading {scheme}:// needs the packages fsspec and {package}",
                where=self._where,
                remedy=f"run `pip install 'memcurse-cli[remote]' {package}`",
            ) from error
        except Exception as error:  # each store's package has exceptions of its own
            raise unreadable_object(self._where, error) from error

    def open(self, url: str) -> ObjectFile:
        """The object at a URL."""
        return ObjectFile(url, self._system, self._transfer)

    def beside(self, url: str, name: str) -> str:
        """The URL of an object under the same prefix."""
        return f"{url.rpartition('/')[0]}/{name}"

    def names(self, url: str) -> list[str] | None:
        """What is under a prefix."""
        try:
            if not self._system.isdir(url):
                return None
            listed = self._system.ls(url, detail=False)
        except Exception as error:  # as above
            raise unreadable_object(self._where, error) from error
        if len(listed) > MAX_DIRECTORY_ENTRIES:
            raise CheckpointError(
                f"the folder has more than {MAX_DIRECTORY_ENTRIES} entries",
                where=self._where,
                remedy="name the checkpoint's file",
            )
        return [str(name).rstrip("/").rpartition("/")[2] for name in listed]


class ObjectFile:
    """One object.

    Attributes:
        size: its length in bytes.
        head: nothing, as its size is known without its content.
    """

    head = b""

    def __init__(self, url: str, system: Any, transfer: Transfer) -> None:
        self._url, self._system, self._transfer = url, system, transfer
        version = self._version()
        self.size = int(version[0])
        opened_as(url, shown_place(url), version, self._now)

    def _version(self) -> tuple[Any, ...]:
        try:
            described = self._system.info(self._url)
            return described["size"], *map(described.get, TAGS)
        except Exception as error:  # each store's package has exceptions of its own
            raise unreadable_object(shown_place(self._url), error) from error

    def _now(self) -> Version | None:
        self._system.invalidate_cache()
        try:
            return self._version()
        except CheckpointError as error:
            if isinstance(error.__cause__, FileNotFoundError):
                return None
            raise

    def fetch(self, start: int, stop: int) -> bytes:
        """The bytes from ``start`` up to ``stop``."""
        try:
            content = bytes(self._cat(start, stop))
        except Exception as error:  # as above
            raise unreadable_object(shown_place(self._url), error) from error
        return self._transfer.count(content)

    def _cat(self, start: int, stop: int) -> Any:
        if not getattr(self._system, "async_impl", False):
            return self._system.cat_file(self._url, start=start, end=stop)
        from fsspec.asyn import sync

        cat, seconds = self._system._cat_file, READ_SECONDS + (stop - start) / SLOWEST
        return sync(self._system.loop, cat, self._url, start=start, end=stop, timeout=seconds)


def unreadable_object(where: str, error: Exception) -> CheckpointError:
    """The one line for what a store's package says; caused by the same exception."""
    if isinstance(error, FileNotFoundError):
        return CheckpointError("no such file", where=where, remedy="check the URL")
    if isinstance(error, PermissionError):
        return CheckpointError(
            "the store refuses access", where=where, remedy="log in to it, or check the URL"
        )
    if isinstance(error, TimeoutError):
        return CheckpointError(
            "the store does not answer or sends too slowly", where=where, remedy="try again later"
        )
    said = printable(shown_text(str(error).strip().partition("\n")[0]), 120)
    return CheckpointError(
        f"the store does not give it ({type(error).__name__}{': ' if said else ''}{said})",
        where=where,
        remedy="check the URL, the connection and the credentials",
    )
