"""The teacher's spectrum, its response, and the distributions that it is drawn from."""

from __future__ import annotations

import numpy as np
import pytest

from memcurse_cli.experiments.teacher import (
    dense_transition,
    draw_teacher,
    ring_eigenvalues,
    truncated_normal,
)


@pytest.mark.parametrize("modulus", [0.0, 0.5, 0.99, 0.999])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_moduli_are_mapped_and_angles_kept(modulus, seed):
    raw = np.random.default_rng(seed).standard_normal((10, 10)) / np.sqrt(10)
    before = np.linalg.eigvals(raw)
    after = np.linalg.eigvals(dense_transition(np.random.default_rng(seed), 10, modulus))
    expected = modulus + (1 - modulus) * np.tanh(np.abs(before))
    wanted = expected * np.exp(1j * np.angle(before))
    nearest = np.abs(after[:, None] - wanted).argmin(axis=0)
    assert sorted(nearest) == list(range(10))
    np.testing.assert_allclose(after[nearest], wanted, atol=1e-12)


def test_teacher_is_stable_and_long_lived():
    moduli = np.abs(np.linalg.eigvals(draw_teacher(10, 0.99, seed=0).A))
    assert moduli.min() >= 0.99 - 1e-12
    assert moduli.max() < 1


def test_kernel_is_the_response_to_an_impulse():
    teacher = draw_teacher(4, 0.9, seed=3)
    expected = [
        (teacher.C @ np.linalg.matrix_power(teacher.A, lag) @ teacher.B).item() for lag in range(9)
    ]
    expected[0] += teacher.D.item()
    np.testing.assert_allclose(teacher.kernel(9), expected, rtol=1e-12)


def test_same_seed_same_teacher():
    first, again, other = (draw_teacher(10, 0.99, seed).A for seed in (7, 7, 8))
    np.testing.assert_array_equal(first, again)
    assert not np.allclose(first, other)


def test_ring_is_uniform_by_area():
    drawn = ring_eigenvalues(np.random.default_rng(0), 20_000, 0.8)
    assert np.abs(drawn).min() >= 0.8
    assert np.abs(drawn).max() < 1
    assert (drawn.imag >= 0).all()
    # |λ|² is uniform on [ν², 1]: mean (1 + ν²)/2, standard error (1 - ν²)/√(12 n).
    error = 0.36 / np.sqrt(12 * drawn.size)
    assert np.mean(np.abs(drawn) ** 2) == pytest.approx(0.82, abs=4 * error)


def test_truncated_normal_has_variance_one_over_fan_in():
    drawn = truncated_normal(np.random.default_rng(0), (40_000,), fan_in=4)
    assert np.var(drawn) == pytest.approx(0.25, rel=0.02)
    assert np.abs(drawn).max() <= 2 / 0.8796 / 2
