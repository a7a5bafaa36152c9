from __future__ import annotations

import math
import tracemalloc

import numpy as np
import pytest
from numpy.testing import assert_allclose
from theory.matrices import MATRICES, UNSTABLE, eigenbasis, jordan, mean_sums, random, sums

from memcurse_cli.theory.autocorrelation.mixture import WHITE, Autocorrelation
from memcurse_cli.theory.dense import horizon as dense_horizon
from memcurse_cli.theory.dense import sensitivity as dense_sensitivity_module
from memcurse_cli.theory.dense.horizon import entries_within_horizon
from memcurse_cli.theory.dense.sensitivity import dense_sensitivity, finite_dense_sensitivity

INPUTS = [
    WHITE,
    *map(Autocorrelation.from_rho, (0.3, 0.997, 1.0)),
    Autocorrelation((0.332, 0.044, 0.2), (0.0, 0.997, 0.3)),
]
DIAGONALISABLE = {
    name: matrix
    for name, matrix in {**MATRICES, **UNSTABLE}.items()
    if name not in ("nilpotent", "defective", "unstable jordan")
}


@pytest.mark.parametrize("horizon", [1, 2, 3, 50])
@pytest.mark.parametrize("name", DIAGONALISABLE)
def test_the_total_in_the_eigenbasis_is_the_sum_of_the_entries(
    name: str, horizon: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    matrix = DIAGONALISABLE[name]
    readin = np.random.default_rng(2).normal(size=(len(matrix), 2))
    for autocorrelation in INPUTS:
        second_moment, entries = sums(matrix, readin, autocorrelation, horizon)
        each = finite_dense_sensitivity(matrix, None, readin, autocorrelation, horizon)
        assert_allclose(each.per_entry, entries, rtol=1e-11, atol=1e-11 * entries.max())
        with monkeypatch.context() as limited:
            limited.setattr(dense_sensitivity_module, "ENTRY_FLOPS", 0)
            total = finite_dense_sensitivity(
                matrix, eigenbasis(matrix), readin, autocorrelation, horizon
            )
        assert total.per_entry is None
        assert "each entry" in str(total.reason)
        assert_allclose(total.second_moment, second_moment, rtol=1e-11)
        assert total.total == pytest.approx(entries.sum(), rel=1e-11)


@pytest.mark.parametrize("name", ["random", "explosive", "singular"])
def test_the_mean_over_every_step_in_the_eigenbasis(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    matrix = DIAGONALISABLE[name]
    readin = np.random.default_rng(2).normal(size=(len(matrix), 2))
    monkeypatch.setattr(dense_sensitivity_module, "ENTRY_FLOPS", 0)
    for autocorrelation in INPUTS:
        second_moment, entries = mean_sums(matrix, readin, autocorrelation, 20)
        total = finite_dense_sensitivity(
            matrix, eigenbasis(matrix), readin, autocorrelation, 20, "every"
        )
        assert_allclose(total.second_moment, second_moment, rtol=1e-11)
        assert total.total == pytest.approx(entries.sum(), rel=1e-11)


@pytest.mark.parametrize("chunk", [1, 60, 500])
def test_chunks_of_any_size_give_the_same(chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    matrix, readin = MATRICES["random"], np.ones((5, 1))
    monkeypatch.setattr(dense_horizon, "CHUNK", chunk)
    found = finite_dense_sensitivity(matrix, None, readin, INPUTS[-1], 23)
    assert_allclose(found.per_entry, sums(matrix, readin, INPUTS[-1], 23)[1], rtol=1e-12)
    found = finite_dense_sensitivity(matrix, None, readin, INPUTS[-1], 23, "every")
    assert_allclose(found.per_entry, mean_sums(matrix, readin, INPUTS[-1], 23)[1], rtol=1e-12)


def test_an_explosion_is_infinite_in_the_eigenbasis_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dense_sensitivity_module, "ENTRY_FLOPS", 0)
    matrix = random(3, 3.0, 1)
    found = finite_dense_sensitivity(matrix, eigenbasis(matrix), None, WHITE, 1000)
    assert found.total == math.inf
    assert np.isposinf(found.second_moment).all()


def test_memory_does_not_grow_with_the_square_of_the_horizon() -> None:
    """A table over all pairs of times would be 8 × 1500² elements, 144 MB."""
    matrix = random(8, 0.999, 2)
    finite_dense_sensitivity(matrix, None, None, WHITE, 2)
    tracemalloc.start()
    finite_dense_sensitivity(matrix, None, None, WHITE, 1500)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 60 * 2**20


@pytest.mark.parametrize("elements", [1, 300, 10**6])
def test_units_a_few_at_a_time_give_the_same(
    elements: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dense_horizon, "ENTRY_ELEMENTS", elements)
    matrix, readin = MATRICES["random"], np.random.default_rng(2).normal(size=(5, 2))
    for readout in (None, np.random.default_rng(3).normal(size=(7, 5)), np.ones((2, 5))):
        wanted = sums(matrix, readin, INPUTS[-1], 17, readout)
        found = entries_within_horizon(matrix, readin, INPUTS[-1], 17, "last", readout)
        assert_allclose(found[0], wanted[0], rtol=1e-12)
        assert_allclose(found[1], wanted[1], rtol=1e-12)


def test_a_matrix_without_eigenvectors_has_more_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the eigenbasis cannot be used, every entry is the only way to the sum."""
    matrix = jordan(20, 0.5)
    readin = np.ones((20, 1))
    monkeypatch.setattr(dense_sensitivity_module, "ENTRY_FLOPS", 0)
    assert eigenbasis(matrix).condition > 1e8
    found = dense_sensitivity(matrix, eigenbasis(matrix), readin, WHITE, 300)
    assert found.reason is None
    limit = dense_sensitivity(matrix, eigenbasis(matrix), readin)
    assert found.total == pytest.approx(limit.total, rel=1e-9)
