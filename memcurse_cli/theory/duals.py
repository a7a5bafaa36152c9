"""Values with their tangents along named directions: forward-mode differentiation of a cell.

A cell is written once, over these or over plain arrays: `sigmoid`, `tanh`, `relu`, `join`, the
operators, and ``h @ W.T``.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from memcurse_cli.theory.devices import beside
from memcurse_cli.theory.gates.laws import LOGISTIC
from memcurse_cli.theory.linalg import Array, array_namespace

Values = Array  # real or complex
Tangents = Mapping[str, Values]
NONE: Tangents = {}
NO_FACTORS: Mapping[str, tuple[Values, Values]] = {}


def _sum(first: Tangents, second: Tangents) -> Tangents:
    if not second or not first:
        return first or second
    shared = {name: first[name] + second[name] for name in first.keys() & second.keys()}
    return {**first, **second, **shared}


def _times(factor: Any, tangents: Tangents) -> Tangents:
    return {name: factor * tangent for name, tangent in tangents.items()}


class Dual:
    """(…, n) values and, by direction, (…, n) tangents, which broadcast against each other."""

    __array_ufunc__ = None  # so that an array leaves the operators to this class
    __slots__ = ("tangents", "value")

    def __init__(self, value: Values, tangents: Tangents = NONE) -> None:
        self.value, self.tangents = value, tangents

    @property
    def shape(self) -> tuple[int, ...]:
        """That of the values."""
        return tuple(self.value.shape)

    def map(self, function: Callable[[Values], Values]) -> Dual:
        """A linear function of the values, which the tangents go through as they are."""
        moved = {name: function(tangent) for name, tangent in self.tangents.items()}
        return Dual(function(self.value), moved)

    def _beside(self, other: Any) -> Any:
        return beside(other, self.value) if isinstance(other, np.ndarray) else other

    def __getitem__(self, place: Any) -> Dual:
        return self.map(lambda values: values[place])

    def __neg__(self) -> Dual:
        return self.map(operator.neg)

    def __add__(self, other: Any) -> Dual:
        if not isinstance(other, Dual):
            return Dual(self.value + self._beside(other), self.tangents)
        return Dual(self.value + other.value, _sum(self.tangents, other.tangents))

    def __sub__(self, other: Any) -> Dual:
        return self.__add__(-other)

    def __rsub__(self, other: Any) -> Dual:
        return self.__neg__().__add__(other)

    def __mul__(self, other: Any) -> Dual:
        if not isinstance(other, Dual):
            factor = self._beside(other)
            return self.map(lambda values: values * factor)
        moved = _times(other.value, self.tangents)
        return Dual(self.value * other.value, _sum(moved, _times(self.value, other.tangents)))

    def __matmul__(self, matrix: Any) -> Any:
        return NotImplemented if isinstance(matrix, Weight) else self.times(matrix)

    def times(self, matrix: Values) -> Dual:
        """Values and tangents through one product, so that a large matrix is read once."""
        parts, width = [self.value, *self.tangents.values()], matrix.shape[-2]
        rows = [part.reshape(-1, width) for part in parts] if matrix.ndim == 2 else parts
        found = array_namespace(matrix).concat(rows, axis=-2) @ matrix
        start, moved = 0, []
        for part, row in zip(parts, rows, strict=True):
            end = start + row.shape[-2]
            moved.append(found[..., start:end, :].reshape(*part.shape[:-1], matrix.shape[-1]))
            start = end
        return Dual(moved[0], dict(zip(self.tangents, moved[1:], strict=True)))

    def __truediv__(self, other: Dual) -> Dual:
        return self.__mul__(through(other, lambda x: (1 / x, -1 / x**2)))

    __radd__, __rmul__ = __add__, __mul__


class Weight:
    """An (…, m, n) matrix and, by direction, a tangent of low rank for each of S sequences.

    ``Σ_r u_r v_rᵀ / √R`` of (S, R, m) and (S, R, n) random signs has uncorrelated entries of
    variance 1, as a matrix of random signs has, at the cost of a vector.
    """

    __array_ufunc__ = None
    __slots__ = ("matrix", "tangents")

    def __init__(
        self, matrix: Values, tangents: Mapping[str, tuple[Values, Values]] = NO_FACTORS
    ) -> None:
        self.matrix, self.tangents = matrix, tangents

    @property
    def T(self) -> Weight:
        """The transpose."""
        swapped = {name: (right, left) for name, (left, right) in self.tangents.items()}
        return Weight(self.matrix.mT, swapped)

    def __rmatmul__(self, states: Any) -> Dual:
        """(…, S, m) states h → h W."""
        plain = states if isinstance(states, Dual) else Dual(states)
        through = plain.times(self.matrix)
        einsum = array_namespace(plain.value).einsum
        moved = {
            name: einsum("sr,srn->sn", einsum("sm,srm->sr", plain.value, left), right)
            for name, (left, right) in self.tangents.items()
        }
        return Dual(through.value, _sum(through.tangents, moved))


def split(array: Any, count: int) -> list[Any]:
    """Equal parts of the last axis."""
    width = (array.value if isinstance(array, Dual) else array).shape[-1] // count
    return [array[..., place * width : (place + 1) * width] for place in range(count)]


def join(parts: Sequence[Any]) -> Any:
    """States side by side, along the last axis."""
    if not any(isinstance(part, Dual) for part in parts):
        return array_namespace(parts[0]).concat(parts, axis=-1)
    duals = [part if isinstance(part, Dual) else Dual(part) for part in parts]
    names = {name: None for part in duals for name in part.tangents}
    shape = np.broadcast_shapes(
        *(part.value.shape[:-1] for part in duals),
        *(tangent.shape[:-1] for part in duals for tangent in part.tangents.values()),
    )

    xp = array_namespace(duals[0].value)

    def whole(arrays: Sequence[Values]) -> Values:
        spread = [xp.broadcast_to(array, (*shape, array.shape[-1])) for array in arrays]
        return xp.concat(spread, axis=-1)

    moved = {
        name: whole([part.tangents.get(name, xp.zeros_like(part.value)) for part in duals])
        for name in names
    }
    return Dual(xp.concat([part.value for part in duals], axis=-1), moved)


def through(x: Any, value: Callable[[Values], tuple[Values, Values]]) -> Any:
    """f(x), of a function that gives f and f'."""
    if not isinstance(x, Dual):
        return value(x)[0]
    found, slope = value(x.value)
    return Dual(found, _times(slope, x.tangents))


def sigmoid(x: Any) -> Any:
    """1 / (1 + e⁻ˣ)."""
    return through(x, lambda z: LOGISTIC(z)[::2])


def tanh(x: Any) -> Any:
    """(eˣ - e⁻ˣ) / (eˣ + e⁻ˣ)."""

    def both(z: Values) -> tuple[Values, Values]:
        value = array_namespace(z).tanh(z)
        return value, 1 - value**2

    return through(x, both)


def exp(x: Any) -> Any:
    """eˣ."""
    return through(x, lambda z: (array_namespace(z).exp(z),) * 2)


def relu(x: Any) -> Any:
    """max(x, 0), with slope 0 at 0."""
    return through(x, lambda z: (array_namespace(z).clip(z, 0.0, None), 1.0 * (z > 0)))


ACTIVATIONS: Mapping[str, Callable[[Any], Any]] = {
    "linear": lambda u: u,
    "tanh": tanh,
    "relu": relu,
}
"""Those of Elman networks and dense layers."""
