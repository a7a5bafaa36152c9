"""The tensor store that every format returns: specs at once, elements on demand."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from memcurse_cli.checkpoints.rewrites.adapters import unwrapped
from memcurse_cli.checkpoints.rewrites.aliases import aliases_of
from memcurse_cli.checkpoints.rewrites.reparametrized import reparametrized
from memcurse_cli.checkpoints.store import TensorSpec
from memcurse_cli.checkpoints.untrusted.names import MAX_NAME_LENGTH, printable
from memcurse_cli.errors import CheckpointError

OUTPUT = ":0"
MAX_METADATA_LENGTH = 1_000_000
MAX_ELEMENTS = 2**63 // 16


@dataclass(frozen=True)
class LazyTensor:
    """A spec and the function that reads its elements as float64 or complex128.

    Attributes:
        identity: what the entries of one stored tensor have in common, and no others; None where
            no other name can stand for it.
    """

    spec: TensorSpec
    load: Callable[[], NDArray[Any]]
    identity: Hashable | None = None


class Closable(Protocol):
    """Something that a store holds open."""

    def close(self) -> None:
        """Release it."""


@dataclass
class Transfer:
    """What has been fetched for one remote checkpoint, all its files together.

    Attributes:
        size: the bytes that servers sent as content.
        requests: how often they sent some.
    """

    size: int = 0
    requests: int = 0

    def count(self, content: bytes) -> bytes:
        """Count one answer, and return it."""
        self.size += len(content)
        self.requests += 1
        return content


class LazyStore:
    """A `TensorStore` made of `LazyTensor` entries.

    Names, metadata and notes are made printable here, once for every format.

    Attributes:
        stored: the tensors as they stand in the file, each once, before those that are a weight's
            parts became the weight.
        aliases: for every further name of one of ``tensors`` the name that holds it.
        transfer: what has been fetched, where the checkpoint is remote.
        contents: all that the file holds, optimiser state included: containers with `LazyTensor`
            as leaves, or a mapping from paths to them. None where that is the tensors alone.

    Raises:
        CheckpointError: a name is too long, two names are the same when they are printed, or a
            shape is one that no array can have.
    """

    def __init__(
        self,
        *,
        path: str,
        format: str,
        bytes: int,
        tensors: Mapping[str, LazyTensor],
        metadata: Mapping[str, str] | None = None,
        notes: Iterable[str] = (),
        resources: Iterable[Closable] = (),
        contents: object = None,
    ) -> None:
        self.path = path
        self.contents = contents
        self.format = format
        self.bytes = bytes
        self.transfer: Transfer | None = None
        self._bytes_read: dict[Hashable, int] = {}
        self.metadata = {
            printable(key): printable(value, MAX_METADATA_LENGTH, keep="\n\t")
            for key, value in (metadata or {}).items()
        }
        self.config: Mapping[str, Any] = {}
        self._resources = tuple(resources)
        self._entries: dict[str, LazyTensor] = {}
        for name, tensor in tensors.items():
            shown = printable(name, MAX_NAME_LENGTH)
            # The output of TensorFlow's variable: rnn/lstm_cell/kernel:0.
            if shown.endswith(OUTPUT) and name.removesuffix(OUTPUT) not in tensors:
                shown = shown.removesuffix(OUTPUT)
            if len(name) > MAX_NAME_LENGTH or shown in self._entries:
                fault = "stands twice in the file"
                if len(name) > MAX_NAME_LENGTH:
                    fault = f"has {len(name)} characters, more than {MAX_NAME_LENGTH}"
                raise CheckpointError(
                    f"the tensor name {printable(name, 60)} {fault}",
                    where=path,
                    remedy="the file is corrupt or hostile: use another copy",
                )
            # NumPy counts the elements of an empty array as if no dimension were zero; those of
            # any other are bounded by the bytes that are stored.
            shape = tensor.spec.shape
            if 0 in shape and math.prod(size for size in shape if size) > MAX_ELEMENTS:
                raise CheckpointError(
                    f"the tensor {printable(name, 60)} has a shape that no array can have",
                    where=path,
                    remedy="the file is corrupt or hostile: use another copy",
                )
            self._entries[shown] = tensor
        again = aliases_of(self._entries)
        self.stored: Mapping[str, TensorSpec] = {
            name: tensor.spec for name, tensor in self._entries.items() if name not in again
        }
        self._entries, adapted = unwrapped(self._entries)
        self._entries, made = reparametrized(self._entries)
        self.tensors: Mapping[str, TensorSpec] = {
            name: tensor.spec for name, tensor in self._entries.items()
        }
        self.aliases: Mapping[str, str] = aliases_of(self._entries)
        self.notes = tuple(printable(note, 500) for note in (*notes, *adapted, *made))

    @property
    def bytes_read(self) -> int:
        """The bytes of the tensors that were read, each counted once; or all that were fetched."""
        return sum(self._bytes_read.values()) if self.transfer is None else self.transfer.size

    def read(self, name: str) -> NDArray[Any]:
        """The tensor as float64, or complex128 where it is stored complex.

        Raises:
            CheckpointError: the file ends early, or the tensor is of a kind that is not read.
            KeyError: no tensor has this name.
        """
        return self.load(self._entries[name], name)

    def load(self, tensor: LazyTensor, name: str) -> NDArray[Any]:
        """An entry that need not be a weight, as those of an optimiser's state.

        Args:
            tensor: the entry.
            name: what to call it in messages.

        Raises:
            CheckpointError: the file ends early, or the tensor is of a kind that is not read.
        """
        try:
            with np.errstate(all="ignore"):  # what is not finite is refused where it is used
                array = tensor.load()
        except CheckpointError as error:
            raise CheckpointError(
                error.what, where=f"{self.path}: {name}", remedy=error.remedy
            ) from error
        except MemoryError as error:
            raise CheckpointError(
                f"its {tensor.spec.bytes} bytes do not fit into memory as float64",
                where=f"{self.path}: {name}",
                remedy="use a machine with more memory",
            ) from error
        # A moment of the optimiser's has the name of its weight.
        key = (name, id(tensor)) if tensor.identity is None else tensor.identity
        self._bytes_read[key] = tensor.spec.bytes
        return array

    def entry(self, name: str) -> LazyTensor:
        """The entry itself, for a store that is made of others."""
        return self._entries[name]

    def close(self) -> None:
        """Release the file."""
        for resource in self._resources:
            resource.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
