"""Modules by the names of their tensors, which are read with every claim checked; shared functions.

What a few bytes of a sparse file claim must not fill the memory: the bounds on sizes stand far
above any model that is known and are checked on shapes, before elements are read.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import itemgetter
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from memcurse_cli.checkpoints.store import TensorSpec, TensorStore
from memcurse_cli.checkpoints.untrusted.names import printable
from memcurse_cli.errors import TensorError
from memcurse_cli.families.recurrence import (
    Complexes,
    Floats,
    Integers,
    ParameterGroup,
    ProjectionGroup,
)
from memcurse_cli.theory.gates.laws import softplus


def split_name(name: str) -> tuple[str, str]:
    """The name of the module and of the tensor in it; ``.``, ``/`` and ``,`` join names."""
    end = max(name.rfind("."), name.rfind("/"), name.rfind(","))
    return (name[:end], name[end + 1 :]) if end >= 0 else ("", name)


def ancestors(name: str) -> Iterator[str]:
    """The modules that something of this name is in, from the innermost, and the root."""
    while name:
        name, _ = split_name(name)
        yield name


def listed(names: Sequence[str], most: int) -> str:
    """The first of some names as they may be shown, and how many more there are."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(printable(name, 80) for name in names[:most]) + more


def shared_module(modules: Iterable[str]) -> str:
    """The innermost module that all of these are or stand in."""
    shared, *others = modules
    for module in others:
        while shared and not re.match(rf"{re.escape(shared)}(?:[./,]|\Z)", module):
            shared = split_name(shared)[0]
    return shared


class IndexedTensors(dict[str, TensorSpec]):
    """The tensors of a checkpoint, and where each last part of a name stands among them.

    Every family looks for its own few roles: what it asks for is found without another walk over
    all names, of which a checkpoint may have 10⁵. It must not change once it is made.
    """

    def __init__(self, tensors: Mapping[str, TensorSpec]) -> None:
        super().__init__(tensors)
        self._names = tuple(tensors)
        self._ends: dict[str, list[int]] = {}
        for position, name in enumerate(self._names):
            self._ends.setdefault(split_name(name)[1], []).append(position)
        self._children: dict[str, dict[str, list[int]]] = {}

    def ending(self, last: str) -> list[tuple[int, str]]:
        """Position and name of the tensors with this last part."""
        return [(position, self._names[position]) for position in self._ends.get(last, ())]

    def under(self, child: str, last: str) -> list[tuple[int, str]]:
        """Position and name of the tensors with this last part in a module of this last part."""
        # Most tensors are called weight: these are split by their modules when first asked for.
        children = self._children.get(last)
        if children is None:
            children = self._children[last] = {}
            for position, name in self.ending(last):
                module = split_name(split_name(name)[0])[1]
                children.setdefault(module, []).append(position)
        return [(position, self._names[position]) for position in children.get(child, ())]


def group_by_module(
    tensors: Mapping[str, TensorSpec], roles: Iterable[str]
) -> dict[str, dict[str, str]]:
    """For every module that holds a tensor named after a role: the full name of each role.

    Roles with a dot (``in_proj.weight``) are names of tensors in a child module. Modules come in
    the order of the file, and so do the roles of each.
    """
    index = tensors if isinstance(tensors, IndexedTensors) else IndexedTensors(tensors)
    found: list[tuple[int, str, str, str]] = []
    for role in sorted(dict.fromkeys(roles), key=lambda role: "." in role):
        above, _, last = role.rpartition(".")
        if not above:
            found += [(at, split_name(name)[0], role, name) for at, name in index.ending(last)]
            continue
        rest, _, child = above.rpartition(".")
        for at, name in index.under(child, last):
            module = _ancestor(split_name(split_name(name)[0])[0], rest)
            if module is not None:
                found.append((at, module, role, name))
    modules: dict[str, dict[str, str]] = {}
    for _, module, role, name in sorted(found, key=itemgetter(0)):
        modules.setdefault(module, {})[role] = name
    return modules


def _ancestor(module: str, parts: str) -> str | None:
    """The module without the parts that its name must end with; None where it does not."""
    while parts:
        parts, _, part = parts.rpartition(".")
        module, last = split_name(module)
        if last != part:
            return None
    return module


LARGEST_DECAY = 700.0
"""-log|λ| is cut here: e⁻⁷⁰⁰ is still a normal double, and λ = 0 has no logarithm."""

LARGEST_VALUE = 1e75
"""Beyond it products of a few values overflow; the largest float32 is 3e38."""

LARGEST_LAYER = 2**23
"""Eigenvalues of a layer, or elements of a tensor that holds some for each of them.

A report takes 2.6 GB and 36 s at the bound. The largest Mamba has 262 144.
"""

LARGEST_ORDER = 8192
"""Hidden units of a dense layer, decomposed in 12 minutes and 7 GB at the bound."""

LARGEST_MATRIX = 2**28
"""Elements of any other tensor that is read whole: 2 GB in double precision."""

_EIGHT_BITS = ("int8", "uint8")
# What tensors are called that hold one scalar for each eigenvalue, as channels by states.
_SCALARS = ("a", "alpha", "delta", "nu", "theta", "gamma", "lambda", "log", "inv", "dt", "poles")
_MOST_STATES = 64


def require_size(store: TensorStore, tensor: str) -> None:
    """Raise a TensorError where a tensor is larger than any of a layer within the bounds."""
    shape = store.tensors[tensor].shape
    elements = math.prod(shape)
    if elements <= LARGEST_LAYER:
        return
    if _holds_scalars(tensor, shape):
        raise _too_many(elements, "elements", LARGEST_LAYER, "one for each eigenvalue", tensor)
    if len(shape) == 2 and shape[0] == shape[1]:
        require_order(shape[0], tensor)
    if elements > LARGEST_MATRIX:
        raise _too_many(elements, "elements", LARGEST_MATRIX, "a matrix", tensor)


def require_order(order: int, tensor: str) -> None:
    """Raise a TensorError where a matrix is too large to be read and decomposed."""
    if order > LARGEST_ORDER:
        what = f"an eigendecomposition of order {order} is above {LARGEST_ORDER} and is not taken"
        raise misfit(what, tensor, _TOO_LARGE)


def require_eigenvalues(count: int, where: str) -> None:
    """Raise a TensorError where more than `LARGEST_LAYER` would be made from fewer scalars."""
    if count > LARGEST_LAYER:
        raise _too_many(count, "eigenvalues", LARGEST_LAYER, "a layer", where)


def _holds_scalars(tensor: str, shape: tuple[int, ...]) -> bool:
    """Whether a large tensor is a table of scalars rather than a matrix."""
    if len(shape) < 2 or min(shape[-2:]) <= _MOST_STATES:
        return True
    last = split_name(tensor)[1].lower()
    dense = last == "a" and shape[-1] == shape[-2]
    return not dense and any(part in _SCALARS for part in last.split("_"))


_TOO_LARGE = "no known model is as large: check that the checkpoint is what it should be"


def _too_many(count: int, things: str, limit: int, whole: str, where: str) -> TensorError:
    what = f"its {count} {things} are more than the {limit} of {whole} that is read"
    return misfit(what, where, _TOO_LARGE)


def misfit(what: str, tensor: str, remedy: str = "") -> TensorError:
    """The error of a tensor that is not what its layer needs."""
    remedy = remedy or "name the right family with --family, or export the layer again"
    return TensorError(what, where=tensor, remedy=remedy)


def diverged(what: str, tensor: str) -> TensorError:
    """The error of values that no later step mends."""
    return misfit(what, tensor, "the run had diverged: use an earlier checkpoint")


def read_finite(store: TensorStore, tensor: str) -> NDArray[Any]:
    """The tensor as float64 or complex128.

    Raises TensorError: it is empty or larger than any that is read, or holds NaN, inf or a value
    beyond `LARGEST_VALUE`, or integers of eight bits without their scale.
    """
    if 0 in store.tensors[tensor].shape:
        raise misfit("the tensor is empty", tensor, "use another checkpoint")
    require_size(store, tensor)
    values = store.read(tensor)
    if not np.isfinite(values).all():
        counts = ((np.isnan(values).sum(), "NaN"), (np.isinf(values).sum(), "inf"))
        shown = " and ".join(f"{count} {name}" for count, name in counts if count)
        raise diverged(f"{shown} of its {values.size} values", tensor)
    if np.abs(values).max() > LARGEST_VALUE:
        raise diverged(f"it holds values beyond {LARGEST_VALUE:g}", tensor)
    # A store scales what it knows to be quantised; 0 and ±1 may be what someone wrote by hand.
    eight_bits = store.tensors[tensor].dtype in _EIGHT_BITS and np.abs(values).max() > 1
    if eight_bits and (values == np.rint(values)).all():
        what = "it holds whole numbers of eight bits, quantised weights without their scale"
        remedy = "name the checkpoint from before the weights were quantised"
        raise misfit(what, tensor, remedy)
    return values


def read_real(store: TensorStore, tensor: str, shape: tuple[int | None, ...]) -> Floats:
    """As `read_finite`, real and of a given shape, where None stands for any size."""
    require_shape(store, tensor, shape)
    values = read_finite(store, tensor)
    if np.iscomplexobj(values):
        what = "the tensor is complex where this family has a real one"
        remedy = "name the right family with --family"
        raise misfit(what, tensor, remedy)
    return values.astype(np.float64, copy=False)


def first_name(names: Mapping[str, str], roles: tuple[str, ...]) -> str | None:
    """The tensor of the first of some roles that a layer has."""
    return next((names[role] for role in roles if role in names), None)


def read_vector(store: TensorStore, tensor: str, size: int | None = None) -> Floats:
    """As `read_real`, in any shape and flattened: (1, 1, n), (heads, n / heads) and (n)."""
    shape = store.tensors[tensor].shape
    if size is not None and math.prod(shape) != size:
        raise misfit(
            f"its shape {shown_shape(shape)} does not fit a layer that needs {size} values", tensor
        )
    return read_real(store, tensor, shape).ravel()


def require_shape(store: TensorStore, tensor: str, shape: tuple[int | None, ...]) -> None:
    """Raise a TensorError where a tensor has another shape; None stands for any size."""
    found = store.tensors[tensor].shape
    if not _fits(found, shape):
        raise misfit(_other_shape(found, shape), tensor)


def _fits(found: tuple[int, ...], wanted: tuple[int | None, ...]) -> bool:
    return len(found) == len(wanted) and all(
        each in (None, size) for each, size in zip(wanted, found, strict=True)
    )


def _other_shape(found: tuple[int, ...], wanted: tuple[int | None, ...]) -> str:
    shown = ", ".join("any" if size is None else str(size) for size in wanted)
    return f"its shape {shown_shape(found)} does not fit, ({shown}) is needed"


def shown_shape(shape: tuple[int, ...]) -> str:
    """``(8, 3)``."""
    return f"({', '.join(map(str, shape))})"


def require_finite(values: NDArray[Any], tensor: str, what: str) -> None:
    """Raise a TensorError where something computed from a tensor overflows."""
    if not np.isfinite(values).all():
        raise diverged(f"its values are so large that {what} overflows", tensor)


def complex_roles(role: str) -> tuple[str, ...]:
    """Every name under which `read_matrix` finds B or C, or a part of it."""
    return tuple(dict.fromkeys((role, *(name for pair in _complex_parts(role) for name in pair))))


def _complex_parts(role: str) -> tuple[tuple[str, str], ...]:
    """The names of the real and the imaginary part, in each library's way."""
    suffixes = (("_re", "_im"), ("_real", "_imag"), ("_real", "_img"))
    return tuple((f"{role}{real}", f"{role}{imaginary}") for real, imaginary in suffixes)


def read_pairs(
    store: TensorStore, tensor: str, shape: tuple[int | None, ...], *, paired: bool = True
) -> Complexes:
    """A tensor that is stored complex, or real with a last axis of (real, imaginary).

    Its ``shape`` is that of a complex tensor, where None stands for any size; leading axes of size
    one may be missing. Where it is not ``paired``, a real tensor has no imaginary part.
    """
    values = read_finite(store, tensor)
    as_pairs = paired and not np.iscomplexobj(values)
    wanted = (*shape, 2) if as_pairs else shape
    padded = values.reshape((1,) * (len(wanted) - values.ndim) + values.shape)
    if not _fits(padded.shape, wanted):
        what = _other_shape(values.shape, wanted)
        raise misfit(what, tensor, "check that the layer's tensors belong together")
    return (padded[..., 0] + 1j * padded[..., 1] if as_pairs else padded).astype(np.complex128)


def read_matrix(
    store: TensorStore, tensors: Mapping[str, str], role: Literal["B", "C"], size: int
) -> Complexes | None:
    """B (n, inputs) or C (outputs, n) by any of the names that libraries give it, or None.

    ``B_re`` and ``B_im``, ``B_real`` and ``B_imag`` or ``B_img``, a complex ``B`` or a real one. A
    vector is a single input or output; a matrix that fits only the other way is transposed.
    """
    for real, imaginary in _complex_parts(role):
        if real in tensors and imaginary in tensors:
            shape = store.tensors[tensors[real]].shape
            matrix = read_real(store, tensors[real], shape) + 1j * read_real(
                store, tensors[imaginary], shape
            )
            break
    else:
        if role not in tensors:
            return None
        matrix = read_finite(store, tensors[role]).astype(np.complex128)
    shape, states = matrix.shape, 0 if role == "B" else 1  # the axis of the states
    if len(shape) == 1:
        matrix = np.expand_dims(matrix, 1 - states)
    elif len(shape) == 2 and shape[states] != size:
        matrix = matrix.T
    if matrix.ndim != 2 or matrix.shape[states] != size:
        raise misfit(
            f"its shape {shown_shape(shape)} does not fit a layer of {size} states",
            next(tensors[name] for name in complex_roles(role) if name in tensors),
        )
    return matrix


def parameter_group(
    name: str,
    tensor: str,
    values: Floats,
    dtype: str,
    eigenvalue_derivative: NDArray[Any] | float,
    log_gain_derivative: NDArray[Any] | None = None,
    *,
    scalar: Integers | int | None = None,
    eigenvalue: Integers | None = None,
    keeps_stable: bool = False,
) -> ParameterGroup:
    """A `ParameterGroup` of scalars that move one eigenvalue each, or several.

    The values have any shape, and the arrays of entries broadcast. Where it is not said, each
    ``scalar`` moves something in turn, and each ``eigenvalue`` is moved, in the shape of dλ/dω.
    """
    slopes = np.broadcast_arrays(
        *(
            np.asarray(each, dtype=np.complex128)
            for each in (eigenvalue_derivative, log_gain_derivative)
            if each is not None
        )
    )
    if scalar is None:
        scalar = np.arange(values.size).reshape(values.shape)
    if eigenvalue is None:
        eigenvalue = np.arange(slopes[0].size).reshape(slopes[0].shape)
    scalar, eigenvalue, *derivatives = (
        each.ravel() for each in np.broadcast_arrays(scalar, eigenvalue, *slopes)
    )
    return ParameterGroup(
        name=name,
        tensor=tensor,
        size=values.size,
        values=values.ravel(),
        dtype=dtype,
        scalar=scalar,
        eigenvalue=eigenvalue,
        eigenvalue_derivative=derivatives[0],
        log_gain_derivative=None if log_gain_derivative is None else derivatives[1],
        keeps_stable=keeps_stable,
    )


def log_of_eigenvalues(eigenvalues: NDArray[Any]) -> Complexes:
    """log λ, with the angle in (-π, π] and the decay cut at `LARGEST_DECAY`.

    The complex logarithm of the C library keeps full precision next to the unit circle, which
    the logarithm of |λ| does not.
    """
    smallest = np.exp(-LARGEST_DECAY)
    cut = np.where(np.abs(eigenvalues) < smallest, smallest, eigenvalues)
    return np.log(cut.astype(np.complex128))


def eigenvalues_of(log_eigenvalues: Complexes) -> Complexes:
    """λ, which is 0 where the decay was cut."""
    cut = log_eigenvalues.real <= -LARGEST_DECAY
    return np.where(cut, 0.0, np.exp(log_eigenvalues))


def time_constants(log_modulus: Floats) -> Floats:
    """τ = -1/log|λ| in steps; inf where |λ| ≥ 1, and 0 where λ = 0 or the decay was cut."""
    found = np.where(log_modulus < 0, 0.0, np.inf)
    moving = (log_modulus < 0) & (log_modulus > -LARGEST_DECAY)
    with np.errstate(over="ignore"):  # a decay beyond the range of a float has τ = inf
        return np.divide(-1.0, log_modulus, out=found, where=moving)


def log_sigmoid(x: Floats) -> Floats:
    """log σ(x) = -log(1 + e⁻ˣ), exact in both tails, cut at `LARGEST_DECAY`."""
    return np.asarray(-np.minimum(softplus(-x), LARGEST_DECAY))


def sigmoid(x: Floats) -> Floats:
    """σ(x) = 1 / (1 + e⁻ˣ), with 1 - σ(x) = σ(-x)."""
    return np.exp(log_sigmoid(x))


Matrix = Literal["B", "C", "D"]
REAL, IMAGINARY = "real", "imaginary"


def named_parts(
    store: TensorStore, tensors: Mapping[str, str], matrix: Matrix, values: Complexes
) -> tuple[ProjectionGroup, ...]:
    """The parts of B or C as `read_matrix` found it: two tensors, or one complex or real one."""
    for names in _complex_parts(matrix):
        if all(name in tensors for name in names):
            return tuple(
                _projection(store, tensors[name], name, matrix, values.shape, derivative)
                for name, derivative in zip(names, (1, 1j), strict=True)
            )
    return stored_parts(store, tensors[matrix], matrix, values.shape)


def stored_parts(
    store: TensorStore,
    tensor: str,
    matrix: Matrix,
    shape: tuple[int, ...],
    *,
    pairs: bool = False,
    factor: float = 1.0,
    scalar: Integers | None = None,
) -> tuple[ProjectionGroup, ...]:
    """The parts of one tensor of a matrix: real alone, or real and imaginary where it holds both.

    ``pairs`` says that its last axis is (real, imaginary) where it is not complex, ``factor`` is
    the matrix over what is stored, and ``scalar`` (elements,) tells which elements share one.
    """
    parts: dict[str, complex] = {matrix: 1}
    if pairs or store.tensors[tensor].dtype.startswith("complex"):
        parts = {f"{matrix}[{REAL}]": 1, f"{matrix}[{IMAGINARY}]": 1j}
    return tuple(
        _projection(store, tensor, name, matrix, shape, factor * derivative, scalar)
        for name, derivative in parts.items()
    )


def direct_part(
    store: TensorStore, tensor: str | None, outputs: int, inputs: int, *, channels: bool = False
) -> tuple[ProjectionGroup, ...]:
    """A real D; nothing where none fits.

    A vector is a diagonal, or of single-input ``channels`` the only output's row.
    """
    if tensor is None or store.tensors[tensor].dtype.startswith("complex"):
        return ()
    shape = store.tensors[tensor].shape
    vector = shape == (inputs,) and outputs == (1 if channels else inputs)
    if not vector and shape != (outputs, inputs):
        return ()
    return (_projection(store, tensor, "D", "D", (outputs, inputs) if channels else shape),)


def beside(store: TensorStore, tensor: str, role: str, *, above: int = 0) -> str | None:
    """The tensor of a role in the same module, or in one further up, or None."""
    separator = next((mark for mark in "./," if mark in tensor), ".")
    modules = tensor.split(separator)[: -1 - above]
    name = separator.join([*modules, role])
    return name if name in store.tensors else None


def _projection(
    store: TensorStore,
    tensor: str,
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
        tensor=tensor,
        dtype=store.tensors[tensor].dtype,
        matrix=matrix,
        size=int(scalar.max()) + 1,
        scalar=scalar,
        row=row,
        column=column,
        derivative=np.full(row.size, derivative, np.complex128),
    )
