"""Short training runs: they learn, they repeat, and they say so when they diverge."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from memcurse_cli.errors import UsageError
from memcurse_cli.experiments.settings import RECIPES, NetworkName, Precision, TrainingSettings
from memcurse_cli.experiments.training import (
    NETWORKS,
    DivergenceError,
    evaluate,
    initialise,
    teacher_power,
    train,
)

TINY = TrainingSettings(
    network=NetworkName.LRU,
    units=6,
    teacher_units=2,
    modulus=0.8,
    initial_modulus=0.8,
    horizon=12,
    steps=120,
    batch=8,
    learning_rate=1e-2,
    seed=3,
    dtype=Precision.FLOAT32,
)


@pytest.mark.parametrize("network", NetworkName)
def test_training_lowers_the_loss(network):
    trained = train(replace(TINY, network=network))
    assert trained.loss_after < 0.7 * trained.loss_before
    assert {values.dtype for values in trained.parameters.values()} == {np.dtype(np.float32)}


def test_another_seed_is_another_student():
    first, other = initialise(TINY), initialise(replace(TINY, seed=4))
    assert not np.allclose(first["nu_log"], other["nu_log"])


def test_double_precision_is_double_throughout_and_every_step_is_counted_once():
    settings, seen = replace(TINY, steps=57, dtype=Precision.FLOAT64), []
    trained = train(settings, lambda done, loss: seen.append((done, np.isfinite(loss))))
    before = initialise(settings)
    for name, values in trained.parameters.items():
        assert values.dtype == np.float64
        # Parameters that had passed through single precision would have its spacing.
        assert (values != values.astype(np.float32)).any(), name
        assert (values != before[name]).any(), name
    assert seen == [(50, True), (57, True)]


def test_silent_student_has_the_power_of_the_teacher():
    """The exact expectation against the average over the evaluation sequences."""
    settings = replace(TINY, network=NetworkName.COMPLEX_DIAGONAL_RNN)
    silent = {name: 0 * values for name, values in initialise(settings).items()}
    assert evaluate(settings, silent) == pytest.approx(teacher_power(settings), rel=0.05)


def test_divergence_is_an_error_with_advice():
    with pytest.raises(DivergenceError, match=r"--learning-rate 1e\+20: training diverged") as seen:
        train(replace(TINY, learning_rate=1e20, steps=5))
    assert "smaller" in seen.value.remedy


@pytest.mark.parametrize(
    "change",
    [
        {"modulus": 1.0},
        {"modulus": -0.1},
        {"modulus": float("nan")},
        {"initial_modulus": 1.5},
        {"learning_rate": 0.0},
        {"learning_rate": float("inf")},
        {"learning_rate": float("nan")},
    ],
)
def test_settings_outside_their_domain_are_refused(change):
    with pytest.raises(UsageError):
        replace(TINY, **change)


def test_settings_survive_the_metadata():
    settings = replace(TINY, learning_rate=0.1 + 0.2)
    assert TrainingSettings.from_metadata(settings.metadata()) == settings


def test_every_network_has_a_recipe_and_an_implementation():
    assert set(RECIPES) == set(NETWORKS) == set(NetworkName)
