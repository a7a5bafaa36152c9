"""The tensor store that every format returns: specs at once, elements on demand."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from memcurse_cli.checkpoints.elements import decode
from memcurse_cli.checkpoints.store import TensorSpec
from memcurse_cli.checkpoints.untrusted.names import MAX_NAME_LENGTH, printable
from memcurse_cli.checkpoints.untrusted.ranges import Bytes
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


def elements_at(
    source: Bytes, offset: int, spec: TensorSpec, *, big_endian: bool = False, fortran: bool = False
) -> LazyTensor:
    """A tensor whose elements stand one after another from a byte on."""
    return LazyTensor(
        spec,
        lambda: decode(
            source.read(offset, spec.bytes), spec.dtype, spec.shape, big_endian, fortran
        ),
    )


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
        listed_names: for names that the format's metadata list without storing them, the name that
            they say is stored.

    Raises:
        CheckpointError: a name is too long, two names are the same when they are printed, or a
            shape is one that no array can have.
    """

    def __init__(
        self,
        *,
        path: str,
        bytes: int,
        tensors: Mapping[str, LazyTensor],
        format: str = "",
        metadata: Mapping[str, str] | None = None,
        notes: Iterable[str] = (),
        resources: Iterable[Closable] = (),
        contents: object = None,
        listed_names: Mapping[str, str] | None = None,
    ) -> None:
        self.path = path
        self.format = format
        self.bytes = bytes
        self.contents = contents
        self.transfer: Transfer | None = None
        self.config: Mapping[str, Any] = {}
        self.notes: tuple[str, ...] = ()
        self.metadata = {
            printable(key): printable(value, MAX_METADATA_LENGTH, keep="\n\t")
            for key, value in (metadata or {}).items()
        }
        self.listed_names = dict(listed_names or {})
        self._resources = tuple(resources)
        self._bytes_read: dict[Hashable, int] = {}
        self.replace_entries(tensors, notes)
        self.stored: Mapping[str, TensorSpec] = {
            name: spec for name, spec in self.tensors.items() if name not in self.aliases
        }

    def replace_entries(self, entries: Mapping[str, LazyTensor], notes: Iterable[str] = ()) -> None:
        """Take other entries for what is stored, as a rewrite makes them, and add notes.

        Raises:
            CheckpointError: as the store itself.
        """
        self._entries = self._named(entries)
        self.tensors: Mapping[str, TensorSpec] = {
            name: tensor.spec for name, tensor in self._entries.items()
        }
        self.aliases = aliases_of(self._entries)
        self.notes += tuple(printable(note, 500) for note in notes)

    def _named(self, tensors: Mapping[str, LazyTensor]) -> dict[str, LazyTensor]:
        """The tensors by names that can be printed, where each has one that no other has."""
        entries: dict[str, LazyTensor] = {}
        for name, tensor in tensors.items():
            shown = printable(name, MAX_NAME_LENGTH)
            what, fault = "the tensor name", ""
            # The output of TensorFlow's variable: rnn/lstm_cell/kernel:0.
            if shown.endswith(OUTPUT) and name.removesuffix(OUTPUT) not in tensors:
                shown = shown.removesuffix(OUTPUT)
            # NumPy counts the elements of an empty array as if no dimension were zero; those of
            # any other are bounded by the bytes that are stored.
            shape = tensor.spec.shape
            if len(name) > MAX_NAME_LENGTH:
                fault = f"has {len(name)} characters, more than {MAX_NAME_LENGTH}"
            elif shown in entries:
                fault = "stands twice in the file"
            elif 0 in shape and math.prod(size for size in shape if size) > MAX_ELEMENTS:
                what, fault = "the tensor", "has a shape that no array can have"
            if fault:
                raise CheckpointError(
                    f"{what} {printable(name, 60)} {fault}",
                    where=self.path,
                    remedy="the file is corrupt or hostile: use another copy",
                )
            entries[shown] = tensor
        return entries

    @property
    def entries(self) -> Mapping[str, LazyTensor]:
        """The entries themselves, for a rewrite and for a store that is made of others."""
        return self._entries

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


def aliases_of(entries: Mapping[str, LazyTensor]) -> dict[str, str]:
    """For every further name of a stored tensor the first one, which holds it.

    Args:
        entries: by name, in the order of the file.
    """
    first: dict[Hashable, str] = {}
    found = {}
    for name, entry in entries.items():
        if entry.identity is not None:
            holder = first.setdefault(entry.identity, name)
            if holder != name:
                found[name] = holder
    return found
