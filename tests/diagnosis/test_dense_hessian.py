"""What both commands say of a dense layer's Hessian, against the explicit matrix."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np
import pytest
from diagnosis.build import drawn_lru, only
from numpy.testing import assert_allclose
from numpy.typing import NDArray
from theory.test_dense_hessian import explicit as by_responses

from memcurse_cli.diagnosis import hessian as hessian_module
from memcurse_cli.diagnosis.inspection import hessian
from memcurse_cli.reports.console import text_for
from memcurse_cli.reports.terminal.hessian import lines
from memcurse_cli.theory.autocorrelation import WHITE
from memcurse_cli.theory.moments import Readout

Floats = NDArray[np.float64]


def drawn(size: int, radius: float, inputs: int = 1) -> dict[str, Floats]:
    generator = np.random.default_rng(5)
    matrix = generator.normal(size=(size, size))
    return {
        "A": matrix * (radius / np.abs(np.linalg.eigvals(matrix)).max()),
        "B": generator.normal(size=(size, inputs)),
        "C": generator.normal(size=(1, size)),
    }


def explicit(
    state: dict[str, Floats], steps: int, readout: Readout = "every"
) -> tuple[Floats, float]:
    """(n², n²) H of the loss that is read, and E‖y‖², from impulse responses."""
    return by_responses(tuple(state.values()), WHITE, steps, readout)


@pytest.mark.parametrize(
    ("radius", "horizon", "readout"),
    [(0.9, math.inf, "last"), (1.05, 30, "last"), (0.9, 30, "every")],
)
def test_the_scores_of_a_dense_layer(radius: float, horizon: float, readout: Readout) -> None:
    state, steps = drawn(4, radius, 2), int(min(horizon, 400))
    hessian, power = explicit(state, steps, readout)
    asked = None if horizon == math.inf else readout
    found = only(state, horizon=horizon, readout=asked).hessian
    values, diagonal = np.linalg.eigvalsh(hessian), np.diag(hessian)
    assert found.order == 16
    assert found.sharpness == pytest.approx(values[-1], rel=1e-6)
    assert found.max_stable_lr == pytest.approx(2 / values[-1], rel=1e-6)
    share = np.sum(diagonal**2) / np.sum(hessian**2)
    assert found.diagonality == pytest.approx(share, rel=1e-6)
    scaled = hessian / np.sqrt(np.outer(diagonal, diagonal))
    assert found.adam_residual == pytest.approx(np.linalg.eigvalsh(scaled)[-1], rel=1e-6)
    wanted = 1e-3 * math.sqrt(diagonal.sum() / power)
    assert found.output_step_effect == pytest.approx(wanted, rel=1e-6)


def hessian_layer(state: dict[str, Floats], horizon: float = 40) -> Any:
    (layer,) = hessian(state, horizon=horizon).layers
    return layer


@pytest.mark.parametrize("formed", [True, False])
def test_it_is_the_matrix(formed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not formed:
        monkeypatch.setattr(hessian_module, "FORMED", 0)
    state = drawn(5, 1.02)
    wanted, _ = explicit(state, 40)
    values, vectors = np.linalg.eigh(wanted)
    found = hessian_layer(state)
    assert found.method == ("whole" if formed else "Lanczos")
    assert (found.conditioning is not None) == formed
    assert_allclose(found.picture.magnitude, np.abs(wanted), rtol=1e-6, atol=1e-9 * values[-1])
    assert found.scores.order == found.largest_block == 25
    assert found.scores.trace == pytest.approx(np.trace(wanted), rel=1e-9)
    share = np.sum(np.diag(wanted) ** 2) / np.sum(wanted**2)
    assert found.scores.diagonality == pytest.approx(share, rel=1e-9)
    assert found.scores.sharpness == found.spectrum.largest[0]
    assert found.spectrum.largest[:3] == pytest.approx(values[::-1][:3], rel=1e-7)
    (group,) = found.groups
    assert (group.name, group.kind, group.size) == ("A", "recurrent", 25)
    assert group.scores == found.scores
    page = " ".join(text_for(partial(lines, hessian(state, horizon=40)), None).split())
    assert ("from products with it, the largest" in page) != formed
    top = found.eigenvectors[0]
    assert top.concentration == pytest.approx(1 / np.sum(vectors[:, -1] ** 4), rel=1e-6)
    assert top.weights == (1.0,)


def test_of_a_large_matrix_some_rows_and_columns_are_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hessian_module, "FORMED", 0)
    monkeypatch.setattr(hessian_module, "PICTURED_SIDE", 3)
    state = drawn(5, 1.02)
    found = hessian_layer(state).picture
    places = [row * 5 + column for row in (0, 2, 4) for column in (0, 2, 4)]
    wanted, _ = explicit(state, 40)
    vectors = np.linalg.eigh(wanted)[1]
    assert_allclose(found.magnitude, np.abs(wanted[np.ix_(places, places)]), rtol=1e-9)
    assert_allclose(found.eigenvectors[0], np.abs(vectors[places, -1]), rtol=1e-5)
    assert found.title.startswith("9 of 25 parameters, where 3 rows and columns")


def test_a_seat_is_the_share_along_the_gradient_of_an_eigenvalue() -> None:
    """Projected on the plane of the gradient, whose two axes are differences of eig."""
    state = drawn(5, 0.98)
    vectors = np.linalg.eigh(explicit(state, 40)[0])[1]
    seat = hessian_layer(state).eigenvectors[0].seats[0]
    values = np.linalg.eigvals(state["A"])
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


def test_what_has_none_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    state = drawn(4, 0.9)
    for found, horizon, reason in (
        ({"A": state["A"], "B": state["B"]}, math.inf, "no C"),
        (drawn(4, 1.1), math.inf, "diverges"),
        (drawn(4, 9.0), 999, "leaves the range"),
        (state | {"B": np.zeros((4, 1))}, math.inf, "is zero"),
    ):
        assert reason in str(only(found, horizon=horizon).hessian_reason)
        assert reason in str(hessian_layer(found, horizon).reason)
    pairs = str(only(drawn(2, 0.9), horizon=100_000).hessian_reason)
    assert "this size over 100,000 steps" in pairs
    monkeypatch.setattr(hessian_module, "BUDGET", 1e3)
    for horizon in (math.inf, 30):
        assert "takes long" in str(only(state, horizon=horizon).hessian_reason)
    monkeypatch.setattr(hessian_module, "LARGEST", 3)
    assert "order of 4²" in str(only(state).hessian_reason)


def test_what_outlasts_the_sum_is_said_and_what_does_not_is_summed() -> None:
    matrix = {"A": np.eye(3), "B": np.ones((3, 2)), "C": np.ones((2, 3)), "D": np.zeros((2, 2))}
    lasting = drawn_lru(2) | {"nu_log": np.full(2, -20.0)}
    for state, summed in ((lasting, False), (drawn_lru(2), True), (matrix, False)):
        found = only(state, horizon=10**9)
        assert (found.hessian is not None) is summed
        assert found.state.second_moment.max is not None or state is matrix
        if not summed:
            assert "1,000,000,000 steps are too many to sum" in str(found.hessian_reason)
