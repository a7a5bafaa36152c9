from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.linalg import block_diag
from theory.matrices import gram

from memcurse_cli.theory.diagonality import DENSE_ORDER, TOP, diagonality_scores


def by_definition(whole: np.ndarray) -> tuple[float, ...]:
    """Zucchet & Orvieto 2024, figure 4, from the whole matrix."""
    values, vectors = np.linalg.eigh(whole)
    top = vectors[:, np.argsort(values)[-TOP:]]
    kept = np.diag(whole) > 0
    roots = np.sqrt(np.diag(whole)[kept])
    scaled = whole[np.ix_(kept, kept)] / np.outer(roots, roots)
    return (
        np.trace(whole),
        np.sum(np.diag(whole) ** 2) / np.sum(whole**2),
        values[-1],
        np.linalg.eigvalsh(scaled)[-1],
        np.mean(1 / np.sum(top**4, axis=0)),
    )


def found(blocks: list[np.ndarray]) -> tuple[float, ...]:
    scores = diagonality_scores(blocks)
    return (
        scores.trace,
        scores.diagonality,
        scores.sharpness,
        scores.adam_residual,
        scores.concentration,
    )


@settings(max_examples=50)
@given(order=st.integers(1, 30), rank=st.integers(1, 40), seed=st.integers(0, 2**32 - 2))
def test_one_matrix(order: int, rank: int, seed: int) -> None:
    whole = gram(order, rank, seed)
    scores = found([whole[None]])
    # The eigenvectors of the null space, or of what is as small as rounding, are not determined.
    least = np.linalg.eigvalsh(whole)[-min(TOP, order)] / scores[2]
    known = 5 if least > 1e-10 else 4
    assert scores[:known] == pytest.approx(by_definition(whole)[:known], rel=1e-6)
    assert 1 / order * (1 - 1e-12) <= scores[1] <= 1 + 1e-12
    assert 1 - 1e-9 <= scores[3] <= order * (1 + 1e-9)
    assert 1 - 1e-9 <= scores[4] <= order * (1 + 1e-9)


def test_blocks_are_the_block_diagonal_matrix() -> None:
    """Of several shapes, in several arrays, many enough that most blocks need no eigenvalues."""
    arrays = [
        np.stack([gram(4, 6, seed) for seed in range(40)]),
        np.stack([gram(7, 9, seed) for seed in range(100, 120)]),
        gram(12, 20, 7)[None],
    ]
    every = [block for array in arrays for block in array]
    whole = block_diag(*every)
    for some in (arrays, arrays[::-1]):
        assert found(some) == pytest.approx(by_definition(whole), rel=1e-9)
        scores = diagonality_scores(some)
        assert scores.order == len(whole)


def test_large_matrices_by_lanczos() -> None:
    """Of a diagonal one every coordinate is an eigenvector; it breaks down where all are equal."""
    order = DENSE_ORDER + 20
    whole = gram(order, 30, 3)
    assert found([whole[None]]) == pytest.approx(by_definition(whole), rel=1e-7)
    equal = found([2 * np.eye(order)[None]])
    assert equal[:4] == pytest.approx((2 * order, 1, 2, 1))
    distinct = found([np.diag(np.arange(1.0, order + 1))[None]])
    assert distinct[2:] == pytest.approx((order, 1, 1), rel=1e-6)


def test_parameters_without_effect_are_left_out() -> None:
    scores = found([np.array([[4, 2, 0], [2, 4, 0], [0, 0, 0.0]])[None]])
    assert scores[2:4] == pytest.approx((6, 1.5))
    assert diagonality_scores([]) is None
    # Zeros, what a cancellation leaves of one, and what has no square in a float.
    for left in (0.0, -1e-20, 1e-170):
        assert diagonality_scores([np.diag([0.0, 0.0, left])[None]]) is None


@pytest.mark.parametrize("value", [np.inf, np.nan, 1e200])
def test_what_leaves_the_range_of_a_float_is_refused(value: float) -> None:
    with np.errstate(over="ignore"), pytest.raises(OverflowError):
        diagonality_scores([np.full((1, 2, 2), value)])


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("order", [24, DENSE_ORDER + 40])
def test_the_spread_of_an_eigenspace_is_that_of_its_projector(order: int, seed: int) -> None:
    """Rounding turns the eigenvectors of a degenerate H, and nothing that is said of them."""
    generator = np.random.default_rng(seed)
    basis = np.linalg.qr(generator.normal(size=(order, order)))[0]
    values = np.r_[np.full(14, 2.0), 1.0, np.full(order - 15, 0.5)]
    whole = (basis * values) @ basis.T
    noise = 1e-12 * generator.normal(size=whole.shape)
    projector = basis[:, :14] @ basis[:, :14].T
    for one in (whole, whole + noise + noise.T):
        wanted = 14 / np.sum(np.diag(projector) ** 2)
        assert found([one[None]])[4] == pytest.approx(wanted, rel=1e-6)
