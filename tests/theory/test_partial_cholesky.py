from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose

from memcurse_cli.theory.linalg import PartialCholesky, partial_cholesky


def gram(order: int, rank: int, seed: int, spread: float = 2.0) -> np.ndarray:
    generator = np.random.default_rng(seed)
    responses = generator.normal(size=(order, rank))
    responses *= generator.lognormal(sigma=spread, size=(order, 1))
    return responses @ responses.T


def of(whole: np.ndarray, **options: float) -> PartialCholesky:
    return partial_cholesky(np.diag(whole), lambda chosen: whole[:, chosen], **options)


@settings(max_examples=60)
@given(
    order=st.integers(1, 40),
    inner=st.integers(1, 50),
    rank=st.integers(1, 45),
    candidates=st.integers(1, 12),
    seed=st.integers(0, 2**32 - 1),
)
def test_what_is_left_is_positive_semidefinite_and_bounds_every_eigenvalue(
    order: int, inner: int, rank: int, candidates: int, seed: int
) -> None:
    whole = gram(order, inner, seed)
    found = of(whole, rank=rank, enough=0.0, candidates=candidates)
    scale = np.trace(whole)
    left = whole - found.factor @ found.factor.T
    assert np.linalg.eigvalsh(left)[0] >= -1e-10 * scale
    assert_allclose(np.diag(left), found.residual, atol=1e-10 * scale)
    assert found.error == pytest.approx(np.trace(left), abs=1e-10 * scale)
    assert len(set(found.pivots.tolist())) == found.factor.shape[1] <= rank
    exact = np.linalg.eigvalsh(whole)
    lower = np.linalg.eigvalsh(found.factor @ found.factor.T)
    assert np.all(lower <= exact + 1e-10 * scale)
    assert np.all(exact <= lower + found.error + 1e-10 * scale)


def test_one_candidate_at_a_time_is_the_pivoted_cholesky_of_lapack() -> None:
    from scipy.linalg.lapack import dpstrf

    whole = gram(30, 40, 0)
    found = of(whole, rank=30, enough=0.0, candidates=1)
    lower, pivots, rank, _ = dpstrf(whole, lower=1)
    assert found.pivots.tolist() == (pivots[:rank] - 1).tolist()
    wanted = np.zeros((30, 30))
    wanted[pivots - 1] = np.tril(lower)
    assert_allclose(found.factor, wanted, atol=1e-9 * np.abs(whole).max() ** 0.5)


def test_a_low_rank_is_found_out() -> None:
    whole = gram(200, 7, 1)
    found = of(whole, rank=100, enough=1e-6 * np.trace(whole))
    assert found.factor.shape[1] <= 8
    assert_allclose(found.factor @ found.factor.T, whole, atol=1e-6 * np.trace(whole))


def test_many_candidates_choose_nearly_as_well_as_one() -> None:
    """Decaying exponentials, the rows of a Hessian of long memories: 40 columns of 300."""
    rates = np.sort(np.random.default_rng(2).uniform(0.001, 0.3, 300))
    whole = 1 / (rates[:, None] + rates[None, :])
    alone = of(whole, rank=6, enough=0.0, candidates=1).error
    together = of(whole, rank=6, enough=0.0, candidates=64).error
    assert together < 5 * alone


def test_nothing_to_factorise() -> None:
    found = of(np.zeros((4, 4)), rank=3)
    assert found.factor.shape == (4, 0)
    assert found.error == 0
