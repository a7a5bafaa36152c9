"""The eigenbasis against NumPy's inverse, and Stein equations against the sums that solve them."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.testing import assert_allclose
from numpy.typing import NDArray
from scipy.linalg import solve_discrete_lyapunov
from theory.matrices import MATRICES, UNSTABLE, eigenbasis, jordan, random

from memcurse_cli.theory.dense import bases as module
from memcurse_cli.theory.dense.bases import (
    DoublingStein,
    Eigenbasis,
    ModalStein,
    PairTables,
    stein_solver,
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


def partner(basis: Eigenbasis, index: int) -> int:
    """Where the conjugate of one of `half` stands among all eigenvalues."""
    conjugate = basis.vectors[:, basis.half[index]].conj()
    distance = np.abs(basis.vectors - conjugate[:, None]).sum(axis=0)
    values = np.abs(np.exp(basis.log_eigenvalues) - np.exp(basis.logs[index].conj()))
    return int(np.argmin(distance + values))


def over_all(basis: Eigenbasis, tables: PairTables) -> np.ndarray:
    """(h, n) T(k, l) for every one of the n modes l."""
    whole = np.zeros((basis.half.size, len(basis.vectors)), complex)
    whole[:, basis.half] = tables.plain
    for index in np.flatnonzero(basis.weight == 2):
        whole[:, partner(basis, index)] = tables.conjugated[:, index]
    return whole


def test_half_of_the_spectrum_stands_for_all_of_it(basis: Eigenbasis) -> None:
    assert basis.weight.sum() == len(basis.vectors)
    values = np.exp(basis.logs)
    trace = (basis.weight * values.real).sum()
    assert trace == pytest.approx(np.exp(basis.log_eigenvalues).sum().real, abs=1e-12)
    assert np.all(values.imag >= -1e-15)


def test_rows_are_those_of_the_inverse(basis: Eigenbasis) -> None:
    inverse = np.linalg.inv(basis.vectors)
    scale = np.abs(inverse).max()
    assert_allclose(basis.rows, inverse[basis.half], atol=1e-12 * scale)
    assert_allclose(basis.columns, basis.vectors[:, basis.half])


def test_products_of_vectors_and_of_rows(basis: Eigenbasis) -> None:
    columns, rows = basis.columns, basis.rows
    found = basis.vector_products()
    assert_allclose(found.plain, columns.T @ columns, atol=1e-13)
    assert_allclose(found.conjugated, columns.T @ columns.conj(), atol=1e-13)
    readin = np.random.default_rng(0).normal(size=(len(columns), 2))
    for given, drive in ((None, np.eye(len(columns))), (readin, readin @ readin.T)):
        found = basis.row_products(given)
        scale = np.abs(rows).max() ** 2
        assert_allclose(found.plain, rows @ drive @ rows.T, atol=1e-12 * scale)
        assert_allclose(found.conjugated, rows @ drive @ rows.conj().T, atol=1e-12 * scale)


def test_sums_over_every_mode(basis: Eigenbasis) -> None:
    """Of tables that obey T(k, l̄) = T(k, l) for a real λ_l."""
    generator = np.random.default_rng(1)
    size = basis.half.size
    plain, conjugated = (
        generator.normal(size=(size, size)) + 1j * generator.normal(size=(size, size))
        for _ in range(2)
    )
    tables = PairTables(np.where(basis.weight == 2, conjugated, plain), plain)
    whole = over_all(basis, tables)
    assert_allclose(basis.combine_vectors(tables), whole @ basis.vectors.T, atol=1e-11)
    inverse = np.linalg.inv(basis.vectors)
    scale = np.abs(inverse).max()
    assert_allclose(basis.combine_rows(tables), whole @ inverse, atol=1e-11 * scale)


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
