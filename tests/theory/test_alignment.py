"""How far a step moves each eigenvalue: against perturbed matrices and every choice of signs."""

from __future__ import annotations

import itertools

import numpy as np

from memcurse_cli.families.recurrence import ParameterGroup
from memcurse_cli.theory.dense.bases import Eigenbasis
from memcurse_cli.theory.sensitivity import dense_shift, diagonal_shift

STEP = 1e-7


def basis_of(matrix: np.ndarray) -> Eigenbasis:
    eigenvalues, vectors = np.linalg.eig(matrix)
    return Eigenbasis(np.log(eigenvalues.astype(complex)), vectors.astype(complex))


def moved(matrix: np.ndarray, basis: Eigenbasis, change: np.ndarray) -> np.ndarray:
    """|dλ| per unit of a change, by central differences of the spectrum."""
    reference = np.exp(basis.logs)

    def nearest(sign: int) -> np.ndarray:
        spectrum = np.linalg.eigvals(matrix + sign * STEP * change)
        return spectrum[np.abs(spectrum[None] - reference[:, None]).argmin(axis=1)]

    return np.abs(nearest(1) - nearest(-1)) / (2 * STEP)


def test_independent_signs_by_every_choice_of_signs() -> None:
    matrix = np.random.default_rng(0).standard_normal((3, 3)) / 2
    basis = basis_of(matrix)
    shifts = [
        moved(matrix, basis, np.array(signs, float).reshape(3, 3))
        for signs in itertools.product((-1, 1), repeat=9)
    ]
    shift = dense_shift(basis)
    root_mean_square = np.sqrt(np.mean(np.square(shifts), axis=0))
    np.testing.assert_allclose(root_mean_square, shift.independent, rtol=1e-6)
    worst = np.max(shifts, axis=0)
    assert np.all(worst <= shift.concerted * (1 + 1e-6))
    real = np.abs(np.exp(basis.logs).imag) < 1e-12
    np.testing.assert_allclose(worst[real], shift.concerted[real], rtol=1e-6)


def test_real_and_imaginary_parts_move_an_eigenvalue_by_root_two_and_by_two() -> None:
    index = np.arange(3)
    groups = [
        ParameterGroup(name, name, np.ones(3), "F64", index, index, np.full(3, derivative))
        for name, derivative in (("re", 1 + 0j), ("im", 1j))
    ]
    shift = diagonal_shift(3, groups)
    np.testing.assert_allclose(shift.independent, np.sqrt(2))
    np.testing.assert_allclose(shift.concerted, 2)
    np.testing.assert_allclose(shift.aligned(0.5), 2**0.75)


def test_a_matrix_without_eigenvectors_has_no_bound() -> None:
    basis = Eigenbasis(np.full(2, np.log(0.5) + 0j), np.array([[1, 1], [0, 0]], complex))
    assert np.all(np.isinf(dense_shift(basis).concerted))
