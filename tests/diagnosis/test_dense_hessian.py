"""The Hessian scores of dense layers through the whole line, against the explicit matrix."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from memcurse_cli import inspect
from memcurse_cli.diagnosis.hessian import scores as dense_hessian
from memcurse_cli.reports.terminal import structure as terminal_structure
from memcurse_cli.reports.terminal.report import to_text
from memcurse_cli.schema.report import LayerReport
from memcurse_cli.theory.dense import hessian as dense_hessian_horizon
from memcurse_cli.theory.dense import hessian as products

Floats = NDArray[np.float64]


def layer(state: dict[str, Floats], **options: object) -> LayerReport:
    (only,) = inspect(state, **options).layers  # type: ignore[arg-type]  # options of every type
    return only


def drawn(size: int, radius: float, inputs: int = 1, outputs: int = 1) -> dict[str, Floats]:
    generator = np.random.default_rng(5)
    matrix = generator.normal(size=(size, size))
    return {
        "A": matrix * (radius / np.abs(np.linalg.eigvals(matrix)).max()),
        "B": generator.normal(size=(size, inputs)),
        "C": generator.normal(size=(outputs, size)),
    }


def responses(state: dict[str, Floats], steps: int) -> tuple[Floats, Floats]:
    """(n², outputs, inputs, steps) dy/dA, from differences of C A^k B, and (..., steps) y."""

    def answer(matrix: Floats) -> Floats:
        h, seen = state["B"], []
        for _ in range(steps):
            seen.append(state["C"] @ h)
            h = matrix @ h
        return np.stack(seen, axis=-1)

    changed = []
    for place in np.ndindex(state["A"].shape):
        shift = np.zeros_like(state["A"])
        shift[place] = 1e-6
        changed.append((answer(state["A"] + shift) - answer(state["A"] - shift)) / 2e-6)
    return np.array(changed), answer(state["A"])


@pytest.mark.parametrize("readout", [None, "last", "every"])
@pytest.mark.parametrize(("radius", "horizon"), [(0.9, None), (0.9, 30), (1.05, 30)])
def test_the_scores_of_a_dense_layer(radius: float, horizon: int | None, readout: str) -> None:
    if horizon is None and readout is not None:
        pytest.skip("an infinite sequence is not read anywhere")
    state = drawn(4, radius, 2, 1)
    steps = horizon or 400
    jacobian, output = responses(state, steps)
    weight = np.ones(steps)
    if horizon is not None and readout != "last":
        weight = (steps - np.arange(steps)) / steps
    flat = (jacobian * np.sqrt(weight)).reshape(16, -1)
    hessian = flat @ flat.T
    found = layer(state, horizon=horizon, readout=readout).hessian
    assert found is not None
    values = np.linalg.eigvalsh(hessian)
    diagonal = np.diag(hessian)
    assert found.order == 16
    assert found.sharpness == pytest.approx(values[-1], rel=1e-6)
    assert found.max_stable_lr == pytest.approx(2 / values[-1], rel=1e-6)
    share = np.sum(diagonal**2) / np.sum(hessian**2)
    assert found.diagonality == pytest.approx(share, rel=1e-6)
    scaled = hessian / np.sqrt(np.outer(diagonal, diagonal))
    assert found.adam_residual == pytest.approx(np.linalg.eigvalsh(scaled)[-1], rel=1e-6)
    wanted = 1e-3 * math.sqrt(diagonal.sum() / np.sum(weight * output**2))
    assert found.output_step_effect == pytest.approx(wanted, rel=1e-6)


@pytest.mark.parametrize("readout", ["last", "every"])
def test_signs_in_concert_reach_at_most_the_root_of_what_adam_leaves(readout: str) -> None:
    """A step on all entries is the RMS over independent signs, and their worst is bounded."""
    state, steps = drawn(3, 0.95), 40
    found = layer(state, horizon=steps, readout=readout).hessian
    assert found is not None
    assert found.output_step_effect is not None
    jacobian, output = responses(state, steps)
    share = np.ones(steps) if readout == "last" else (steps - np.arange(steps)) / steps
    signs = np.array(np.meshgrid(*[[-1, 1]] * 9)).reshape(9, -1)
    moved = np.sum((jacobian.reshape(9, -1).T @ signs) ** 2 * share[:, None], axis=0)
    effects = 1e-3 * np.sqrt(moved / np.sum(share * output**2))
    assert np.sqrt(np.mean(effects**2)) == pytest.approx(found.output_step_effect, rel=1e-6)
    bound = math.sqrt(found.adam_residual) * found.output_step_effect
    assert 0.7 * bound < effects.max() <= bound


def test_the_report_says_how_far_signs_in_concert_reach() -> None:
    report = inspect(Path(__file__).parents[2] / "sample_checkpoints/dense_linear_rnn.safetensors")
    said = {finding.code: finding.message for finding in report.layers[0].findings}
    assert "one step of independent signs at 0.001 on A" in said["MC204"]
    assert "signs in concert move the output up to 25.5 times as far" in said["MC301"]
    assert "one Adam step of independent signs" in report.sentence
    page = " ".join(to_text(report, width=120).split())
    assert "signs in concert reach at most √(Adam left) times that" in page


def test_an_estimated_diagonality_carries_its_error(monkeypatch: pytest.MonkeyPatch) -> None:
    state = drawn(12, 0.9)
    exact = layer(state, horizon=30).hessian
    monkeypatch.setattr(dense_hessian_horizon, "GRAM_ORDER", 1)
    monkeypatch.setattr(products, "FORMED_ORDER", 1)
    report = inspect(state, horizon=30)
    found = report.layers[0].hessian
    assert exact is not None
    assert found is not None
    assert exact.diagonality_error == 0 < found.diagonality_error
    assert abs(found.diagonality - exact.diagonality) < 5 * found.diagonality_error
    monkeypatch.setattr(terminal_structure, "LEAST_ERROR", 0.0)
    assert " ± " in to_text(report, width=120)


def test_what_has_none_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    state = drawn(4, 0.9)
    assert "no C" in str(layer({"A": state["A"], "B": state["B"]}).hessian_reason)
    assert "diverges" in str(layer(drawn(4, 1.1)).hessian_reason)
    assert "leaves the range" in str(layer(drawn(4, 9.0), horizon=999).hessian_reason)
    assert "is zero" in str(layer(state | {"B": np.zeros((4, 1))}).hessian_reason)
    monkeypatch.setattr(dense_hessian, "BUDGET", 1e3)
    for horizon in (None, 30):
        reason = layer(state, horizon=horizon).hessian_reason
        assert "takes long" in str(reason)
    monkeypatch.setattr(dense_hessian, "LARGEST", 3)
    assert "order of 4²" in str(layer(state).hessian_reason)
