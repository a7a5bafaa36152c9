"""How groups of real parameters move a diagonal recurrence and the matrices around it."""

from __future__ import annotations

from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray


class ParameterJacobian(Protocol):
    """A sparse Jacobian by coordinates; `recurrences.ParameterGroup` is one.

    Entry ``e`` says that one unit of scalar ``scalar[e]`` moves eigenvalue ``eigenvalue[e]`` by
    ``eigenvalue_derivative[e]`` = dλ/dω and its gain by ``log_gain_derivative[e]`` = d log γ/dω.
    A tied parameter is one scalar with several entries.
    """

    @property
    def size(self) -> int:
        """The number of scalars."""

    @property
    def scalar(self) -> NDArray[np.intp]:
        """(entries,) index of the scalar."""

    @property
    def eigenvalue(self) -> NDArray[np.intp]:
        """(entries,) index of the eigenvalue."""

    @property
    def eigenvalue_derivative(self) -> NDArray[np.complex128]:
        """(entries,) complex dλ/dω."""

    @property
    def log_gain_derivative(self) -> NDArray[np.complex128] | None:
        """(entries,) complex d log γ/dω; None where γ does not depend on ω."""


class ProjectionJacobian(Protocol):
    """What the scalars of a part of B, C or D move; `recurrences.ProjectionGroup` is one.

    Entry ``e`` says that one unit of scalar ``scalar[e]`` changes the matrix at row ``row[e]`` and
    column ``column[e]`` by ``derivative[e]``: 1 for a real part, i for an imaginary one. B has a
    row per eigenvalue, C a column per eigenvalue; D has rows of outputs and columns of inputs, or
    of channels where each channel has an input of its own.
    """

    @property
    def matrix(self) -> Literal["B", "C", "D"]:
        """Which matrix."""

    @property
    def size(self) -> int:
        """The number of scalars."""

    @property
    def scalar(self) -> NDArray[np.intp]:
        """(entries,) index of the scalar."""

    @property
    def row(self) -> NDArray[np.intp]:
        """(entries,) row of the matrix."""

    @property
    def column(self) -> NDArray[np.intp]:
        """(entries,) column of the matrix."""

    @property
    def derivative(self) -> NDArray[np.complex128]:
        """(entries,) what one unit of the scalar adds there."""
