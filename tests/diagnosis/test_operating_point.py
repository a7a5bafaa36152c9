"""The operating point of a checkpoint's network against the network itself."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.typing import NDArray

from memcurse_cli import inspect
from memcurse_cli.schema.report import LayerReport

Floats = NDArray[np.float64]
SIZE = 400


def network(gain: float) -> dict[str, Floats]:
    generator = np.random.default_rng(1)
    return {
        "weight_hh_l0": generator.normal(size=(SIZE, SIZE)) * gain / math.sqrt(SIZE),
        "weight_ih_l0": generator.normal(size=(SIZE, 6)) / math.sqrt(6),
        "bias_ih_l0": 0.2 * generator.normal(size=SIZE),
        "bias_hh_l0": np.full(SIZE, 0.3),
    }


def layer(state: dict[str, Floats], **options: object) -> LayerReport:
    (only,) = inspect(state, **options).layers  # type: ignore[arg-type]  # options of every type
    return only


def message(found: LayerReport) -> str:
    return next(one.message for one in found.findings if one.code == "MC502")


@pytest.mark.parametrize("activation", ["tanh", "relu"])
def test_it_is_where_the_network_works(activation: str) -> None:
    gain = 1.0 if activation == "relu" else 1.6
    state, generator = network(gain), np.random.default_rng(2)
    bias = state["bias_ih_l0"] + state["bias_hh_l0"]
    h, slopes, moments = np.zeros(SIZE), [], []
    for step in range(300):
        u = state["weight_hh_l0"] @ h + state["weight_ih_l0"] @ generator.normal(size=6) + bias
        h = np.tanh(u) if activation == "tanh" else np.maximum(u, 0)
        slope = 1 - h**2 if activation == "tanh" else (u > 0).astype(float)
        if step >= 100:
            slopes.append(np.mean(slope**2))
            moments.append(np.mean(h**2))
    found = layer(state, assume={"activation": activation})
    point = found.dense.operating_point
    assert point.slope == pytest.approx(math.sqrt(np.mean(slopes)), rel=0.05)
    assert point.second_moment == pytest.approx(np.mean(moments), rel=0.1)
    largest = found.eigenvalues.modulus.max
    assert largest is not None
    assert point.spectral_radius == pytest.approx(point.slope * largest, rel=1e-12)
    assert point.time_constant is not None
    assert f"{point.slope:.3g}" in message(found)


def test_no_input_and_no_bias_is_the_origin() -> None:
    found = layer({"weight_hh_l0": 0.5 * np.eye(4), "weight_ih_l0": np.zeros((4, 2))})
    assert found.dense.operating_point.slope == pytest.approx(1)
    assert found.dense.operating_point.spectral_radius == pytest.approx(0.5)


def test_where_there_is_none_the_slope_stays_one() -> None:
    state = network(3.0)
    exploding = layer(state, assume={"activation": "relu"})
    assert exploding.dense.operating_point is None
    assert "mean field" not in message(exploding)
    linear = layer(state, assume={"activation": "linear"})
    assert linear.dense.operating_point is None


def simulated(state: dict[str, Floats], activation: str, draws: int = 3) -> tuple[float, float]:
    """E h² of a unit and √(E‖dh/dW‖² / E‖h‖²) by tangents along random signs, after 100 steps."""
    generator, samples = np.random.default_rng(3), 100
    hidden, readin = state["weight_hh_l0"], state["weight_ih_l0"]
    bias = state["bias_ih_l0"] + state["bias_hh_l0"]
    signs = generator.choice([-1.0, 1.0], size=(draws, *hidden.shape))
    h, d, moments, tangents = np.zeros((samples, len(hidden))), np.zeros(1), [], []
    for step in range(160):
        u = h @ hidden.T + generator.normal(size=(samples, readin.shape[1])) @ readin.T + bias
        slope = 1 - np.tanh(u) ** 2 if activation == "tanh" else (u > 0).astype(float)
        moved = np.einsum("kij,sj->ksi", signs, h)
        d = slope * (moved + (d @ hidden.T if step else 0.0))
        h = np.tanh(u) if activation == "tanh" else np.maximum(u, 0)
        if step >= 100:
            moments.append(np.mean(h**2))
            tangents.append(np.mean(np.sum(d**2, axis=2)))
    return float(np.mean(moments)), math.sqrt(np.mean(tangents) / np.mean(moments) / len(hidden))


@pytest.mark.parametrize(
    ("activation", "gain", "within", "horizon"),
    [("tanh", 1.2, 0.05, None), ("tanh", 0.9, 0.05, 160), ("relu", 0.9, 0.1, None)],
)
def test_linear_figures_are_those_at_the_operating_point(
    activation: str, gain: float, within: float, horizon: int | None
) -> None:
    generator = np.random.default_rng(0)
    state = {
        "weight_hh_l0": generator.normal(size=(64, 64)) * gain / 8,
        "weight_ih_l0": generator.normal(size=(64, 8)) / math.sqrt(8),
        "bias_ih_l0": np.zeros(64),
        "bias_hh_l0": np.zeros(64),
    }
    found = layer(state, assume={"activation": activation}, horizon=horizon)
    moment, root = simulated(state, activation)
    assert found.dense.operating_point is not None
    assert found.parameters[0].step_effect == pytest.approx(1e-3 * root, rel=within)
    assert found.dense.sensitivity == pytest.approx(64 * moment * root**2, rel=4 * within)
    assert found.state.second_moment.max is None  # of one unit it is not known
    assert found.dense.memory is not None


def beyond(gain: float) -> list[dict[str, Floats]]:
    generator = np.random.default_rng(0)
    hidden = generator.normal(size=(24, 24)) * gain / math.sqrt(24)
    factors = {"m": 3 * gain * np.ones((24, 1)), "n": np.ones((24, 1))}
    sides = {"wi": np.ones((2, 24)), "wo": np.ones((24, 1))}
    return [
        network(gain),
        {"weight_hh_l0": hidden, "weight_ih_l0": np.eye(24)},
        {"W_rec": 3 * hidden, "W_in": np.ones((24, 2)), "W_out": np.ones((2, 24))},
        {"recurrent_scale": np.linspace(0.5, gain, 24), "kernel": np.ones((2, 24))},
        factors | sides,
    ]


@pytest.mark.parametrize("place", range(5))
@pytest.mark.parametrize("horizon", [None, 100])
def test_no_linear_figure_of_a_state_that_grows_until_it_bends(
    place: int, horizon: int | None
) -> None:
    found = layer(beyond(3.0)[place], horizon=horizon)
    assert found.eigenvalues.unstable
    assert found.state.second_moment.max is found.state.second_moment.p50 is None
    assert found.state.second_moment.divergent == 0
    for group in found.parameters:
        assert group.step_effect is group.max_lr is group.relative_sensitivity.max is None
        assert group.rounding.float16 is None
    assert found.hessian is None
    assert found.verdict == "watch"
    for reason in (found.hessian_reason, found.usable_rate.reason):
        assert "no linear figure holds" in reason
    if found.dense is not None:
        assert found.dense.reason == found.hessian_reason
        assert found.dense.sensitivity is found.dense.memory is None
    unknown = next(finding for finding in found.findings if finding.code == "MC206")
    assert "no linear figure holds" in unknown.message
    codes = {finding.code for finding in found.findings}
    assert {"MC101", "MC206"} <= codes
    assert not codes & {"MC201", "MC204", "MC205"}
    assert not any("--horizon" in one.advice for one in found.findings)
