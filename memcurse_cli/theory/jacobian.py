"""How a group of real parameters moves the eigenvalues and gains of a diagonal recurrence."""

from __future__ import annotations

from typing import Protocol

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
