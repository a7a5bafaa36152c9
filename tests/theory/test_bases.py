"""The eigenbasis, Stein equations and Schur form, against sums and exact arithmetic."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_allclose
from numpy.typing import NDArray
from theory.matrices import MATRICES, UNSTABLE, eigenbasis, jordan, random, sums, system
from theory.non_normal import CASES, exact_powers, exact_sensitivity, far_from_normal

from memcurse_cli.theory.autocorrelation import WHITE, Autocorrelation
from memcurse_cli.theory.dense import bases as module
from memcurse_cli.theory.dense.bases import (
    DoublingStein,
    are_powers_lost,
    is_undetermined,
    kreiss_bound,
    rounding_of,
    schur_form,
    stein_solver,
    transient_growth,
    uncertainty,
    within_rounding,
)
from memcurse_cli.theory.dense.sensitivity import dense_sensitivity, sensitivity_by_frequencies

Floats = NDArray[np.float64]


@pytest.mark.parametrize("size", [201, 300])
def test_condition_of_a_large_basis_by_lanczos(size: int) -> None:
    assert size > module.DIRECT_NORM
    for matrix in (random(size, 0.9, 3), np.eye(size), np.diag(np.linspace(0, 1, size))):
        basis = eigenbasis(matrix)
        assert basis.condition == pytest.approx(np.linalg.cond(basis.vectors), rel=1e-9)


@pytest.mark.parametrize("name", UNSTABLE)
def test_powers_that_do_not_vanish_have_no_sum(name: str) -> None:
    with pytest.raises(ArithmeticError, match="do not vanish"):
        DoublingStein(UNSTABLE[name])


INPUTS = [
    WHITE,
    Autocorrelation((0.3, 0.7), (0.0, 0.9)),
    Autocorrelation((1.0,), (0.99,)),
    Autocorrelation((0.4, 0.6), (0.8, 1.0), (1.1, 0.0)),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_every_figure_is_that_of_the_stored_matrix(case: tuple[float, int]) -> None:
    matrix, powers = far_from_normal(*case), exact_powers(*case)
    basis = eigenbasis(matrix)
    assert basis.condition > 1e8
    allowed = 4 * uncertainty(matrix)
    assert allowed < 4e-3

    norms = np.linalg.norm(powers, 2, axis=(1, 2))
    growth, step = transient_growth(schur_form(matrix).triangle)
    assert growth == pytest.approx(norms[step], rel=allowed)
    assert 0.98 * norms.max() < growth < norms.max() * (1 + allowed)
    kreiss = kreiss_bound(matrix, None)
    assert norms.max() / (np.e * len(matrix)) < 1.05 * kreiss
    assert kreiss < norms.max() * (1 + allowed)

    source = np.random.default_rng(0).normal(size=(12, 12))
    source = source @ source.T
    forward = np.einsum("kij,jl,kml->im", powers, source, powers, optimize=True)
    adjoint = np.einsum("kji,jl,klm->im", powers, source, powers, optimize=True)
    solver = DoublingStein(matrix)
    assert_allclose(solver.forward(source), forward, atol=allowed * np.abs(forward).max())
    assert_allclose(solver.adjoint(source), adjoint, atol=allowed * np.abs(adjoint).max())

    readin = np.random.default_rng(1).normal(size=(12, 3))
    moment, entries = exact_sensitivity(powers, readin)
    found = dense_sensitivity(system(matrix, readin))
    assert found.reason is None
    assert_allclose(found.second_moment, moment, atol=allowed * moment.max())
    assert_allclose(found.per_entry, entries, atol=allowed * entries.max())
    assert found.total == pytest.approx(entries.sum(), rel=allowed)


@pytest.mark.parametrize("autocorrelation", INPUTS, ids=str)
@pytest.mark.parametrize("name", MATRICES)
def test_frequencies_are_the_sum_over_responses(
    name: str, autocorrelation: Autocorrelation
) -> None:
    matrix = MATRICES[name]
    size = len(matrix)
    generator = np.random.default_rng(2)
    readin, readout = generator.normal(size=(size, 2)), generator.normal(size=(3, size))
    moment, entries = sums(matrix, readin, autocorrelation, 700, readout)
    found = sensitivity_by_frequencies(system(matrix, readin, readout, autocorrelation))
    assert_allclose(found[0], moment, rtol=1e-10)
    assert_allclose(found[1], entries, atol=1e-10 * entries.max())


@pytest.mark.parametrize("seed", [0, 2])
def test_what_rounding_decides_is_refused(seed: int) -> None:
    """At 20 the computed eigenvalues are off by their own size; the stored matrix decays."""
    matrix = far_from_normal(20, seed)
    basis = eigenbasis(matrix)
    assert is_undetermined(matrix, basis)
    for horizon in (None, 100):
        found = dense_sensitivity(system(matrix, horizon=horizon))
        assert found.total is None
        assert found.second_moment is None
        assert "rounding it" in str(found.reason)
    with pytest.raises(ArithmeticError):
        stein_solver(matrix, None)
    radius = within_rounding(matrix, basis)
    assert radius > 1


def test_what_is_determined_is_not_refused() -> None:
    for matrix in (jordan(3, 0.6), jordan(3, 1.5), jordan(3, 1.0)):
        assert not is_undetermined(matrix, eigenbasis(matrix))
    assert within_rounding(0.5 * np.eye(3), eigenbasis(0.5 * np.eye(3))) is None
    assert not are_powers_lost(jordan(12, 1.5), 2000)
    with pytest.raises(ArithmeticError, match="not finite"):
        schur_form(np.array([[np.nan]]))


def test_the_radius_within_rounding_bounds_that_of_every_rounded_matrix() -> None:
    matrix = jordan(8, 0.6)
    allowed = rounding_of(matrix)
    bound = within_rounding(matrix, eigenbasis(matrix))
    # The corner moves the eigenvalues of a Jordan block the furthest: by its eighth root.
    matrix[-1, 0] = allowed
    reached = np.abs(np.linalg.eigvals(matrix)).max()
    assert reached == pytest.approx(0.6 + allowed ** (1 / 8), rel=1e-2)
    assert reached <= bound < 1.05 * reached
