"""What a family of recurrent layers is: how it is recognised, what it assumes, how it is read."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from memcurse_cli.checkpoints.store import TensorSpec, TensorStore
from memcurse_cli.families.module_names import shared_module, split_name
from memcurse_cli.families.recurrence import Recurrence


@dataclass(frozen=True)
class Assumption:
    """Something that checkpoints of a family do not store, with the library's default.

    Attributes:
        key: its name in ``--assume KEY=VALUE``.
        default: what is assumed unless the user says otherwise.
        choices: the values that are understood; empty where any number is.
        meaning: one line for `memcurse families`.
        config_keys: what a model's configuration calls it, with dots into nested objects.
        tensors: what a file that holds it beside the layer calls it; ``a/b`` is a quotient of two.
    """

    key: str
    default: str
    choices: tuple[str, ...]
    meaning: str
    config_keys: tuple[str, ...] = ()
    tensors: tuple[str, ...] = ()

    @property
    def roles(self) -> tuple[str, ...]:
        """Every tensor that may hold it, or a part of it."""
        return tuple(part for name in self.tensors for part in name.split("/"))


@dataclass(frozen=True)
class Match:
    """A layer that a family recognised, not yet read.

    Attributes:
        layer: the layer's name: the tensors' common prefix, without the final separator.
        tensors: the full tensor name of each role that the family reads.
        place: the layer's number in its model, where the recurrence depends on it.
        tied: the layers that have the same tensors under names of their own.
        beside: the unexplained tensors of its module, by their names in it.
    """

    layer: str
    tensors: Mapping[str, str]
    place: int | None = None
    tied: tuple[str, ...] = ()
    beside: Mapping[str, str] = field(default_factory=dict)

    @property
    def prefix(self) -> str:
        """What the names of all tensors in the layer's module begin with; empty at the root."""
        names = self.tensors.values()
        for joint in "./,_":
            if any(name.startswith(f"{self.layer}{joint}") for name in names):
                return f"{self.layer}{joint}"
        # The layer's name says more than its module's, as l0 or a head, or is that of its family.
        module = shared_module(_module_of(role, name) for role, name in self.tensors.items())
        return next(iter(names))[: len(module) + 1] if module else ""


def _module_of(role: str, name: str) -> str:
    """The module in which a tensor has this role, or else the one that holds the tensor."""
    stem = name[: -len(role)]
    if re.split("[./,]", name[len(stem) :]) == role.split(".") and stem[-1:] in ("", *"./,"):
        return stem[:-1]
    return split_name(name)[0]


@dataclass(frozen=True)
class ReadOptions:
    """The user's choices that bear on reading a layer.

    Attributes:
        device: ``auto``, ``cpu``, ``cuda`` or ``cuda:i``, for eigendecompositions.
        assume: the values given with ``--assume``, by key; a family looks up its own keys.
        spectra: whether to read the hidden weights of gated layers for their spectra.
        gates: whether to read what drives input-dependent gates.
    """

    device: str = "auto"
    assume: Mapping[str, str] = field(default_factory=dict)
    spectra: bool = False
    gates: bool = False

    def choose(self, assumption: Assumption) -> tuple[str, bool]:
        """The value to use for an assumption, and whether the user gave it."""
        if assumption.key in self.assume:
            return self.assume[assumption.key], True
        return assumption.default, False


class Family(Protocol):
    """One family of layers; a module in this package has one instance and registers it once."""

    @property
    def name(self) -> str:
        """Its name in ``--family`` and in the report, e.g. ``s4d``."""

    @property
    def title(self) -> str:
        """Its name in words, e.g. ``S4D (diagonal S4)``."""

    @property
    def recognised_by(self) -> str:
        """Which names and shapes it is recognised by, in one line."""

    @property
    def equation(self) -> str:
        """λ as a function of the stored tensors, in one line."""

    @property
    def source(self) -> str:
        """The library and paper that the equation was read from."""

    @property
    def assumptions(self) -> tuple[Assumption, ...]:
        """What its checkpoints do not store."""

    def find(self, tensors: Mapping[str, TensorSpec]) -> list[Match]:
        """The layers of this family among the tensors, by names and shapes alone."""

    def read(self, store: TensorStore, match: Match, options: ReadOptions) -> Recurrence:
        """Read the few tensors that the recurrence needs.

        Raises:
            TensorError: NaN or inf in one of them, or shapes that do not fit together.
        """


Found = tuple[Family, Match]
