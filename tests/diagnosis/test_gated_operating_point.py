"""Where gated layers of a checkpoint work, whoever stored them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from diagnosis.build import SAMPLES, only
from numpy.typing import NDArray

from memcurse_cli import inspect
from memcurse_cli.reports.console import text_of
from memcurse_cli.reports.terminal.report import render
from memcurse_cli.schema.layer import GatedOperatingPoint
from memcurse_cli.theory import mean_field

Floats = NDArray[np.float64]
SAMPLE = SAMPLES / "gru.safetensors"
SIZE, INPUTS = 24, 3


def torch_layer(kind: str, size: int = SIZE) -> dict[str, Floats]:
    """Weights and biases as torch draws them."""
    random, rows = np.random.default_rng(0), {"gru": 3, "lstm": 4}[kind] * size
    shapes = {
        "weight_ih_l0": (rows, INPUTS),
        "weight_hh_l0": (rows, size),
        "bias_ih_l0": (rows,),
        "bias_hh_l0": (rows,),
    }
    bound = 1 / np.sqrt(size)
    return {name: random.uniform(-bound, bound, size=shape) for name, shape in shapes.items()}


def point(state: dict[str, Floats] | Path, **options: Any) -> GatedOperatingPoint:
    return only(state, **{"spectra": True, "simulate": False} | options).operating_point


@pytest.mark.parametrize("kind", ["gru", "lstm"])
def test_a_driven_layer_as_torch_makes_it_works_where_mean_field_theory_has_it(kind: str) -> None:
    layer = only(torch_layer(kind, 256), input_scale=20.0, spectra=True)
    theory, run = layer.operating_point.predicted, layer.simulation
    moment = run.second_moment
    assert theory.second_moment == pytest.approx(moment.value, abs=3 * moment.error)
    # Weights that stay lengthen the memory of a change by a quarter at most here.
    assert 0.95 < np.log(theory.growth) / (2 * run.exponent.value) < 1.25


def test_a_reset_gate_before_the_matrix_is_another_network() -> None:
    """Keras's ``reset_after`` shows in the two rows of its bias."""
    random = np.random.default_rng(0)
    state = {
        "rnn/kernel": random.uniform(-0.5, 0.5, (INPUTS, 3 * SIZE)),
        "rnn/recurrent_kernel": random.uniform(-0.5, 0.5, (SIZE, 3 * SIZE)),
        "rnn/bias": random.uniform(-0.5, 0.5, (2, 3 * SIZE)),
    }
    after, before = point(state), point(state | {"rnn/bias": state["rnn/bias"].sum(axis=0)})
    assert before.singular_value_variance is None
    assert after.singular_value_variance is not None
    assert before.predicted.growth != after.predicted.growth


def test_a_trained_layer_is_not_a_random_one() -> None:
    layer = only(SAMPLE, spectra=True)
    assert (
        np.exp(2 * layer.simulation.exponent.value) > 1.3 * layer.operating_point.predicted.growth
    )
    page = text_of(render(inspect(SAMPLE, spectra=True)), None, width=80)
    assert "State at work" in page
    assert "which is the one to go by" in " ".join(page.split())


def test_only_spectra_take_it_and_what_is_missing_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    assert point(SAMPLE, spectra=False) is None
    projected = {
        "weight_ih_l0": np.zeros((4 * SIZE, INPUTS)),
        "weight_hh_l0": np.zeros((4 * SIZE, 2)),
        "weight_hr_l0": np.zeros((2, SIZE)),
    }
    assert point(projected) is None
    assert point({"weight_hh_l0": torch_layer("gru")["weight_hh_l0"]}) is None  # no inputs
    monkeypatch.setattr(mean_field, "gated_mean_field", lambda *_: None)
    found = point(torch_layer("gru"))
    assert found.predicted is None
    assert "no fixed point" in found.reason
