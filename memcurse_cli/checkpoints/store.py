"""What every checkpoint format offers: named tensors, described for free and read one by one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Protocol, Self, runtime_checkable

from numpy.typing import NDArray


@dataclass(frozen=True)
class TensorSpec:
    """A stored tensor before it is read.

    Attributes:
        shape: its shape.
        dtype: the stored type by NumPy's name: ``float32``, ``bfloat16``, ``float8_e4m3fn``, …
        bytes: the size of its elements in the file.
    """

    shape: tuple[int, ...]
    dtype: str
    bytes: int


@runtime_checkable
class TensorStore(Protocol):
    """An open checkpoint: a mapping from tensor names to specs, with reads that are counted.

    Opening one reads headers only. Nothing that the file holds is ever executed.
    """

    @property
    def path(self) -> str:
        """The path as the user gave it."""

    @property
    def format(self) -> str:
        """The format's name as `memcurse formats` lists it."""

    @property
    def bytes(self) -> int:
        """The size of the checkpoint on disk, all its shards included."""

    @property
    def bytes_read(self) -> int:
        """How many bytes of elements have been read so far; all that were fetched, if remote."""

    @property
    def metadata(self) -> Mapping[str, str]:
        """String metadata stored beside the tensors; empty where the format has none."""

    @property
    def config(self) -> Mapping[str, Any]:
        """The model's configuration, from a file beside the weights; empty where there is none.

        It is as untrusted as the weights, and its values may have any type that JSON has.
        """

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader should know of how the file was opened, e.g. an EMA copy left out."""

    @property
    def tensors(self) -> Mapping[str, TensorSpec]:
        """Every tensor by its full name, in the file's order."""

    def read(self, name: str) -> NDArray[Any]:
        """The tensor as float64, or complex128 where it is stored complex.

        Raises:
            CheckpointError: the file ends early or the bytes cannot be decoded.
            KeyError: no tensor has this name.
        """

    def close(self) -> None:
        """Release the file."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...
