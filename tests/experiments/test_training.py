"""The teacher, and the training of students on it."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec.structs import replace

from memcurse_cli.experiments.settings import NetworkName, Precision, TrainingSettings
from memcurse_cli.experiments.training import (
    DenseLinearRNN,
    DivergenceError,
    dense_transition,
    evaluate,
    initialise,
    teacher_kernel,
    teacher_power,
    train,
)


@pytest.mark.parametrize("modulus", [0.0, 0.99])
def test_moduli_are_mapped_and_angles_kept(modulus):
    raw = np.random.default_rng(0).standard_normal((10, 10)) / np.sqrt(10)
    before = np.linalg.eigvals(raw)
    after = np.linalg.eigvals(dense_transition(np.random.default_rng(0), 10, modulus))
    expected = modulus + (1 - modulus) * np.tanh(np.abs(before))
    wanted = expected * np.exp(1j * np.angle(before))
    nearest = np.abs(after[:, None] - wanted).argmin(axis=0)
    assert sorted(nearest) == list(range(10))
    np.testing.assert_allclose(after[nearest], wanted, atol=1e-12)


def test_kernel_is_the_response_to_an_impulse():
    a, b, c, d = DenseLinearRNN().initialise(np.random.default_rng([3, 0]), 4, 0.9).values()
    expected = [(c @ np.linalg.matrix_power(a, lag) @ b).item() for lag in range(9)]
    expected[0] += d.item()
    np.testing.assert_allclose(teacher_kernel(4, 0.9, 3, 9), expected, rtol=1e-12)


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
