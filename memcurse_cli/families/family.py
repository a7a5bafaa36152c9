"""What a family of recurrent layers is: how it is recognised, what it assumes, how it is read."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from memcurse_cli.checkpoints.store import TensorSpec, TensorStore
from memcurse_cli.errors import TensorError, UsageError
from memcurse_cli.families.reading import (
    Matrix,
    direct_part,
    group_by_module,
    named_parts,
    parameter_group,
    read_matrix,
    read_pairs,
    read_real,
    read_vector,
    require_size,
    shared_module,
    shown_shape,
    split_name,
    stored_parts,
)
from memcurse_cli.families.recurrence import (
    Complexes,
    Floats,
    ParameterGroup,
    ProjectionGroup,
    Recurrence,
)


@dataclass(frozen=True)
class Assumption:
    """Something that checkpoints of a family do not store, with the library's default."""

    key: str  # its name in ``--assume KEY=VALUE``
    default: str
    choices: tuple[str, ...] = ()  # the values that are understood; empty where any number is
    meaning: str = ""  # one line for `memcurse families`
    config_keys: tuple[str, ...] = ()  # a model's configuration's, with dots into nested objects
    # What a file that holds it beside the layer calls it; ``a/b`` is a quotient of two.
    tensors: tuple[str, ...] = ()

    @property
    def roles(self) -> tuple[str, ...]:
        """Every tensor that may hold it, or a part of it."""
        return tuple(part for name in self.tensors for part in name.split("/"))


@dataclass(frozen=True)
class Match:
    """A layer that a family recognised, not yet read."""

    layer: str  # its name: the tensors' common prefix, without the final separator
    tensors: Mapping[str, str]  # the full tensor name of each role that the family reads
    place: int | None = None  # its number in its model, where the recurrence depends on it
    tied: tuple[str, ...] = ()  # the layers that have the same tensors under their own names
    beside: Mapping[str, str] = field(default_factory=dict)  # unexplained in its module, by role

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
    """The user's choices that bear on reading a layer."""

    device: str = "auto"  # or ``cpu``, ``cuda``, ``cuda:i``, for eigendecompositions
    assume: Mapping[str, str] = field(default_factory=dict)  # given with ``--assume``, by key
    spectra: bool = False  # whether to read the hidden weights of gated layers for their spectra
    gates: bool = False  # whether to read what drives input-dependent gates

    def choose(self, assumption: Assumption) -> tuple[str, bool]:
        """The value to use for an assumption, and whether the user gave it."""
        if assumption.key in self.assume:
            return self.assume[assumption.key], True
        return assumption.default, False


class Family(Protocol):
    """One family of layers, of which the registry has one instance.

    Attributes:
        name: in ``--family`` and in the report, e.g. ``s4d``.
        title: its name in words, e.g. ``S4D (diagonal S4)``.
        recognised_by: which names and shapes it is recognised by, in one line.
        equation: λ as a function of the stored tensors, in one line.
        source: the library and paper that the equation was read from.
        assumptions: what its checkpoints do not store.
    """

    name: str
    title: str
    recognised_by: str
    equation: str
    source: str
    assumptions: tuple[Assumption, ...] = ()

    def find(self, tensors: Mapping[str, TensorSpec]) -> list[Match]:
        """The layers of this family among the tensors, by names and shapes alone."""

    def read(self, store: TensorStore, match: Match, options: ReadOptions) -> Recurrence:
        """Read the few tensors that the recurrence needs.

        Raises:
            TensorError: NaN or inf in one of them, or shapes that do not fit together.
            UsageError: an assumed number is out of its range.
        """


Found = tuple[Family, Match]


@dataclass
class Assumed:
    """The user's choices, and a sentence for each thing that the tensors left open.

    The checkpoint's configuration may settle what the user did not, and the layer may hold what is
    assumed as a scalar of its own.
    """

    options: ReadOptions
    store: TensorStore
    match: Match
    sentences: list[str] = field(default_factory=list)

    def choose(
        self,
        assumption: Assumption,
        *,
        default: str | None = None,
        configured: str | None = None,
        silent: bool = False,
    ) -> str:
        """The value to use: the user's, else the layer's own, the configuration's, the default.

        ``default`` and ``configured`` are this layer's, where the family's and `config_keys` do
        not tell them; ``silent`` says that the library's code leaves no choice. Raises a
        TensorError where the layer holds several values, or one of two that tell it.
        """
        value, given = self.options.choose(assumption)
        configured = configured or configured_choice(self.store.config, assumption)
        stored = None if given else self._stored(assumption)
        if given:
            origin = "as given"
        elif stored is not None:
            value, origin = f"{stored[0]:g}", f"stored as {stored[1]}"
        elif configured is not None:
            value, origin = configured, "from config.json"
        else:
            value, origin = default or value, "the library's default"
        if given or not silent:
            self.sentences.append(f"{assumption.key}={value} ({origin}): {assumption.meaning}")
        return value if stored is None else repr(stored[0])

    def positive(
        self, assumption: Assumption, *, most: float = math.inf, default: str | None = None
    ) -> float:
        """As `choose`, a finite number in (0, most]; else the error of the user or of the layer."""
        value = float(self.choose(assumption, default=default))
        if 0 < value <= most and math.isfinite(value):
            return value
        fault = "not positive" if math.isinf(most) else f"outside (0, {most:g}]"
        what, remedy = f"{assumption.key}={value:g} is {fault}", f"give {assumption.meaning}"
        if self.options.choose(assumption)[1]:
            raise UsageError(what, where="--assume", remedy=remedy)
        raise TensorError(what, where=self.match.layer, remedy=f"{remedy}, with --assume")

    def number(
        self,
        assumption: Assumption,
        fits: Callable[[float], bool],
        remedy: str,
        *,
        what: str = "a positive number",
        silent: bool = True,
    ) -> float:
        """As `choose`, a number that fits, or a UsageError."""
        text = self.choose(assumption, silent=silent)
        if fits(float(text)):
            return float(text)
        where = f"--assume {assumption.key}"
        raise UsageError(f"{text[:40]} is not {what}", where=where, remedy=remedy)

    def _stored(self, assumption: Assumption) -> tuple[float, str] | None:
        """The value that the layer holds, and the names of its tensors."""
        held = self.match.tensors
        for name in assumption.tensors:
            roles = name.split("/")
            if held.keys() >= set(roles):
                first, *rest = (self._scalar(held[role], assumption) for role in roles)
                value = first if not rest else first / rest[0] if rest[0] else math.inf
                return value, "/".join(held[role] for role in roles)
        for role in assumption.roles:
            if role in held:
                what = f"it does not tell {assumption.key} without its other part"
                remedy = f"give {assumption.meaning}, with --assume {assumption.key}="
                raise TensorError(what, where=held[role], remedy=remedy)
        return None

    def _scalar(self, tensor: str, assumption: Assumption) -> float:
        shape = self.store.tensors[tensor].shape
        if math.prod(shape) != 1:
            what = f"its shape {shown_shape(shape)} does not fit, one number is needed"
            remedy = f"give one for the whole layer with --assume {assumption.key}="
            raise TensorError(what, where=tensor, remedy=remedy)
        return float(read_real(self.store, tensor, shape).item())


def setting(config: Mapping[str, Any], key: str) -> Any:
    """The value under a key, whose parts dots join; None where there is none.

    A model that sees and hears keeps the configuration of its language model in ``text_config``.
    """
    for root in (config, config.get("text_config")):
        value: Any = root
        for part in key.split("."):
            value = value.get(part) if isinstance(value, Mapping) else None
        if value is not None:
            return value
    return None


def configured_choice(config: Mapping[str, Any], assumption: Assumption) -> str | None:
    """What a configuration says of an assumption, where that is a value that it understands."""
    for key in assumption.config_keys:
        value = setting(config, key)
        if isinstance(value, bool):
            text = str(value).lower()
        elif isinstance(value, int) or (isinstance(value, float) and math.isfinite(value)):
            text = f"{value:.17g}" if isinstance(value, float) else str(value)[:40]
        else:
            continue
        if text in assumption.choices or (not assumption.choices and not isinstance(value, bool)):
            return text
    return None


NUMBERED = re.compile(r"(?P<model>.*?)(?:[./,])?layers[./,](?P<index>\d{1,6})(?:[./,]|$)")
"""A layer of a model that numbers them."""

Shapes = Mapping[str, tuple[int, ...]]
"""The shape of each role's tensor."""


class Layout(NamedTuple):
    """The tensors that tell a layer."""

    required: tuple[str | tuple[str, ...], ...]  # roles, or several of which it must have one
    optional: tuple[str, ...] = ()  # those that are kept beside them
    without: tuple[str, ...] = ()  # those of another family, which it must not have
    fits: Callable[[Shapes], bool | int] | None = None  # what the shapes must fulfil
    called: Mapping[str, str] = {}  # the library's names of roles that it calls otherwise
    numbered: bool = False  # the layer's number in its model is kept, as `Match.place`

    def find(self, tensors: Mapping[str, TensorSpec], default: str) -> list[Match]:
        """Every such module; ``default`` names a layer whose tensors have none."""
        choices = [(each,) if isinstance(each, str) else each for each in self.required]
        roles = [role for choice in choices for role in choice]
        by_name = {
            self.called.get(role, role): role for role in (*roles, *self.optional, *self.without)
        }
        matches = []
        for module, named in group_by_module(tensors, by_name).items():
            # In the order of the file, or of the roles where they have names of their own.
            order = by_name if self.called else named
            found = {by_name[last]: named[last] for last in order if last in named}
            if any(found.keys().isdisjoint(choice) for choice in choices):
                continue
            if found.keys().isdisjoint(self.without) and (
                self.fits is None
                or self.fits({role: tensors[name].shape for role, name in found.items()})
            ):
                place = NUMBERED.match(module) if self.numbered else None
                matches.append(Match(module or default, found, place and int(place["index"])))
        return matches


@dataclass
class Layer:
    """A layer that the family of this name recognised, read by its roles."""

    family: str
    store: TensorStore
    match: Match
    options: ReadOptions

    def __post_init__(self) -> None:
        self.names = self.match.tensors
        self.assumed = Assumed(self.options, self.store, self.match)

    def shape(self, role: str) -> tuple[int, ...]:
        """The shape of a role's tensor."""
        return self.store.tensors[self.names[role]].shape

    def real(self, role: str, shape: tuple[int | None, ...]) -> Floats:
        """As `read_real`."""
        return read_real(self.store, self.names[role], shape)

    def vector(self, role: str, size: int | None = None) -> Floats:
        """As `read_vector`."""
        return read_vector(self.store, self.names[role], size)

    def mixing(self, size: int, *, readout: bool = True) -> dict[str, Any]:
        """B, C and what moves them and D in a layer that mixes its inputs, for `recurrence`."""
        store, names = self.store, self.names
        b = read_matrix(store, names, "B", size)
        c = read_matrix(store, names, "C", size) if readout else None
        projections: tuple[ProjectionGroup, ...] = ()
        if b is not None and c is not None:
            projections = (
                *named_parts(store, names, "B", b),
                *named_parts(store, names, "C", c),
                *direct_part(store, names.get("D"), len(c), b.shape[1]),
            )
        return {"readin": b, "readout": c, "projections": projections}

    def pairs(self, role: str, shape: tuple[int | None, ...], *, paired: bool = True) -> Complexes:
        """As `read_pairs`."""
        return read_pairs(self.store, self.names[role], shape, paired=paired)

    def group(
        self,
        role: str,
        values: Floats,
        slope: NDArray[Any] | float,
        log_gain_slope: NDArray[Any] | None = None,
        *,
        name: str = "",
        tensor: str = "",
        **entries: Any,
    ) -> ParameterGroup:
        """As `parameter_group`, of a role's tensor or of another."""
        tensor = tensor or self.names[role]
        dtype = self.store.tensors[tensor].dtype
        return parameter_group(
            name or role, tensor, values, dtype, slope, log_gain_slope, **entries
        )

    def parts(
        self, role: str, matrix: Matrix, shape: tuple[int, ...], **form: Any
    ) -> tuple[ProjectionGroup, ...]:
        """As `stored_parts`."""
        return stored_parts(self.store, self.names[role], matrix, shape, **form)

    def recurrence(
        self,
        log_eigenvalues: NDArray[Any],
        parameters: Sequence[ParameterGroup],
        *,
        log_gain: NDArray[Any] | float = 0.0,
        channels: int | None = None,
        tensors: Sequence[str] | None = None,
        also: Sequence[str] = (),
        **fields: Any,
    ) -> Recurrence:
        """The layer of these eigenvalues, in any shape, to which log γ broadcasts.

        ``channels`` single-input ones have equal parts of them and, unless told, a B of ones,
        ``tensors`` were read if not all of the match, ``also`` is assumed beside what was asked.
        """
        size = log_eigenvalues.size
        if channels is not None:
            fields["channel"] = np.repeat(np.arange(channels), size // channels)
            fields.setdefault("readin", np.ones((size, 1), dtype=np.complex128))
        log_gain = np.broadcast_to(log_gain, log_eigenvalues.shape)
        return Recurrence(
            name=self.match.layer,
            family=self.family,
            tensors=tuple(self.names.values() if tensors is None else tensors),
            log_eigenvalues=log_eigenvalues.ravel().astype(np.complex128),
            log_gain=log_gain.ravel().astype(np.complex128),
            parameters=tuple(parameters),
            assumptions=(*self.assumed.sentences, *also),
            **fields,
        )


_MEMBER = re.compile(r"\[(\d+)\]$")
# A header that claims more is not believed.
_MOST_MEMBERS = 4096


def split_stack(
    match: Match, tensors: Mapping[str, TensorSpec], axes: Mapping[str, int]
) -> list[Match]:
    """The layers of a match: one, or each of those that a leading axis stacks.

    `jax.vmap` and `nn.scan` put an axis before all others of every tensor: every one must have it,
    at one size. ``axes`` tells how many a single layer has, for the roles that are looked at.
    """
    shapes = {role: tensors[match.tensors[role]].shape for role in axes if role in match.tensors}
    sizes = {shape[0] if len(shape) == axes[role] + 1 else None for role, shape in shapes.items()}
    size = sizes.pop() if len(sizes) == 1 else None
    if size is None or not 0 < size <= _MOST_MEMBERS:
        return [match]
    return [replace(match, layer=f"{match.layer}[{index}]") for index in range(size)]


def member_of(store: TensorStore, match: Match, axes: Mapping[str, int]) -> TensorStore:
    """The checkpoint as one layer of `split_stack` has it; itself where nothing is stacked."""
    found = _MEMBER.search(match.layer)
    role = next((role for role in axes if role in match.tensors), None)
    if found is None or role is None:
        return store
    first = store.tensors[match.tensors[role]].shape
    if len(first) != axes[role] + 1:
        return store
    direct = (split_name(match.tensors[role])[0], "D")  # which is stacked with what the layer reads
    beside = {name for name in store.tensors if split_name(name) == direct}
    own = beside.union(match.tensors.values())
    stacked = {name for name in own if store.tensors[name].shape[:1] == first[:1]}
    return cast(TensorStore, _Member(store, stacked, int(found[1])))


class _Member:
    """A `TensorStore` with one index of the leading axis of some tensors; all else as stored."""

    def __init__(self, store: TensorStore, stacked: Collection[str], index: int) -> None:
        self._store, self._stacked, self._index = store, stacked, index
        self.tensors = dict(store.tensors)
        for name in stacked:
            spec = store.tensors[name]
            size, *shape = spec.shape
            held = spec.bytes // max(int(size), 1)
            self.tensors[name] = replace(spec, shape=tuple(shape), bytes=held)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def read(self, name: str) -> NDArray[Any]:
        # One layer is read through the whole stack.
        require_size(self._store, name)
        values = self._store.read(name)
        return np.ascontiguousarray(values[self._index]) if name in self._stacked else values


class LayoutFamily(Family):
    """A `Family` that is known by its layouts; a tensor belongs to the first that has it."""

    layouts: tuple[Any, ...] = ()  # each a `Layout`, or what finds as it does
    layer_type: type[Layer] = Layer
    axes: Mapping[str, int] = {}  # of a single layer's tensors, where they may be stacked

    def find(self, tensors: Mapping[str, TensorSpec]) -> list[Match]:
        """As `Family.find`, or each of those that are stacked."""
        found: list[Match] = []
        for layout in self.layouts:
            claimed = {name for match in found for name in match.tensors.values()}
            matches = layout.find(tensors, self.name)
            found += [each for each in matches if claimed.isdisjoint(each.tensors.values())]
        kept = (self._kept(match, tensors) for match in found)
        return [each for match in kept for each in split_stack(match, tensors, self.axes)]

    def read(self, store: TensorStore, match: Match, options: ReadOptions) -> Recurrence:
        """As `Family.read`."""
        member = member_of(store, match, self.axes)
        return self._recurrence(self.layer_type(self.name, member, match, options))

    def _kept(self, match: Match, _: Mapping[str, TensorSpec]) -> Match:
        """The match with the tensors that the layer reads."""
        return match

    def _recurrence(self, layer: Any) -> Recurrence:
        raise NotImplementedError
