"""The two parts of the sensitivity to a dense matrix, against responses to the parts of dA."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_allclose
from numpy.typing import NDArray
from theory.impulse_hessian import expected
from theory.matrices import MATRICES, UNSTABLE, eigenbasis, random

from memcurse_cli.theory.autocorrelation.mixture import WHITE, Autocorrelation
from memcurse_cli.theory.dense.bases import Eigenbasis
from memcurse_cli.theory.dense.sensitivity import (
    SensitivitySplit,
    dense_sensitivity,
    sensitivity_split,
)
from memcurse_cli.theory.moments.moments import Readout

Floats = NDArray[np.float64]
INPUTS = [
    WHITE,
    Autocorrelation.from_rho(1.0),
    Autocorrelation((0.332, 0.044, 0.2), (0.0, 0.997, 0.3)),
]
NAMES = ["one", "random", "contracting", "negative", "rotation", "symmetric", "explosive"]


def parts(matrix: Floats, basis: Eigenbasis) -> tuple[Floats, Floats]:
    """(n², n, n) dA_λ and dA_P of every unit matrix dA."""
    vectors, inverse = basis.vectors, np.linalg.inv(basis.vectors)
    through, around = [], []
    for place in np.ndindex(matrix.shape):
        unit = np.zeros_like(matrix)
        unit[place] = 1
        modal = inverse @ unit @ vectors
        along = vectors @ np.diag(np.diag(modal)) @ inverse
        assert np.abs(along.imag).max() < 1e-10
        through.append(along.real)
        around.append(unit - along.real)
    return np.array(through), np.array(around)


def responses(matrix: Floats, readin: Floats, changes: Floats, steps: int) -> Floats:
    """(changes, n, inputs, steps) the response of dh to every change of A."""
    h, moved, seen = readin, np.zeros((len(changes), *readin.shape)), []
    for _ in range(steps):
        seen.append(moved)
        moved, h = matrix @ moved + changes @ h, matrix @ h
    return np.stack(seen, axis=-1)


def summed(
    matrix: Floats, readin: Floats, autocorrelation: Autocorrelation, steps: int
) -> SensitivitySplit:
    through, around = parts(matrix, eigenbasis(matrix))
    both = responses(matrix, readin, np.concatenate([through, around]), steps)
    products = expected(both, autocorrelation, None)
    count = len(through)
    return SensitivitySplit(
        float(np.trace(products[:count, :count])),
        float(np.trace(products[count:, count:])),
        2 * float(np.trace(products[:count, count:])),
    )


def split(
    matrix: Floats,
    readin: Floats | None,
    autocorrelation: Autocorrelation,
    horizon: int | None,
    read_at: Readout = "last",
) -> SensitivitySplit:
    basis = eigenbasis(matrix)
    found = dense_sensitivity(matrix, basis, readin, autocorrelation, horizon, read_at)
    assert found.total is not None
    return sensitivity_split(basis, found.total, readin, autocorrelation, horizon, read_at)


@pytest.mark.parametrize("autocorrelation", INPUTS, ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_the_parts_are_sums_over_responses(name: str, autocorrelation: Autocorrelation) -> None:
    matrix = {**MATRICES, **UNSTABLE}[name]
    readin = np.random.default_rng(3).normal(size=(len(matrix), 2))
    wanted = summed(matrix, readin, autocorrelation, 20)
    found = split(matrix, readin, autocorrelation, 20)
    assert_allclose(found, wanted, rtol=1e-9, atol=1e-9 * sum(wanted))
    if name == "explosive":
        return
    wanted = summed(matrix, readin, autocorrelation, 600)
    found = split(matrix, readin, autocorrelation, None)
    assert_allclose(found, wanted, rtol=1e-8, atol=1e-8 * sum(wanted))


def test_the_mean_over_every_step() -> None:
    matrix = MATRICES["random"]
    readin = np.random.default_rng(3).normal(size=(5, 2))
    lasts = [summed(matrix, readin, WHITE, steps) for steps in range(1, 16)]
    found = split(matrix, readin, WHITE, 15, "every")
    assert_allclose(found, np.mean(lasts, axis=0), rtol=1e-10)


def test_a_normal_matrix_has_parts_that_do_not_meet() -> None:
    rotation = np.linalg.qr(np.random.default_rng(0).normal(size=(6, 6)))[0]
    found = split(0.95 * rotation, None, WHITE, None)
    assert abs(found.cross) < 1e-9 * sum(found)


def test_repeated_and_almost_repeated_eigenvalues() -> None:
    """Between close eigenvalues a quotient of differences has no digits left."""
    for gap in (0.0, 1e-12, 1e-8, 1e-6, 1e-4):
        matrix = np.diag([0.8, 0.8 + gap, 0.3])
        readin = np.random.default_rng(3).normal(size=(3, 2))
        wanted = summed(np.diag([0.8, 0.8 + gap, 0.3]), readin, WHITE, 300)
        assert_allclose(split(matrix, readin, WHITE, None), wanted, rtol=1e-8, atol=1e-8)


def test_without_memory_every_direction_counts_the_same() -> None:
    """n of the n² directions are those of eigenvalues; oblique ones if A is not normal."""
    rotation = np.linalg.qr(np.random.default_rng(0).normal(size=(12, 12)))[0]
    found = split(1e-6 * rotation, None, WHITE, None)
    assert_allclose(found, [12, 132, 0], rtol=1e-6, atol=1e-6)
    oblique = split(random(12, 1e-6, 4), None, WHITE, None)
    assert sum(oblique) == pytest.approx(144, rel=1e-6)
    assert oblique.eigenvalues > sum(oblique)
    assert oblique.cross < 0
