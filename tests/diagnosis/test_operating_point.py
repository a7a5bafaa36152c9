"""The operating point of a checkpoint's network against the network itself."""

from __future__ import annotations

import math

import numpy as np
import pytest
from diagnosis.build import codes, finding, only
from numpy.typing import NDArray

Floats = NDArray[np.float64]
SIZE = 100


def network(gain: float) -> dict[str, Floats]:
    generator = np.random.default_rng(1)
    return {
        "weight_hh_l0": generator.normal(size=(SIZE, SIZE)) * gain / math.sqrt(SIZE),
        "weight_ih_l0": generator.normal(size=(SIZE, 6)) / math.sqrt(6),
        "bias_ih_l0": 0.2 * generator.normal(size=SIZE),
        "bias_hh_l0": np.full(SIZE, 0.3),
    }


def activated(u: Floats, activation: str) -> tuple[Floats, Floats]:
    """The activation and its slope."""
    if activation == "tanh":
        return np.tanh(u), 1 - np.tanh(u) ** 2
    return np.maximum(u, 0), (u > 0).astype(float)


def test_without_input_it_is_the_origin_and_without_a_bound_there_is_none() -> None:
    still = only({"weight_hh_l0": 0.5 * np.eye(4), "weight_ih_l0": np.zeros((4, 2))})
    assert still.dense.operating_point.slope == pytest.approx(1)
    assert still.dense.operating_point.spectral_radius == pytest.approx(0.5)
    exploding = only(network(3.0), assume={"activation": "relu"})
    assert exploding.dense.operating_point is None
    assert "mean field" not in finding(exploding, "MC502").message
    linear = only(network(3.0), assume={"activation": "linear"})
    assert linear.dense.operating_point is None


def simulated(
    state: dict[str, Floats], activation: str, draws: int = 3
) -> tuple[float, float, float]:
    """E h² of a unit, √(E slope²), and √(E‖dh/dW‖² / E‖h‖²) by tangents along random signs."""
    generator, samples = np.random.default_rng(3), 100
    hidden, readin = state["weight_hh_l0"], state["weight_ih_l0"]
    bias = state["bias_ih_l0"] + state["bias_hh_l0"]
    signs = generator.choice([-1.0, 1.0], size=(draws, *hidden.shape))
    h, d, found = np.zeros((samples, len(hidden))), np.zeros(1), []
    for step in range(160):
        u = h @ hidden.T + generator.normal(size=(samples, readin.shape[1])) @ readin.T + bias
        moved = np.einsum("kij,sj->ksi", signs, h)
        h, slope = activated(u, activation)
        d = slope * (moved + (d @ hidden.T if step else 0.0))
        if step >= 100:
            found.append([np.mean(h**2), np.mean(slope**2), np.mean(np.sum(d**2, axis=2))])
    moment, slope, tangent = np.mean(found, axis=0)
    return moment, math.sqrt(slope), math.sqrt(tangent / moment / len(hidden))


@pytest.mark.parametrize(
    ("activation", "gain", "within", "horizon"),
    [("tanh", 1.2, 0.05, None), ("relu", 0.9, 0.1, 160)],
)
def test_figures_are_those_at_the_operating_point(
    activation: str, gain: float, within: float, horizon: int | None
) -> None:
    state = network(gain)
    found = only(state, assume={"activation": activation}, horizon=horizon, simulate=False)
    moment, slope, root = simulated(state, activation)
    assert found.parameters[0].step_effect == pytest.approx(1e-3 * root, rel=within)
    assert found.dense.sensitivity == pytest.approx(SIZE * moment * root**2, rel=4 * within)
    assert found.state.second_moment.max is None  # of one unit it is not known
    assert found.dense.memory is not None
    point = found.dense.operating_point
    assert point.slope == pytest.approx(slope, rel=0.05)
    assert point.second_moment == pytest.approx(moment, rel=0.1)
    largest = found.eigenvalues.modulus.max
    assert point.spectral_radius == pytest.approx(point.slope * largest, rel=1e-12)
    assert point.time_constant is not None
    assert f"{point.slope:.3g}" in finding(found, "MC502").message
    at_work = {name: point.slope * state[f"weight_{name}_l0"] for name in ("hh", "ih")}
    arrays = {"A": at_work["hh"], "B": at_work["ih"], "C": np.ones((1, SIZE))}
    linear = only(arrays, horizon=horizon)
    for part in ("eigenvalue_part", "eigenvector_part", "cross_part"):
        theirs, ours = (getattr(one.dense.structure, part) for one in (linear, found))
        assert ours == (theirs and pytest.approx(theirs, rel=1e-4))  # of a horizon there are none


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
def test_no_linear_figure_of_a_state_that_grows_until_it_bends(place: int) -> None:
    found = only(beyond(3.0)[place], horizon=[math.inf, 100][place % 2])
    assert found.eigenvalues.unstable
    assert found.state.second_moment.max is found.state.second_moment.p50 is None
    assert found.state.second_moment.divergent == 0
    for group in found.parameters:
        assert group.step_effect is group.relative_sensitivity.max is None
        assert group.rounding.float16 is None
    assert found.hessian is None
    assert found.not_judged == found.usable_rate.reason
    assert "no linear figure holds" in found.hessian_reason
    if found.usable_rate.measured_on is not None:  # by its run
        assert found.usable_rate.rate is not None
    elif found.dense is None:
        assert found.verdict == "not_judged"
        assert found.usable_rate.reason == found.hessian_reason
    else:
        assert found.verdict == "not_judged"
        assert found.dense.reason == found.hessian_reason
        assert found.dense.sensitivity is found.dense.memory is None
    unknown = [one.message for one in found.findings if one.code == "MC206"]
    assert all("no linear figure holds" in message for message in unknown)
    assert {"MC101", "MC206"} <= codes(found)
    assert not codes(found) & {"MC201", "MC204", "MC205"}
    assert not any("--horizon" in one.advice for one in found.findings)
