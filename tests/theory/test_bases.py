"""The eigenbasis against NumPy's inverse, and Stein equations against the sums that solve them."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.testing import assert_allclose
from numpy.typing import NDArray
from theory.matrices import MATRICES, UNSTABLE, eigenbasis, jordan, random

from memcurse_cli.theory.dense import bases as module
from memcurse_cli.theory.dense.bases import (
    DoublingStein,
    Eigenbasis,
    ModalStein,
)

Floats = NDArray[np.float64]
USABLE = {
    name: matrix
    for name, matrix in {**MATRICES, **UNSTABLE}.items()
    if name not in ("nilpotent", "defective", "unstable jordan")
}


@pytest.fixture(params=USABLE)
def basis(request: pytest.FixtureRequest) -> Eigenbasis:
    return eigenbasis(USABLE[request.param])


def test_rows_are_those_of_the_inverse(basis: Eigenbasis) -> None:
    inverse = np.linalg.inv(basis.vectors)
    scale = np.abs(inverse).max()
    assert_allclose(basis.rows, inverse[basis.half], atol=1e-12 * scale)
    assert_allclose(basis.columns, basis.vectors[:, basis.half])


def test_condition_is_numpys(basis: Eigenbasis) -> None:
    assert basis.condition == pytest.approx(np.linalg.cond(basis.vectors), rel=1e-10)


@pytest.mark.parametrize("size", [201, 300])
def test_condition_of_a_large_basis_by_lanczos(size: int) -> None:
    assert size > module.DIRECT_SIZE
    for matrix in (random(size, 0.9, 3), np.eye(size), np.diag(np.linspace(0, 1, size))):
        basis = eigenbasis(matrix)
        assert basis.condition == pytest.approx(np.linalg.cond(basis.vectors), rel=1e-9)


def test_a_singular_basis_has_an_infinite_condition() -> None:
    basis = Eigenbasis(np.zeros(2, complex), np.ones((2, 2), complex))
    assert basis.condition == math.inf
    for matrix in (jordan(250, 0.5), MATRICES["nilpotent"], MATRICES["defective"]):
        assert eigenbasis(matrix).condition > 1e12


def summed(matrix: Floats, source: Floats) -> Floats:
    total, term = np.zeros_like(source), source
    for _ in range(1500):
        total = total + term
        term = matrix @ term @ matrix.T
    return total


@pytest.mark.parametrize("name", MATRICES)
def test_every_solver_finds_the_sum(name: str) -> None:
    matrix = MATRICES[name]
    source = np.random.default_rng(4).normal(size=matrix.shape)  # not symmetric
    solvers = [DoublingStein(matrix)]
    if name in USABLE:
        solvers.append(ModalStein(eigenbasis(matrix)))
    for solver in solvers:
        for found, transition in ((solver.forward, matrix), (solver.adjoint, matrix.T)):
            wanted = summed(transition, source)
            assert_allclose(found(source), wanted, atol=1e-10 * np.abs(wanted).max())


@pytest.mark.parametrize("name", UNSTABLE)
def test_powers_that_do_not_vanish_have_no_sum(name: str) -> None:
    with pytest.raises(ArithmeticError, match="do not vanish"):
        DoublingStein(UNSTABLE[name])
