"""What `memcurse hessian` says of a dense layer, against the explicit matrix."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_allclose
from numpy.typing import NDArray

from memcurse_cli.diagnosis.hessian import layer as dense_hessian_report
from memcurse_cli.diagnosis.hessian.inspection import hessian
from memcurse_cli.reports.terminal.hessian import to_text
from memcurse_cli.schema.hessian import LayerHessianReport

Floats = NDArray[np.float64]


def drawn(size: int, radius: float) -> dict[str, Floats]:
    generator = np.random.default_rng(2)
    matrix = generator.normal(size=(size, size))
    return {
        "A": matrix * (radius / np.abs(np.linalg.eigvals(matrix)).max()),
        "B": generator.normal(size=(size, 1)),
        "C": generator.normal(size=(1, size)),
    }


def explicit(state: dict[str, Floats], steps: int) -> Floats:
    """(n², n²) H of the mean over the steps, from the recursion of the derivative."""
    size = len(state["A"])
    h, moved = state["B"], np.zeros((size, size, size, 1))
    total = np.zeros((size**2, size**2))
    for step in range(steps):
        seen = (state["C"] @ moved).reshape(size**2, 1)
        total += (steps - step) / steps * (seen @ seen.T)
        moved = state["A"] @ moved
        moved[np.arange(size), :, np.arange(size)] += h
        h = state["A"] @ h
    return total


def layer(state: dict[str, Floats], horizon: int | None = 40) -> LayerHessianReport:
    (only,) = hessian(state, horizon=horizon).layers
    return only


@pytest.mark.parametrize("formed", [True, False])
def test_it_is_the_matrix(formed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not formed:
        monkeypatch.setattr(dense_hessian_report, "FORMED_ORDER", 0)
    state = drawn(5, 1.02)
    wanted = explicit(state, 40)
    values, vectors = np.linalg.eigh(wanted)
    found = layer(state)
    assert found.method == ("whole" if formed else "Lanczos")
    assert (found.conditioning is not None) == formed
    assert found.picture is not None
    assert_allclose(found.picture.magnitude, np.abs(wanted), rtol=1e-6, atol=1e-9 * values[-1])
    assert found.scores is not None
    assert found.scores.order == found.largest_block == 25
    assert found.scores.trace == pytest.approx(np.trace(wanted), rel=1e-9)
    assert found.scores.sharpness == pytest.approx(values[-1], rel=1e-9)
    share = np.sum(np.diag(wanted) ** 2) / np.sum(wanted**2)
    assert found.scores.diagonality == pytest.approx(share, rel=1e-9)
    assert found.spectrum is not None
    assert found.spectrum.largest[:3] == pytest.approx(values[::-1][:3], rel=1e-7)
    (group,) = found.groups
    assert (group.name, group.kind, group.size) == ("A", "recurrent", 25)
    assert group.scores == found.scores
    top = found.eigenvectors[0]
    assert top.concentration == pytest.approx(1 / np.sum(vectors[:, -1] ** 4), rel=1e-6)
    assert top.weights == (1.0,)


def test_of_a_large_matrix_some_rows_and_columns_are_drawn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(dense_hessian_report, "FORMED_ORDER", 0)
    monkeypatch.setattr(dense_hessian_report, "PICTURED_SIDE", 3)
    state = drawn(5, 1.02)
    found = layer(state).picture
    assert found is not None
    places = [row * 5 + column for row in (0, 2, 4) for column in (0, 2, 4)]
    wanted = explicit(state, 40)
    values, vectors = np.linalg.eigh(wanted)
    assert_allclose(found.magnitude, np.abs(wanted[np.ix_(places, places)]), rtol=1e-9)
    assert_allclose(found.eigenvectors[0], np.abs(vectors[places, -1]), rtol=1e-5)
    assert found.eigenvalues[0] == pytest.approx(values[-1], rel=1e-9)
    assert found.title.startswith("9 of 25 parameters, where 3 rows and columns")


def test_a_seat_is_the_share_along_the_gradient_of_an_eigenvalue() -> None:
    """Projected on the plane of the gradient, whose two axes are differences of eig."""
    state = drawn(5, 0.98)
    vectors = np.linalg.eigh(explicit(state, 40))[1]
    found = layer(state).eigenvectors[0]
    values = np.linalg.eigvals(state["A"])
    (seat, *_) = found.seats
    near = np.argmin(np.abs(values - seat.modulus * np.exp(1j * seat.angle)))
    gradient = np.zeros((25, 2))
    for place in range(25):
        moved = state["A"].copy()
        moved.flat[place] += 1e-6
        after = np.linalg.eigvals(moved)
        change = (after[np.argmin(np.abs(after - values[near]))] - values[near]) / 1e-6
        gradient[place] = change.real, change.imag
    axes = np.linalg.svd(gradient, full_matrices=False)[0]
    if abs(values[near].imag) < 1e-12:
        axes = axes[:, :1]
    assert seat.weight == pytest.approx(np.sum((axes.T @ vectors[:, -1]) ** 2), rel=1e-3)
    assert seat.time_constant == pytest.approx(-1 / np.log(np.abs(values[near])), rel=1e-9)


def test_the_page_says_how_it_was_found(monkeypatch: pytest.MonkeyPatch) -> None:
    state = drawn(5, 0.9)
    monkeypatch.setattr(dense_hessian_report, "FORMED_ORDER", 0)
    page = " ".join(to_text(hessian(state, horizon=30)).split())
    assert "from products with it, the largest" in page
    assert "B, C and D" in page


def test_what_has_none_says_why() -> None:
    state = drawn(4, 1.1)
    assert "diverges" in str(layer(state, None).reason)
    assert "no C" in str(layer({"A": state["A"], "B": state["B"]}).reason)
    assert "is zero" in str(layer(state | {"C": np.zeros((1, 4))}).reason)
    assert "leaves the range" in str(layer(drawn(4, 9.0), 999).reason)
