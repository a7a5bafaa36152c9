"""Both solvers against the sums that define the solutions, and against SciPy."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_allclose
from numpy.typing import NDArray
from scipy.linalg import solve_discrete_lyapunov
from theory.matrices import MATRICES, UNSTABLE, eigenbasis, random

from memcurse_cli.theory.dense.bases import DoublingStein, ModalStein
from memcurse_cli.theory.dense.uncertainty import stein_solver

Floats = NDArray[np.float64]
DIAGONALISABLE = [name for name in MATRICES if name not in ("nilpotent", "defective")]


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
    if name in DIAGONALISABLE:
        solvers.append(ModalStein(eigenbasis(matrix)))
    for solver in solvers:
        for found, transition in ((solver.forward, matrix), (solver.adjoint, matrix.T)):
            wanted = summed(transition, source)
            assert_allclose(found(source), wanted, atol=1e-10 * np.abs(wanted).max())


def test_a_stranger_agrees() -> None:
    matrix = random(24, 0.98, 5)
    source = np.cov(np.random.default_rng(0).normal(size=(24, 40)))
    for basis in (eigenbasis(matrix), None):
        solver = stein_solver(matrix, basis)
        wanted = solve_discrete_lyapunov(matrix, source)
        assert_allclose(solver.forward(source), wanted, rtol=1e-9, atol=1e-9 * wanted.max())
        wanted = solve_discrete_lyapunov(matrix.T, source)
        assert_allclose(solver.adjoint(source), wanted, rtol=1e-9, atol=1e-9 * wanted.max())


@pytest.mark.parametrize("name", UNSTABLE)
def test_powers_that_do_not_vanish_have_no_sum(name: str) -> None:
    with pytest.raises(ArithmeticError, match="do not vanish"):
        DoublingStein(UNSTABLE[name])
