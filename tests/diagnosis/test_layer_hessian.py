from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
from diagnosis.build import SAMPLES
from numpy.testing import assert_allclose

from memcurse_cli.checkpoints.open import open_checkpoint
from memcurse_cli.diagnosis import hessian as layer_hessian
from memcurse_cli.diagnosis.hessian import CELLS, evenly_chosen, picture
from memcurse_cli.diagnosis.hessian import layer_hessian as hessian_of
from memcurse_cli.diagnosis.inspection import hessian
from memcurse_cli.diagnosis.settings import Settings
from memcurse_cli.families.family import ReadOptions
from memcurse_cli.families.state_space.diagonal import LRU
from memcurse_cli.schema.hessian import LayerHessianReport
from memcurse_cli.theory import hessian as theory_hessian

SAMPLE = SAMPLES / "lru.safetensors"
SIZES = {"nu_log": 64, "theta_log": 64, "gamma_log": 64}
SIZES |= {"B_re": 64, "B_im": 64, "C_re": 64, "C_im": 64, "D": 1}


@pytest.fixture(scope="module")
def whole() -> np.ndarray:
    """H of the sample, whose entries the tests of the theory check."""
    family = LRU()
    with open_checkpoint(SAMPLE) as store:
        recurrence = family.read(store, family.find(store.tensors)[0], ReadOptions())
    found = hessian_of(recurrence, Settings(horizon=300), recurrence.projections)
    ((matrix,),) = (blocks.hessians for blocks in found.blocks())
    return matrix


@pytest.fixture(scope="module")
def layer() -> LayerHessianReport:
    (found,) = hessian(SAMPLE).layers
    return found


def runs() -> dict[str, slice]:
    ends = np.cumsum(list(SIZES.values())).tolist()
    return {name: slice(end - SIZES[name], end) for name, end in zip(SIZES, ends, strict=True)}


def test_the_groups_are_the_stored_tensors_with_the_scores_of_their_own_blocks(
    layer: LayerHessianReport, whole: np.ndarray
) -> None:
    assert {group.name: group.size for group in layer.groups} == SIZES
    assert [group.kind for group in layer.groups] == ["recurrent"] * 3 + list("BBCCD")
    assert (layer.blocks, layer.largest_block, layer.method) == (1, 449, "whole")
    assert layer.reason is layer.left_out is None
    for group in layer.groups:
        own = whole[runs()[group.name], runs()[group.name]]
        roots = np.sqrt(np.diag(own))
        assert group.scores.trace == pytest.approx(np.trace(own))
        assert group.scores.sharpness == pytest.approx(np.linalg.eigvalsh(own)[-1])
        scaled = own / np.outer(roots, roots)
        assert group.scores.adam_residual == pytest.approx(np.linalg.eigvalsh(scaled)[-1])


def test_what_two_groups_share(layer: LayerHessianReport, whole: np.ndarray) -> None:
    roots = np.sqrt(np.diag(whole))
    related = np.abs(whole / np.outer(roots, roots))
    assert sum(pair.norm_share for pair in layer.pairs) == pytest.approx(1)
    assert len(layer.pairs) == 8 * 9 / 2
    shares = [pair.norm_share for pair in layer.pairs]
    assert shares == sorted(shares, reverse=True)
    for pair in layer.pairs:
        first, second = runs()[pair.first], runs()[pair.second]
        both = 1 if first == second else 2
        share = both * np.sum(whole[first, second] ** 2) / np.sum(whole**2)
        assert pair.norm_share == pytest.approx(share)
        cells = related[first, second]
        if first == second:
            cells = cells[~np.eye(len(cells), dtype=bool)]
        assert pair.mean_correlation == (pytest.approx(cells.mean()) if cells.size else None)


def test_the_spectrum(layer: LayerHessianReport, whole: np.ndarray) -> None:
    spectrum, scores = layer.spectrum, layer.scores
    assert len(spectrum.largest) == spectrum.count == 449
    assert sum(spectrum.largest) == pytest.approx(scores.trace)
    assert spectrum.largest[0] == scores.sharpness
    # γ, B and C scale one product, so that 3 of the 7 numbers of a unit are redundant.
    assert spectrum.rank <= 4 * 64 + 1
    roots = np.sqrt(np.diag(whole))
    scaled = np.linalg.eigvalsh(whole / np.outer(roots, roots))[::-1][: spectrum.rank]
    assert layer.conditioning.after == pytest.approx(scaled[0] / np.median(scaled), rel=1e-6)
    assert layer.conditioning.after < 1e-6 * layer.conditioning.before


def test_the_top_eigenvectors_and_where_they_sit(
    layer: LayerHessianReport, whole: np.ndarray
) -> None:
    """The LRU's curvature is almost all in the angles of its longest memories."""
    values, vectors = np.linalg.eigh(whole)
    for place, top in enumerate(layer.eigenvectors, 1):
        vector = vectors[:, -place]
        assert top.eigenvalue == pytest.approx(values[-place])
        assert top.concentration == pytest.approx(1 / np.sum(vector**4))
        assert sum(top.weights) == pytest.approx(1)
        for weight, run in zip(top.weights, runs().values(), strict=True):
            assert weight == pytest.approx(np.sum(vector[run] ** 2), abs=1e-9)
        per_unit = np.sum(vector[:-1].reshape(7, 64) ** 2, axis=0)
        for seat in top.seats:
            assert seat.weight == pytest.approx(per_unit[seat.index], abs=1e-9)
        assert top.seats[0].index == np.argmax(per_unit)
        heaviest = top.coordinates[0]
        assert runs()[heaviest.group].start + heaviest.index == np.argmax(vector**2)
    steepest = layer.eigenvectors[0]
    assert steepest.weights[1] > 0.999
    assert steepest.seats[0].time_constant == pytest.approx(260.8, rel=1e-3)


@pytest.mark.parametrize(
    ("samples", "method"), [(2048, "impulse responses"), (0, "partial Cholesky")]
)
def test_a_block_that_is_not_formed_says_the_same_within_its_bounds(
    layer: LayerHessianReport, samples: int, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    exact = layer
    monkeypatch.setattr(layer_hessian, "LARGEST_BLOCK", 100)
    monkeypatch.setattr(theory_hessian, "MOST_SAMPLES", samples)
    (found,) = hessian(SAMPLE).layers
    assert (found.method, found.blocks, found.largest_block) == (method, 1, 449)
    assert found.conditioning is None
    assert found.scores.sharpness == pytest.approx(exact.scores.sharpness, rel=1e-4)
    assert (found.output_second_moment is None) == (not samples)
    if samples:
        assert found.output_second_moment == pytest.approx(exact.output_second_moment, rel=1e-11)
        assert found.scores.diagonality == pytest.approx(exact.scores.diagonality, rel=1e-11)
        assert found.scores.adam_residual_error == 0
        assert_allclose(
            [pair.norm_share for pair in found.pairs],
            [pair.norm_share for pair in exact.pairs],
            atol=1e-11,
        )
    least, most = found.scores.adam_residual, found.scores.adam_residual_error
    assert least <= exact.scores.adam_residual * (1 + 1e-9) <= least + most + 1e-6
    for one, other in zip(found.groups, exact.groups, strict=True):
        low, high = one.scores.sharpness, one.scores.sharpness + one.scores.sharpness_error
        assert low * (1 - 1e-9) <= other.scores.sharpness <= high * (1 + 1e-9)
    assert found.picture.groups == exact.picture.groups
    assert 240 <= found.picture.order < 449
    assert found.picture.title == f"{found.picture.order} of 449 parameters, evenly taken"
    # The same scalars of the whole block, group by group.
    group = np.searchsorted(exact.picture.boundaries, np.arange(449), side="right") - 1
    chosen = evenly_chosen(group)
    wanted, vectors = exact.picture.magnitude[np.ix_(chosen, chosen)], exact.picture.eigenvectors
    assert_allclose(found.picture.magnitude, wanted, rtol=1e-9, atol=1e-12 * wanted.max())
    assert_allclose(found.picture.eigenvectors[0], vectors[0][chosen], atol=1e-3)


def test_channels_are_blocks_and_the_sharpest_is_drawn(zoo: Path) -> None:
    found = hessian(zoo / "s4" / "s4d_minimal.safetensors").layers[0]
    assert found.left_out == "no parameter of B was found"  # it is 1
    assert found.picture.order == found.largest_block
    assert f"of {found.blocks} blocks" in found.picture.title
    assert found.scores.order == sum(group.size for group in found.groups)


def test_a_layer_without_a_hessian_says_why() -> None:
    unstable = safetensors.numpy.load_file(SAMPLES / "complex_diagonal_rnn.safetensors")
    gru = safetensors.numpy.load_file(SAMPLES / "gru.safetensors")
    exploding = {"lambda_re": np.array([3.0]), "lambda_im": np.array([0.0])}
    exploding |= {"B": np.ones((1, 1)), "C": np.ones((1, 1))}
    for state, horizon, reason in (
        (gru, math.inf, "B"),
        (unstable, math.inf, "diverges"),
        (exploding, 2000, "range of a float"),
    ):
        (found,) = hessian(state, horizon=horizon).layers
        assert found.scores is None
        assert reason in found.reason


def test_a_picture_never_mixes_groups() -> None:
    order = 3 * CELLS + 7
    responses = np.random.default_rng(0).normal(size=(order, 5))
    group = np.repeat([0, 2], [order - 4, 4])
    found = picture("a block", responses @ responses.T, group, ["a", "b", "c"])
    assert found.groups == ("a", "c")
    assert found.boundaries[-1] == len(found.magnitude) <= CELLS + 2
    assert found.boundaries[-1] - found.boundaries[-2] == 1  # the four of c
    assert found.magnitude[-1, -1] == pytest.approx(np.abs(responses[-4:] @ responses[-4:].T).max())
    assert found.correlation.max() == pytest.approx(1)
    assert found.eigenvectors.shape == (10, len(found.magnitude))
