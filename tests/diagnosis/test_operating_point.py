"""The operating point of a checkpoint's network against the network itself."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.typing import NDArray

from memcurse_cli import inspect
from memcurse_cli.diagnosis.report import LayerReport

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
    assert found.dense is not None
    point = found.dense.operating_point
    assert point is not None
    assert point.slope == pytest.approx(math.sqrt(np.mean(slopes)), rel=0.05)
    assert point.second_moment == pytest.approx(np.mean(moments), rel=0.1)
    largest = found.eigenvalues.modulus.max
    assert largest is not None
    assert point.spectral_radius == pytest.approx(point.slope * largest, rel=1e-12)
    assert point.time_constant is not None
    assert f"{point.slope:.3g}" in message(found)


def test_no_input_and_no_bias_is_the_origin() -> None:
    found = layer({"weight_hh_l0": 0.5 * np.eye(4), "weight_ih_l0": np.zeros((4, 2))})
    assert found.dense is not None
    assert found.dense.operating_point is not None
    assert found.dense.operating_point.slope == pytest.approx(1)
    assert found.dense.operating_point.spectral_radius == pytest.approx(0.5)


def test_where_there_is_none_the_slope_stays_one() -> None:
    state = network(3.0)
    exploding = layer(state, assume={"activation": "relu"})
    assert exploding.dense is not None
    assert exploding.dense.operating_point is None
    assert "mean field" not in message(exploding)
    linear = layer(state, assume={"activation": "linear"})
    assert linear.dense is not None
    assert linear.dense.operating_point is None
