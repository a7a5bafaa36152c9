"""The matrix-free Hessian against the explicit n²×n² one, from impulse responses alone."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec.structs import replace
from numpy.testing import assert_allclose
from numpy.typing import NDArray
from theory.brute_force import COSINES, MIXTURE
from theory.impulse_hessian import expected
from theory.matrices import MATRICES, UNSTABLE, jordan, random, responses, system

from memcurse_cli.theory import linalg
from memcurse_cli.theory.autocorrelation import WHITE, Autocorrelation
from memcurse_cli.theory.dense import hessian as dense_hessian_horizon
from memcurse_cli.theory.dense.hessian import DenseHessian, dense_hessian, dense_hessian_scores
from memcurse_cli.theory.diagonality import diagonality_scores
from memcurse_cli.theory.moments import Readout

Floats = NDArray[np.float64]
INPUTS = [WHITE, Autocorrelation.from_rho(1.0), MIXTURE, COSINES]
LONG = 600  # steps after which every stable matrix here has forgotten its input


def channels(matrix: Floats, inputs: int, outputs: int) -> tuple[Floats, Floats]:
    generator = np.random.default_rng(8)
    size = len(matrix)
    return generator.normal(size=(size, inputs)), generator.normal(size=(outputs, size))


def explicit(
    given: tuple[Floats, Floats, Floats],
    autocorrelation: Autocorrelation,
    steps: int = LONG,
    read_at: Readout = "last",
) -> tuple[Floats, float]:
    """(n², n²) H and E|y|² of A, B and C."""
    matrix, readin, readout = given
    both = responses(matrix, readin, steps, readout)
    products = expected(both, autocorrelation, every=read_at == "every")
    return products[1:, 1:], products[0, 0]


def formed(hessian: DenseHessian) -> Floats:
    """(n², n²) from products with every unit matrix."""
    shape = hessian.diagonal.shape
    return np.stack([hessian.apply(row.reshape(shape)).ravel() for row in np.eye(hessian.order)])


def assert_is(hessian: DenseHessian, of_sums: tuple[Floats, float], tolerance: float) -> None:
    wanted, output = of_sums
    scale = np.abs(wanted).max()
    assert_allclose(formed(hessian), wanted, atol=tolerance * scale)
    assert_allclose(hessian.diagonal.ravel(), np.diag(wanted), atol=tolerance * scale)
    if hessian.squared_norm is not None:
        assert hessian.squared_norm == pytest.approx(np.sum(wanted**2), rel=10 * tolerance)
    assert hessian.output_second_moment == pytest.approx(output, rel=1e-10)


@pytest.mark.parametrize("read_at", ["every", "last"])
@pytest.mark.parametrize("steps", [1, 2, 20])
@pytest.mark.parametrize("name", [*MATRICES, *UNSTABLE])
def test_a_finite_sequence(name: str, steps: int, read_at: Readout) -> None:
    matrix = {**MATRICES, **UNSTABLE}[name]
    for autocorrelation in INPUTS:
        for inputs, outputs in ((3, 1), (1, 2)):
            b, c = channels(matrix, inputs, outputs)
            found = dense_hessian(system(matrix, b, c, autocorrelation, steps, read_at))
            assert found.squared_norm is not None
            assert_is(found, explicit((matrix, b, c), autocorrelation, steps, read_at), 1e-11)


@pytest.mark.parametrize("autocorrelation", INPUTS, ids=str)
@pytest.mark.parametrize("name", MATRICES)
def test_an_infinite_sequence(name: str, autocorrelation: Autocorrelation) -> None:
    matrix = MATRICES[name]
    b, c = channels(matrix, 2, 3)
    found = dense_hessian(system(matrix, b, c, autocorrelation=autocorrelation))
    wanted = explicit((matrix, b, c), autocorrelation)
    assert_is(found, wanted, 1e-9)
    diagonalisable = name not in ("nilpotent", "defective")
    assert (found.squared_norm is not None) == (autocorrelation is WHITE and diagonalisable)


@pytest.mark.parametrize(("size", "apart"), [(2, 1e-6), (2, 1e-7), (3, 3e-4), (3, 1e-4)])
@pytest.mark.parametrize("whole", [True, False])
def test_the_norm_of_nearly_defective_matrices(
    size: int, apart: float, whole: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """κ(P) of 5e5 to 2e7: the closed form of ‖H‖_F² is off by 18 % to 1000 times, and negative."""
    matrix = np.diag(np.linspace(-0.5, 0.7, 18))
    matrix[:size, :size] = 0.8 * np.eye(size) + 0.3 * np.eye(size, k=1)
    matrix[:size, :size] += np.diag(apart * np.arange(size))
    rotation = np.linalg.qr(np.random.default_rng(1).normal(size=(18, 18)))[0]
    matrix = rotation @ matrix @ rotation.T
    b, c = channels(matrix, 3, 2)
    if not whole:
        monkeypatch.setattr(dense_hessian_horizon, "FORMED_FLOPS", 0)
    found, _ = dense_hessian_scores(dense_hessian(system(matrix, b, c)))
    wanted = diagonality_scores([explicit((matrix, b, c), WHITE)[0][None]])
    assert (found.diagonality_error == 0) == whole
    within = 5 * found.diagonality_error + 2e-5 * wanted.diagonality
    assert abs(found.diagonality - wanted.diagonality) < within
    assert found.sharpness == pytest.approx(wanted.sharpness, rel=1e-5)
    assert found.adam_residual == pytest.approx(wanted.adam_residual, rel=1e-4)


@pytest.mark.parametrize("share", [-1.0, 0.5, 1e6])
def test_a_norm_that_no_matrix_has_is_refused(share: float) -> None:
    matrix = random(7, 0.9, 3)
    found = dense_hessian(system(matrix, *channels(matrix, 2, 1)))
    norm = share * float(np.sum(found.diagonal**2)) * (1 if share < 1 else found.order)
    with pytest.raises(ArithmeticError, match="lost in the rounding"):
        dense_hessian_scores(replace(found, squared_norm=norm))


def test_products_find_whole_eigenspaces() -> None:
    """Every power of an orthogonal A is, and each eigenvalue of H has as many vectors as units."""
    matrix = 0.9 * np.linalg.qr(np.random.default_rng(0).normal(size=(20, 20)))[0]
    hessian = dense_hessian(system(matrix))
    scores, top = dense_hessian_scores(hessian)
    wanted = diagonality_scores([formed(hessian)[None]])
    assert {pair.dimension for pair in top} == {20}
    assert scores.concentration == pytest.approx(wanted.concentration, rel=1e-6)
    multiple = dense_hessian(system(0.9 * np.eye(20)))
    beyond, _ = dense_hessian_scores(multiple)
    assert beyond.concentration is None  # 400 vectors are too many to be found


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("horizon", [None, 25])
def test_scores_without_the_matrix_are_those_of_the_matrix(
    horizon: int | None, exact: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(linalg, "EXPLICIT_ORDER", 0)
    monkeypatch.setattr(dense_hessian_horizon, "FORMED_FLOPS", 0)
    matrix = random(7, 0.95, 3)
    b, c = channels(matrix, 2, 1)
    found = dense_hessian(system(matrix, b, c, horizon=horizon))
    if not exact:
        found = replace(found, squared_norm=None)
    scores, top = dense_hessian_scores(found)
    wanted = diagonality_scores([formed(found)[None]])
    assert scores.order == 49
    for name in ("trace", "sharpness", "adam_residual", "concentration"):
        assert getattr(scores, name) == pytest.approx(getattr(wanted, name), rel=1e-7), name
    within = 4 * scores.diagonality_error + 1e-9 * wanted.diagonality
    assert abs(scores.diagonality - wanted.diagonality) < within
    assert (scores.diagonality_error == 0) == exact
    for pair in top:
        value, vector = pair.value, pair.vector.reshape(found.diagonal.shape)
        residual = found.apply(vector) - value * vector
        assert np.linalg.norm(residual) < 1e-6 * top[0].value
        assert np.linalg.norm(vector) == pytest.approx(1)


def test_a_large_gram_matrix_is_not_formed(monkeypatch: pytest.MonkeyPatch) -> None:
    matrix = MATRICES["random"]
    b, c = channels(matrix, 1, 1)
    monkeypatch.setattr(dense_hessian_horizon, "GRAM_ORDER", 10)
    assert dense_hessian(system(matrix, b, c, horizon=11)).squared_norm is not None
    assert dense_hessian(system(matrix, b, c, horizon=12)).squared_norm is None


@pytest.mark.parametrize("horizon", [None, 9])
def test_a_leak_scales_it(horizon: int | None) -> None:
    """Over W of A = (1-α) I + α W every derivative has the factor α."""
    matrix = MATRICES["random"]
    b, c = channels(matrix, 1, 1)
    plain = dense_hessian(system(matrix, b, c, horizon=horizon))
    leaky = dense_hessian(system(matrix, b, c, horizon=horizon), scale=0.25)
    assert_is(leaky, (formed(plain) / 16, plain.output_second_moment), 1e-12)
    assert_allclose(leaky.top(3)[0], plain.top(3)[0] / 16, rtol=1e-12)


def test_what_has_no_hessian() -> None:
    matrix = UNSTABLE["explosive"]
    b, c = channels(matrix, 1, 1)
    with pytest.raises(ValueError, match="infinite sequence"):
        dense_hessian(system(matrix, b, c))
    with pytest.raises(OverflowError):
        dense_hessian(system(10 * matrix, b, c, horizon=400))
    slow = jordan(2, 1 - 1e-12)
    with pytest.raises(ArithmeticError, match="ill-conditioned"):
        dense_hessian(system(slow, *channels(slow, 1, 1)))
    stable = MATRICES["random"]
    silent = dense_hessian(system(stable, np.zeros((5, 1)), np.ones((1, 5))))
    assert dense_hessian_scores(silent) is None


@pytest.mark.parametrize("spectrum", [[3.0], [3.0] * 14, [3.0, 3.0, 1.0], [2.0] * 5 + [1.0] * 290])
def test_lanczos_finds_every_copy_of_an_eigenvalue(spectrum: list[float]) -> None:
    """Of a low rank as well, where all that is left beside the eigenvectors is rounding."""
    values = np.r_[spectrum, np.zeros(300 - len(spectrum))]
    basis = np.linalg.qr(np.random.default_rng(2).normal(size=(300, 300)))[0]
    found, vectors = linalg.largest_eigenpairs(lambda v: basis @ (values * (basis.T @ v)), 300, 11)
    assert_allclose(found, values[:11], atol=1e-8)
    assert_allclose(vectors.T @ vectors, np.eye(11), atol=1e-6)
