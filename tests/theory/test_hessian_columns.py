"""Blocks that are not formed against the same blocks formed."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from numpy.testing import assert_allclose
from theory import layers
from theory.impulse_hessian import Layer, group

from memcurse_cli.theory.autocorrelation.mixture import WHITE, Autocorrelation
from memcurse_cli.theory.hessian.diagonality import DiagonalityTally, diagonality_scores
from memcurse_cli.theory.hessian.hessian import LayerHessian
from memcurse_cli.theory.linalg.partial_cholesky import PartialCholesky

MIXTURE = Autocorrelation((0.332, 0.044, 0.2), (0.0, 0.997, 0.3))
EVERY = (*layers.LAYERS, *layers.WHOLE)


def hessian_of(
    layer: Layer, autocorrelation: Autocorrelation = WHITE, horizon: int | None = None
) -> LayerHessian:
    return LayerHessian(
        layer.log_eigenvalues,
        layer.log_gain,
        layer.groups,
        layer.readin,
        layer.readout,
        layer.projections,
        channel=layer.channel,
        conjugate_pairs=layer.conjugate_pairs,
        autocorrelation=autocorrelation,
        horizon=horizon,
    )


def formed(hessian: LayerHessian) -> np.ndarray:
    whole = np.zeros((hessian.size, hessian.size))
    for blocks in hessian.blocks():
        for block, scalars in zip(blocks.hessians, blocks.scalars, strict=True):
            whole[np.ix_(scalars, scalars)] = block
    return whole


def memories(size: int, outputs: int = 1) -> Layer:
    """An LRU of time constants from 10 to 1000 steps."""
    generator = np.random.default_rng(0)
    logs = -np.exp(generator.uniform(-7, -2, size)) + 1j * generator.uniform(0.1, 3, size)
    eigenvalues = np.exp(logs)
    groups = (
        group(eigenvalues * logs.real),
        group(eigenvalues * 1j * logs.imag),
        group(np.zeros(size), np.ones(size)),
    )
    gain = 0.5 * np.log(-np.expm1(2 * logs.real)).astype(complex)
    shape = (size, outputs)
    readin, readout = (
        generator.normal(size=shape) + 1j * generator.normal(size=shape) for _ in range(2)
    )
    return Layer(logs, gain, groups, readin, readout.T)


@pytest.mark.parametrize("horizon", [None, 7])
@pytest.mark.parametrize("autocorrelation", [WHITE, MIXTURE], ids=["white", "mixture"])
@pytest.mark.parametrize("make", EVERY, ids=lambda make: make.__name__)
def test_the_diagonal_and_the_columns(
    make: Callable[[], Layer], autocorrelation: Autocorrelation, horizon: int | None
) -> None:
    hessian = hessian_of(make(), autocorrelation, horizon)
    whole = formed(hessian)
    seen: list[int] = []
    for block in hessian.large_blocks(0):
        own = whole[np.ix_(block.scalars, block.scalars)]
        roots = np.sqrt(np.maximum(np.diag(own), np.abs(whole).max() * 1e-30))
        assert_allclose(block.diagonal() / roots**2, np.diag(own) / roots**2, atol=1e-12)
        chosen = np.random.default_rng(0).permutation(len(own))[: len(own) // 2 + 1]
        error = (block.columns(chosen) - own[:, chosen]) / np.outer(roots, roots[chosen])
        assert np.abs(error).max() < 1e-11
        seen.extend(block.scalars.tolist())
    assert sorted(seen) == list(range(hessian.size))


def test_a_block_is_either_formed_or_large() -> None:
    hessian = hessian_of(layers.channels())  # blocks of 3, 4 and 3 scalars
    assert [blocks.hessians.shape for blocks in hessian.blocks(3)] == [(2, 3, 3)]
    assert [block.scalars.size for block in hessian.large_blocks(3)] == [4]


@pytest.mark.parametrize(
    ("horizon", "outputs"), [(None, 1), (60, 1), (None, 4)], ids=["infinite", "finite", "outputs"]
)
def test_scores_within_their_error_bounds(horizon: int | None, outputs: int) -> None:
    hessian = hessian_of(memories(150, outputs), horizon=horizon)
    exact = diagonality_scores(blocks.hessians for blocks in hessian.blocks())
    tally = DiagonalityTally()
    (block,) = hessian.large_blocks(0)
    found = block.factorise()
    tally.add_factored(found.diagonal, found.plain, found.scaled, found.scalars)
    scores = tally.scores()
    assert exact is not None
    assert scores is not None
    assert scores.trace == pytest.approx(exact.trace, rel=1e-12)
    assert scores.diagonality == pytest.approx(exact.diagonality, rel=1e-3)
    assert scores.sharpness <= exact.sharpness * (1 + 1e-9)
    assert exact.sharpness <= (scores.sharpness + scores.sharpness_error) * (1 + 1e-9)
    assert scores.sharpness == pytest.approx(exact.sharpness, rel=1e-5)
    assert scores.adam_residual <= exact.adam_residual * (1 + 1e-9)
    assert exact.adam_residual <= scores.adam_residual + scores.adam_residual_error + 1e-9
    assert scores.concentration == pytest.approx(exact.concentration, rel=1e-2)


def test_a_finite_sequence_has_no_more_directions_than_steps() -> None:
    """T impulse responses span every row: nothing is left after T columns."""
    (block,) = hessian_of(memories(100), horizon=20).large_blocks(0)
    found = block.factorise()
    assert found.plain.factor.shape[1] <= 20
    assert found.scaled.factor.shape[1] <= 20
    assert found.scaled.error < 1e-6


def test_a_part_that_the_factor_misses_has_the_curvature_of_its_steepest_coordinate() -> None:
    diagonal = np.array([2.0, 3.0, 1.0])
    nothing = PartialCholesky(np.zeros((3, 2)), diagonal, np.arange(2))
    tally = DiagonalityTally()
    tally.add_factored(diagonal, nothing, nothing)
    scores = tally.scores()
    assert scores is not None
    assert (scores.sharpness, scores.sharpness_error) == (3, 3)
    assert (scores.diagonality, scores.concentration) == (1, 1)


def test_what_leaves_the_range_of_a_float_is_refused() -> None:
    layer = layers.polar((1.5, 1.6))
    (block,) = hessian_of(layer, horizon=900).large_blocks(0)
    with np.errstate(over="ignore", invalid="ignore"), pytest.raises(OverflowError):
        block.factorise()
