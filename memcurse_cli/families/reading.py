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
from memcurse_cli.families.recurrence import Complexes, Floats, Integers, ParameterGroup
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
        self._ends: dict[str, list[tuple[int, str]]] = {}
        for position, name in enumerate(tensors):
            self._ends.setdefault(split_name(name)[1], []).append((position, name))
        self._children: dict[str, dict[str, list[tuple[int, str]]]] = {}

    def ending(self, last: str, child: str | None = None) -> list[tuple[int, str]]:
        """Position and name of the tensors of this last part, in modules of a last part if told."""
        if child is None:
            return self._ends.get(last, [])
        # Most tensors are called weight: these are split by their modules when first asked for.
        if last not in self._children:
            children = self._children[last] = {}
            for position, name in self.ending(last):
                module = split_name(split_name(name)[0])[1]
                children.setdefault(module, []).append((position, name))
        return self._children[last].get(child, [])


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
        child = above.rpartition(".")[2] or None
        for at, name in index.ending(last, child):
            module = _ancestor(split_name(name)[0], above)
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


def first_name(names: Mapping[str, str], roles: tuple[str, ...]) -> str | None:
    """The tensor of the first of some roles that a layer has."""
    return next((names[role] for role in roles if role in names), None)


def shape_fits(found: tuple[int, ...], wanted: tuple[int | None, ...]) -> bool:
    """Whether a shape is the one that is wanted, where None stands for any size."""
    return len(found) == len(wanted) and all(
        each in (None, size) for each, size in zip(wanted, found, strict=True)
    )


def other_shape(found: tuple[int, ...], wanted: tuple[int | None, ...]) -> str:
    """What is said of a shape that does not fit."""
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
    """Every name under which `Layer.matrix` finds B or C, or a part of it."""
    return tuple(dict.fromkeys((role, *(name for pair in complex_parts(role) for name in pair))))


def complex_parts(role: str) -> tuple[tuple[str, str], ...]:
    """The names of the real and the imaginary part, in each library's way."""
    suffixes = (("_re", "_im"), ("_real", "_imag"), ("_real", "_img"))
    return tuple((f"{role}{real}", f"{role}{imaginary}") for real, imaginary in suffixes)


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
    slopes = [np.asarray(eigenvalue_derivative, np.complex128)]
    if log_gain_derivative is not None:
        slopes.append(log_gain_derivative.astype(np.complex128))
    if scalar is None:
        scalar = np.arange(values.size).reshape(values.shape)
    if eigenvalue is None:
        moved = np.broadcast(*slopes)
        eigenvalue = np.arange(moved.size).reshape(moved.shape)
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

    The complex logarithm keeps full precision next to the unit circle, as that of |λ| does not.
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


UNTOUCHED = 0.01
"""How far, relatively, weights may be from what an initialiser leaves: rounding, or a few steps."""


def as_initialised(
    hidden: Iterable[Floats], inputs: Iterable[Floats], biases: Iterable[Floats]
) -> bool:
    """Whether the weights of a cell of H units stand as a library's initialiser left them.

    Orthogonal hidden matrices, of each gate or of all in one, ``Σ WᵀW ∝ I`` (Keras, Flax); biases
    that are the same for all units; or all within, and up to, ±1/√H (PyTorch, Equinox). Training
    ends each of these in a few steps.

    Args:
        hidden: (H, P) of each gate, of what it sees of the state.
        inputs: (H, inputs) of each.
        biases: (H,) of each, one for every tensor that has a part of it.
    """
    matrices, offsets = [*hidden], [*biases]
    size = len(matrices[0])
    if size < 2:
        return False
    gram = np.sum([matrix.T @ matrix for matrix in matrices], axis=0)
    scale = float(np.trace(gram)) / len(gram)
    if np.abs(gram - scale * np.eye(len(gram))).max() < UNTOUCHED * scale:
        return True
    if offsets and all(np.ptp(one) == 0 for one in offsets):
        return True
    largest = max(float(np.abs(one).max()) for one in (*matrices, *inputs, *offsets) if one.size)
    return abs(largest * math.sqrt(size) - 1) < UNTOUCHED


Matrix = Literal["B", "C", "D"]
REAL, IMAGINARY = "real", "imaginary"
