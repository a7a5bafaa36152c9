"""Threads of eigendecompositions, and partial Cholesky."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from theory.matrices import gram
from threadpoolctl import threadpool_info, threadpool_limits

from memcurse_cli.diagnosis import hessian as hessian_module
from memcurse_cli.diagnosis import inspection
from memcurse_cli.theory import threads
from memcurse_cli.theory.linalg import (
    Factor,
    eigendecompose,
    eigenvalues,
    partial_cholesky,
)


def blas_threads() -> set[int]:
    """What every BLAS of this process uses."""
    return {one["num_threads"] for one in threadpool_info() if one["user_api"] == "blas"}


@pytest.fixture
def two_threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A process whose linear algebra has two threads, and an environment that says nothing."""
    for name in threads.THREAD_SETTINGS:
        monkeypatch.delenv(name, raising=False)
    with threadpool_limits(2, user_api="blas"):
        assert blas_threads() == {2}
        yield


@pytest.mark.usefixtures("two_threads")
def test_small_matrices_get_one_thread_and_large_ones_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "THREADED_ORDER", 10)
    small, large = np.eye(9), np.eye(10)
    with threads.threads_by_order():
        assert blas_threads() == {2}
        for matrix, expected in ((small, 1), (small, 1), (large, 2), (large, 2), (small, 1)):
            eigendecompose(matrix)
            assert blas_threads() == {expected}
        eigenvalues(large)
        assert blas_threads() == {2}
        eigenvalues(np.zeros((20, 9, 9)))
        assert blas_threads() == {1}
    assert blas_threads() == {2}
    assert threads.OPENBLAS not in os.environ
    eigendecompose(small)
    assert blas_threads() == {2}


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("take", ["inspect", "hessian"])
def test_a_dense_layer_is_diagnosed_with_one_thread(
    take: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    module, step = {
        "inspect": (inspection, "diagnose"),
        "hessian": (hessian_module, "diagnose_hessian"),
    }[take]
    original, seen = getattr(module, step), []

    def watched(*given: Any) -> Any:
        seen.append(blas_threads())
        return original(*given)

    monkeypatch.setattr(module, step, watched)
    getattr(inspection, take)({"A": 0.3 * np.eye(4), "B": np.ones((4, 1)), "C": np.ones((1, 4))})
    assert seen == [{1}]
    assert blas_threads() == {2}


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("name", threads.THREAD_SETTINGS)
def test_threads_that_the_user_has_chosen_stay(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "2")
    with threads.threads_by_order():
        eigendecompose(np.eye(3))
        assert blas_threads() == {2}
    assert os.environ[name] == "2"


def of(whole: np.ndarray, **options: float) -> Factor:
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
    factor = found.times(np.eye(len(found.gram)))
    assert_allclose(found.gram, factor.T @ factor, atol=1e-10 * scale)
    left = whole - factor @ factor.T
    assert np.linalg.eigvalsh(left)[0] >= -1e-10 * scale
    assert_allclose(np.diag(left), found.residual, atol=1e-10 * scale)
    assert found.error == pytest.approx(np.trace(left), abs=1e-10 * scale)
    assert factor.shape[1] <= rank
    exact = np.linalg.eigvalsh(whole)
    lower = np.linalg.eigvalsh(factor @ factor.T)
    assert np.all(lower <= exact + 1e-10 * scale)
    assert np.all(exact <= lower + found.error + 1e-10 * scale)
