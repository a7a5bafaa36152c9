"""The Hessian of a diagonal layer, formed or by columns, against impulse responses."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_allclose
from theory import layers
from theory.brute_force import COSINES, MIXTURE, impulse_responses
from theory.impulse_hessian import Layer, expected, group, projection

from memcurse_cli.theory import hessian as theory_hessian
from memcurse_cli.theory.autocorrelation import WHITE, Autocorrelation
from memcurse_cli.theory.diagonality import DiagonalityTally, diagonality_scores
from memcurse_cli.theory.hessian import HessianBlocks, LayerHessian

INPUTS = [WHITE, *map(Autocorrelation.from_rho, (0.9, 0.997)), MIXTURE, COSINES]
LONG = 500  # steps after which every stable response here is below rounding


def blocks_of(
    layer: Layer, autocorrelation: Autocorrelation = WHITE, horizon: int | None = None
) -> list[HessianBlocks]:
    return list(layer.hessian(autocorrelation, horizon).blocks())


def assert_is_the_sum(layer: Layer, autocorrelation: Autocorrelation, horizon: int | None) -> None:
    """The blocks are principal submatrices of H that hold all of it, and E|y|² is theirs."""
    steps = horizon or LONG
    whole = expected(layer.responses(steps), autocorrelation, every=horizon is not None)
    shown = layer.read(impulse_responses(np.exp(layer.log_eigenvalues), steps)[0])[None]
    output = expected(shown, autocorrelation, every=horizon is not None)[0, 0]
    found = blocks_of(layer, autocorrelation, horizon)
    outputs = sum(blocks.output_second_moments.sum() for blocks in found)
    assert outputs == pytest.approx(output, rel=1e-11)
    scale = np.abs(whole).max(initial=1e-300)
    assembled = np.zeros_like(whole)
    seen: list[int] = []
    for blocks in found:
        for block, scalars in zip(blocks.hessians, blocks.scalars, strict=True):
            assembled[np.ix_(scalars, scalars)] = block
            seen.extend(scalars.tolist())
            outside = np.setdiff1d(np.arange(len(whole)), scalars)
            assert np.abs(whole[np.ix_(scalars, outside)]).max(initial=0) == 0
    assert sorted(seen) == list(range(len(whole)))
    scales = np.sqrt(np.diag(whole))
    scales[scales == 0] = np.sqrt(scale)
    assert np.abs((assembled - whole) / np.outer(scales, scales)).max() < 1e-11


@pytest.mark.parametrize("autocorrelation", INPUTS, ids=str)
@pytest.mark.parametrize("make", layers.LAYERS, ids=lambda make: make.__name__)
def test_an_infinite_sequence_is_the_sum_over_impulse_responses(
    make: Callable[[], Layer], autocorrelation: Autocorrelation
) -> None:
    assert_is_the_sum(make(), autocorrelation, None)


@pytest.mark.parametrize("autocorrelation", INPUTS, ids=str)
@pytest.mark.parametrize("radius", [(0.3, 0.9), (0.9, 1.05)], ids=["stable", "unstable"])
@pytest.mark.parametrize("make", layers.LAYERS, ids=lambda make: make.__name__)
def test_a_finite_sequence_is_the_mean_over_its_steps(
    make: Callable[..., Layer], radius: tuple[float, float], autocorrelation: Autocorrelation
) -> None:
    for horizon in (1, 2, 3, 60):
        assert_is_the_sum(make(radius), autocorrelation, horizon)


def test_what_is_forgotten_is_left_out() -> None:
    """Responses that died out long before the horizon are not followed to it."""
    layer = layers.polar()
    ((found,),) = (b.hessians for b in blocks_of(layer, MIXTURE, 10**9))
    ((limit,),) = (b.hessians for b in blocks_of(layer, MIXTURE))
    assert_allclose(found, limit, atol=1e-6 * np.abs(limit).max())


@pytest.mark.parametrize("student", ["complex_diag", "LRU", "S4"])
def test_the_authors_students_in_expectation(student: str, paper: Path) -> None:
    """Figures 4 and 9, whose Hessians are of 64 sequences of 300 steps: a few percent off.

    Every student is the teacher in the basis of its eigenvectors, imaginary parts before real ones.
    The LRU has a γ = √(1-|λ|²) of its own, and ω_θ the logarithm of an angle in (0, 2π). S4 has
    λ = e^(ΔA) and B̄ = ΔB with Δ = softplus(ω_Δ) = 0.01 for every state.
    """
    oracle = json.loads((paper / "hessian_at_optimality.json").read_text())
    teacher, diagonal = oracle["teacher"], oracle["diag"]
    logs = np.log(np.array(teacher["eig_re"]) + 1j * np.array(teacher["eig_im"]))
    logs = np.where(logs.imag < 0, logs + 2j * np.pi, logs)
    readin, readout = (
        np.array(diagonal[f"{name}_re"]) + 1j * np.array(diagonal[f"{name}_im"]) for name in "BC"
    )
    eigenvalues, gain = np.exp(logs), np.ones(4)
    groups = [group(np.full(4, 1j)), group(np.ones(4))]
    if student == "LRU":
        gain = np.sqrt(-np.expm1(2 * logs.real))
        groups = [group(eigenvalues * logs.real), group(eigenvalues * 1j * logs.imag)]
        groups.append(group(np.zeros(4), np.ones(4)))
    if student == "S4":
        gain = np.full(4, 0.01)
        slope = -np.expm1(-0.01)  # σ(ω) = 1 - e^-softplus(ω)
        groups = [group(eigenvalues * 0.01), group(eigenvalues * 0.01j)]
        groups.append(group(eigenvalues * logs / 0.01 * slope, np.full(4, slope / 0.01)))
    projections = (
        projection("B", (4, 1), 1j),
        projection("B", (4, 1)),
        projection("C", (1, 4), 1j),
        projection("C", (1, 4)),
        projection("D", (1, 1)),
    )
    layer = Layer(
        logs,
        np.log(gain).astype(complex),
        groups,
        readin / gain[:, None],
        readout,
        projections=projections,
    )
    ((block,),) = (blocks.hessians for blocks in blocks_of(layer, horizon=300))
    printed = np.array(oracle[student]["H"])
    assert not printed[len(block) :].any()  # what follows has no effect on the output
    printed = printed[: len(block), : len(block)]
    assert np.abs(block - printed).max() < 0.07 * np.abs(printed).max()


def test_near_the_unit_circle_nothing_cancels() -> None:
    """White noise and one real λ = e^-d: H = (1+λ²)/(1-λ²)³, which tends to 1/(4 d³)."""
    for decay in (1e-6, 1e-9, 1e-12):
        layer = Layer(
            np.array([-decay + 0j]),
            np.zeros(1, complex),
            (group(np.ones(1)),),
            np.ones((1, 1), complex),
            np.ones((1, 1), complex),
        )
        ((found,),) = (blocks.hessians for blocks in blocks_of(layer))
        assert found[0, 0] == pytest.approx(1 / (4 * decay**3), rel=5 * decay + 1e-13)


def formed(hessian: LayerHessian) -> np.ndarray:
    whole = np.zeros((hessian.entries.size, hessian.entries.size))
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
@pytest.mark.parametrize("make", layers.LAYERS, ids=lambda make: make.__name__)
def test_the_diagonal_and_the_columns(
    make: Callable[[], Layer], autocorrelation: Autocorrelation, horizon: int | None
) -> None:
    hessian = make().hessian(autocorrelation, horizon)
    whole = formed(hessian)
    outputs = sum(blocks.output_second_moments.sum() for blocks in hessian.blocks())
    large = sum(block.output_second_moment() for block in hessian.large_blocks(0))
    if all(block.is_exact for block in hessian.large_blocks(0)):
        assert large == pytest.approx(outputs, rel=1e-11)
    else:
        assert math.isnan(large)
    seen: list[int] = []
    for block in hessian.large_blocks(0):
        own = whole[np.ix_(block.scalars, block.scalars)]
        roots = np.sqrt(np.maximum(np.diag(own), np.abs(whole).max() * 1e-30))
        assert_allclose(block.diagonal() / roots**2, np.diag(own) / roots**2, atol=1e-12)
        chosen = np.random.default_rng(0).permutation(len(own))[: len(own) // 2 + 1]
        error = (block.columns(chosen) - own[:, chosen]) / np.outer(roots, roots[chosen])
        assert np.abs(error).max() < 1e-11
        for some in (slice(0, len(own)), slice(1, len(own))):
            rows = np.concatenate([*block.responses(some)])
            assert rows.shape[1] == block.samples
            error = (rows @ rows.T - own[some, some]) / np.outer(roots[some], roots[some])
            assert np.abs(error).max() < 1e-11
        seen.extend(block.scalars.tolist())
    assert sorted(seen) == list(range(hessian.entries.size))


def test_a_block_is_either_formed_or_large() -> None:
    hessian = layers.channels().hessian()  # blocks of 3, 4 and 3 scalars
    assert [blocks.hessians.shape for blocks in hessian.blocks(3)] == [(2, 3, 3)]
    assert [block.scalars.size for block in hessian.large_blocks(3)] == [4]


@pytest.mark.parametrize(
    ("horizon", "outputs"), [(None, 1), (60, 1), (None, 4)], ids=["infinite", "finite", "outputs"]
)
def test_scores_within_their_error_bounds(
    horizon: int | None, outputs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(theory_hessian, "MOST_SAMPLES", 0)
    hessian = memories(150, outputs).hessian(horizon=horizon)
    exact = diagonality_scores(blocks.hessians for blocks in hessian.blocks())
    tally = DiagonalityTally()
    (block,) = hessian.large_blocks(0)
    tally.add_factored(block.factorise())
    scores = tally.scores()
    assert scores.trace == pytest.approx(exact.trace, rel=1e-12)
    assert scores.diagonality == pytest.approx(exact.diagonality, rel=1e-3)
    assert 0 < scores.diagonality_error < 0.2 * scores.diagonality
    assert exact.diagonality >= scores.diagonality - scores.diagonality_error
    assert scores.sharpness <= exact.sharpness * (1 + 1e-9)
    assert exact.sharpness <= (scores.sharpness + scores.sharpness_error) * (1 + 1e-9)
    assert scores.sharpness == pytest.approx(exact.sharpness, rel=1e-5)
    assert scores.adam_residual <= exact.adam_residual * (1 + 1e-9)
    assert exact.adam_residual <= scores.adam_residual + scores.adam_residual_error + 1e-9
    assert scores.concentration == pytest.approx(exact.concentration, rel=1e-2)


def test_what_leaves_the_range_of_a_float_is_refused() -> None:
    with pytest.raises(ValueError, match="infinite sequence"):
        blocks_of(layers.polar((0.9, 1.1)))
    layer = layers.polar((1.5, 1.6))
    (block,) = layer.hessian(horizon=900).large_blocks(0)
    with np.errstate(over="ignore", invalid="ignore"), pytest.raises(OverflowError):
        block.factorise()
