"""What a family of recurrent layers is: how it is recognised, what it assumes, how it is read."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, cast

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from memcurse_cli.checkpoints.store import TensorSpec, TensorStore
from memcurse_cli.errors import TensorError, UsageError
from memcurse_cli.families.reading import (
    IMAGINARY,
    REAL,
    Matrix,
    ancestors,
    complex_parts,
    group_by_module,
    misfit,
    other_shape,
    parameter_group,
    read_finite,
    require_size,
    shape_fits,
    shared_module,
    shown_shape,
    split_name,
)
from memcurse_cli.families.recurrence import (
    Complexes,
    Floats,
    Integers,
    ParameterGroup,
    ProjectionGroup,
    Recurrence,
)


class Assumption(Struct, frozen=True):
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


class Match(Struct, frozen=True):
    """A layer that a family recognised, not yet read."""

    layer: str  # its name: the tensors' common prefix, without the final separator
    tensors: Mapping[str, str]  # the full tensor name of each role that the family reads
    place: int | None = None  # its number in its model, where the recurrence depends on it
    member: int | None = None  # its index along a leading axis that stacks several layers
    tied: tuple[str, ...] = ()  # the layers that have the same tensors under their own names
    beside: Mapping[str, str] = {}  # unexplained in its module, by role

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


class ReadOptions(Struct, frozen=True):
    """The user's choices that bear on reading a layer."""

    assume: Mapping[str, str] = {}  # given with ``--assume``, by key
    spectra: bool = False  # whether to read the hidden weights of gated layers for their spectra
    gates: bool = False  # whether to read what drives input-dependent gates
    simulate: bool = False  # whether to keep how a cell is run


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
    complex: Mapping[str, bool] = {}  # whether the tensor of a role is, where it is there
    numbered: bool = False  # the layer's number in its model is kept, as `Match.place`
    alone: bool = False  # nothing else stands in its module

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
            specs = {role: tensors[name] for role, name in found.items()}
            if (
                found.keys().isdisjoint(self.without)
                and all(
                    specs[role].dtype.startswith("complex") is wanted
                    for role, wanted in self.complex.items()
                    if role in specs
                )
                and (self.fits is None or self.fits({of: specs[of].shape for of in specs}))
            ):
                place = NUMBERED.match(module) if self.numbered else None
                matches.append(Match(module or default, found, place and int(place["index"])))
        return _alone(matches, tensors) if self.alone else matches


def _alone(matches: Sequence[Match], tensors: Iterable[str]) -> list[Match]:
    known = {name for match in matches for name in match.tensors.values()}
    left = {match.prefix[:-1]: match for match in matches}
    for name in tensors if left else ():
        for above in () if name in known else ancestors(name):
            left.pop(above, None)
    return list(left.values())


@dataclass
class Layer:
    """A layer that the family of this name recognised, read by its roles."""

    family: str
    store: TensorStore
    match: Match
    options: ReadOptions
    sentences: list[str] = field(default_factory=list)  # one for each thing that was assumed

    def __post_init__(self) -> None:
        self.names = self.match.tensors

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
        given = self.options.assume.get(assumption.key)
        configured = configured or configured_choice(self.store.config, assumption)
        stored = self._stored(assumption) if given is None else None
        if given is not None:
            value, origin = given, "as given"
        elif stored is not None:
            value, origin = f"{stored[0]:g}", f"stored as {stored[1]}"
        elif configured is not None:
            value, origin = configured, "from config.json"
        else:
            value, origin = default or assumption.default, "the library's default"
        if given is not None or not silent:
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
        if assumption.key in self.options.assume:
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
        for name in assumption.tensors:
            roles = name.split("/")
            if self.names.keys() >= {*roles}:
                first, *rest = (self._scalar(role, assumption) for role in roles)
                value = first if not rest else first / rest[0] if rest[0] else math.inf
                return value, "/".join(self.names[role] for role in roles)
        for role in assumption.roles:
            if role in self.names:
                what = f"it does not tell {assumption.key} without its other part"
                remedy = f"give {assumption.meaning}, with --assume {assumption.key}="
                raise TensorError(what, where=self.names[role], remedy=remedy)
        return None

    def _scalar(self, role: str, assumption: Assumption) -> float:
        shape = self.shape(role)
        if math.prod(shape) != 1:
            what = f"its shape {shown_shape(shape)} does not fit, one number is needed"
            remedy = f"give one for the whole layer with --assume {assumption.key}="
            raise TensorError(what, where=self.names[role], remedy=remedy)
        return float(self.real(role, shape).item())

    def spec(self, role: str) -> TensorSpec:
        """What a role's tensor, or one of this name, is said to be."""
        return self.store.tensors[self.names.get(role, role)]

    def shape(self, role: str) -> tuple[int, ...]:
        """The shape of a role's tensor, or of one of this name."""
        return self.spec(role).shape

    def beside(self, role: str, other: str, *, above: int = 0) -> str | None:
        """The tensor ``other`` in the module that a role is of, or in one further up, or None."""
        tensor, above = self.names[role], above + role.count(".")
        separator = next((mark for mark in "./," if mark in tensor), ".")
        name = separator.join([*tensor.split(separator)[: -1 - above], other])
        return name if name in self.store.tensors else None

    def require(self, role: str, shape: tuple[int | None, ...]) -> None:
        """Raise a TensorError where a tensor has another shape; None stands for any size."""
        found = self.shape(role)
        if not shape_fits(found, shape):
            raise misfit(other_shape(found, shape), self.names.get(role, role))

    def finite(self, role: str) -> NDArray[Any]:
        """As `read_finite`, of a role's tensor or of one of this name."""
        return read_finite(self.store, self.names.get(role, role))

    def real(self, role: str, shape: tuple[int | None, ...]) -> Floats:
        """As `finite`, real and of a given shape, where None stands for any size."""
        self.require(role, shape)
        values = self.finite(role)
        if np.iscomplexobj(values):
            what = "the tensor is complex where this family has a real one"
            remedy = "name the right family with --family"
            raise misfit(what, self.names.get(role, role), remedy)
        return values.astype(np.float64, copy=False)

    def vector(self, role: str, size: int | None = None) -> Floats:
        """As `real`, in any shape and flattened: (1, 1, n), (heads, n / heads) and (n)."""
        shape = self.shape(role)
        if size is not None and math.prod(shape) != size:
            what = f"its shape {shown_shape(shape)} does not fit a layer that needs {size} values"
            raise misfit(what, self.names[role])
        return self.real(role, shape).ravel()

    def pairs(self, role: str, shape: tuple[int | None, ...], *, paired: bool = True) -> Complexes:
        """A tensor that is stored complex, or real with a last axis of (real, imaginary).

        Its ``shape`` is that of a complex tensor, where None stands for any size; leading axes of
        size one may be missing. Where it is not ``paired``, a real tensor has no imaginary part.
        """
        values = self.finite(role)
        as_pairs = paired and not np.iscomplexobj(values)
        wanted = (*shape, 2) if as_pairs else shape
        padded = values.reshape((1,) * (len(wanted) - values.ndim) + values.shape)
        if not shape_fits(padded.shape, wanted):
            remedy = "check that the layer's tensors belong together"
            raise misfit(other_shape(values.shape, wanted), self.names[role], remedy)
        return (padded[..., 0] + 1j * padded[..., 1] if as_pairs else padded).astype(np.complex128)

    def matrix(self, role: Literal["B", "C"], size: int) -> Complexes | None:
        """B (n, inputs) or C (outputs, n) by any of the names that libraries give it, or None.

        Two tensors, a complex one or a real one. A vector is a single input or output; a matrix
        that fits only the other way is transposed.
        """
        names = self._held(role)
        if not names:
            return None
        shape = self.shape(names[0])
        if len(names) == 2:
            real, imaginary = (self.real(name, shape) for name in names)
            matrix = real + 1j * imaginary
        else:
            matrix = self.finite(role).astype(np.complex128)
        states = 0 if role == "B" else 1  # the axis of the states
        if len(shape) == 1:
            matrix = np.expand_dims(matrix, 1 - states)
        elif len(shape) == 2 and shape[states] != size:
            matrix = matrix.T
        if matrix.ndim != 2 or matrix.shape[states] != size:
            what = f"its shape {shown_shape(shape)} does not fit a layer of {size} states"
            raise misfit(what, self.names[names[0]])
        return matrix

    def _held(self, role: str) -> tuple[str, ...]:
        """The names of the real and the imaginary part of B or C, its own, or none."""
        for names in complex_parts(role):
            if self.names.keys() >= {*names}:
                return names
        return (role,) if role in self.names else ()

    def mixing(self, size: int, *, readout: bool = True) -> dict[str, Any]:
        """B, C and what moves them and D in a layer that mixes its inputs, for `recurrence`."""
        b = self.matrix("B", size)
        c = self.matrix("C", size) if readout else None
        projections: tuple[ProjectionGroup, ...] = ()
        if b is not None and c is not None:
            direct = self.direct(self.names.get("D"), len(c), b.shape[1])
            projections = (*self.parts("B", "B", b.shape), *self.parts("C", "C", c.shape), *direct)
        return {"readin": b, "readout": c, "projections": projections}

    def group(
        self,
        role: str,
        values: Floats,
        slope: NDArray[Any] | float,
        log_gain_slope: NDArray[Any] | None = None,
        *,
        name: str = "",
        **entries: Any,
    ) -> ParameterGroup:
        """As `parameter_group`, of a role's tensor or of one of this name."""
        tensor, dtype = self.names.get(role, role), self.spec(role).dtype
        return parameter_group(
            name or role, tensor, values, dtype, slope, log_gain_slope, **entries
        )

    def parts(
        self,
        role: str,
        matrix: Matrix,
        shape: tuple[int, ...],
        *,
        pairs: bool = False,
        factor: float = 1.0,
        scalar: Integers | None = None,
    ) -> tuple[ProjectionGroup, ...]:
        """The parts of a matrix: real alone, or real and imaginary, in one tensor or in two.

        In ``pairs`` the last axis of one that is not complex is (real, imaginary), ``factor`` is
        the matrix over what is stored, ``scalar`` (elements,) tells which elements share one.
        """
        roles = names = self._held(role) or (role,)
        if len(roles) < 2:
            both = pairs or self.spec(role).dtype.startswith("complex")
            names = (f"{matrix}[{REAL}]", f"{matrix}[{IMAGINARY}]") if both else (matrix,)
            roles = (role,) * len(names)
        return tuple(
            self._projection(of, name, matrix, shape, factor * derivative, scalar)
            for of, name, derivative in zip(roles, names, (1, 1j), strict=False)
        )

    def direct(
        self, tensor: str | None, outputs: int, inputs: int, *, channels: bool = False
    ) -> tuple[ProjectionGroup, ...]:
        """A real D, or its diagonal, or of ``channels`` the only output's row; nothing if unfit."""
        if tensor is None or self.spec(tensor).dtype.startswith("complex"):
            return ()
        shape = self.shape(tensor)
        vector = shape == (inputs,) and outputs == (1 if channels else inputs)
        if not vector and shape != (outputs, inputs):
            return ()
        return (self._projection(tensor, "D", "D", (outputs, inputs) if channels else shape),)

    def _projection(
        self,
        role: str,
        name: str,
        matrix: Matrix,
        shape: tuple[int, ...],
        derivative: complex = 1,
        scalar: Integers | None = None,
    ) -> ProjectionGroup:
        """Every element of a matrix, row by row; those of the diagonal where it has one axis."""
        if len(shape) == 1:
            row = column = np.arange(shape[0])
        else:
            row, column = np.indices(shape).reshape(2, -1)
        scalar = np.arange(row.size) if scalar is None else scalar
        return ProjectionGroup(
            name=name,
            tensor=self.names.get(role, role),
            dtype=self.spec(role).dtype,
            matrix=matrix,
            size=int(scalar.max()) + 1,
            scalar=scalar,
            row=row,
            column=column,
            derivative=np.full(row.size, derivative, np.complex128),
        )

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
            assumptions=(*self.sentences, *also),
            **fields,
        )


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
    return [replace(match, layer=f"{match.layer}[{index}]", member=index) for index in range(size)]


class _Member:
    """A `TensorStore` as one layer of `split_stack` has it; what is not stacked is as stored."""

    def __init__(self, store: TensorStore, match: Match, role: str) -> None:
        self._store, self._index = store, match.member
        first = match.tensors[role]
        count = store.tensors[first].shape[0]
        direct = (split_name(first)[0], "D")  # which is stacked with what the layer reads
        beside = {name for name in store.tensors if split_name(name) == direct}
        self._stacked = {
            name: replace(spec, shape=spec.shape[1:], bytes=spec.bytes // count)
            for name in beside.union(match.tensors.values())
            if (spec := store.tensors[name]).shape[:1] == (count,)
        }
        self.tensors = {**store.tensors, **self._stacked}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def read(self, name: str) -> NDArray[Any]:
        # One layer is read through the whole stack.
        require_size(self._store, name)
        values = self._store.read(name)
        return np.ascontiguousarray(values[self._index]) if name in self._stacked else values


class Family:
    """One family of layers, of which the registry has one instance."""

    name: str  # in ``--family`` and in the report, e.g. ``s4d``
    title: str  # in words
    recognised_by: str  # the names and shapes, in one line
    equation: str  # λ as a function of the stored tensors
    source: str  # the library and the paper that it was read from
    assumptions: tuple[Assumption, ...] = ()  # what its checkpoints do not store
    # Each a `Layout`, or what finds as it does; a tensor belongs to the first that has it.
    layouts: tuple[Any, ...] = ()
    layer_type: type[Layer] = Layer
    axes: Mapping[str, int] = {}  # of a single layer's tensors, where they may be stacked

    def find(self, tensors: Mapping[str, TensorSpec]) -> list[Match]:
        """The layers among the tensors, by names and shapes alone; each of those stacked."""
        found: list[Match] = []
        for layout in self.layouts:
            claimed = {name for match in found for name in match.tensors.values()}
            matches = layout.find(tensors, self.name)
            found += [each for each in matches if claimed.isdisjoint(each.tensors.values())]
        return [each for match in found for each in split_stack(match, tensors, self.axes)]

    def read(self, store: TensorStore, match: Match, options: ReadOptions) -> Recurrence:
        """Read the few tensors that the recurrence needs.

        Raises TensorError: NaN, inf or unfit shapes; UsageError: an assumption out of its range.
        """
        if match.member is not None:
            role = next(role for role in self.axes if role in match.tensors)
            store = cast(TensorStore, _Member(store, match, role))
        return self._recurrence(self.layer_type(self.name, store, match, options))

    def _recurrence(self, layer: Any) -> Recurrence:
        raise NotImplementedError


Found = tuple[Family, Match]
