"""What a step moves: covariances, perturbed matrices and torch's own Adam."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from theory.matrices import eigenbasis

from memcurse_cli.theory.autocorrelation import Autocorrelation
from memcurse_cli.theory.dense.bases import Eigenbasis
from memcurse_cli.theory.moments import Moments, moments
from memcurse_cli.theory.sensitivity import (
    ParameterJacobian,
    compensation,
    dense_shift,
    diagonal_shift,
    effective_steps,
    group_sensitivity,
    parameter_sensitivity,
)

COLOURED = Autocorrelation((0.5, 1.0), (0.0, 0.9))


def layer(size: int) -> tuple[NDArray[np.complex128], NDArray[np.complex128], ParameterJacobian]:
    """Random eigenvalues and gains, and a parameter each."""
    random = np.random.default_rng(0)
    logs = -random.uniform(1e-3, 2, size) + 1j * random.uniform(-3, 3, size)
    gain, rates, slopes = random.normal(size=(3, size)) + 1j * random.normal(size=(3, size))
    index = np.arange(size)
    return logs, gain, ParameterJacobian(size, index, index, rates, slopes)


def test_a_single_parameter_is_the_quadratic_form_of_its_covariance() -> None:
    logs, gain, jacobian = layer(30)
    moment = moments(logs, COLOURED)
    moved = (jacobian.eigenvalue_derivative, jacobian.log_gain_derivative)
    found, relative = parameter_sensitivity(moment, gain, *moved)
    cross = moment.cross_moment
    covariance = np.array([[moment.sensitivity, cross], [cross.conj(), moment.second_moment]])
    direction = np.exp(gain) * np.array(moved)
    expected = np.einsum("in,ijn,jn->n", direction, covariance, direction.conj()).real
    np.testing.assert_allclose(found, expected, rtol=1e-12)
    held = np.abs(np.exp(gain)) ** 2 * moment.second_moment
    np.testing.assert_allclose(relative, expected / held, rtol=1e-12)


def test_a_tied_parameter_adds_squares_above_and_below() -> None:
    logs, gain, single = layer(6)
    weight = np.array([1.0, 2.0, 0.5, 0.0, 3.0, 1.0])
    moment = moments(logs, COLOURED)
    each, _ = parameter_sensitivity(
        moment, gain, single.eigenvalue_derivative, single.log_gain_derivative
    )
    held = np.exp(2 * gain.real) * moment.second_moment
    scalar = np.array([0, 1, 0, 1, 1, 0])
    tied = ParameterJacobian(
        2, scalar, single.eigenvalue, single.eigenvalue_derivative, single.log_gain_derivative
    )
    found = group_sensitivity(moment, gain, tied, weight)
    for k in range(2):
        own = scalar == k
        expected = np.sum((weight * each)[own])
        assert found.sensitivity[k] == pytest.approx(expected, rel=1e-13)
        relative = expected / np.sum((weight * held)[own])
        assert found.relative_sensitivity[k] == pytest.approx(relative, rel=1e-13)


@pytest.mark.parametrize("scalar", [[0, 1, 2], [0, 0, 1]])
def test_a_divergent_eigenvalue_makes_its_parameter_infinite_and_no_other(
    scalar: list[int],
) -> None:
    logs = np.array([-0.1 + 0j, 0.1 + 0j, -0.2 + 0j])
    index, rate = np.arange(3), np.array([1.0, 0.0, 1.0], complex)
    group = ParameterJacobian(max(scalar) + 1, np.array(scalar), index, rate, np.ones(3, complex))
    gain = np.zeros(3, complex)
    for value in group_sensitivity(moments(logs), gain, group):
        assert np.isposinf(value[scalar[1]])
        assert np.isfinite(np.delete(value, scalar[1])).all()
    driven = np.array([1.0, 0.0, 1.0])
    for value in group_sensitivity(moments(logs), gain, group, driven):
        assert np.isfinite(value).all()


def test_a_scalar_that_moves_nothing_is_not_sensitive() -> None:
    group = ParameterJacobian(3, np.array([1]), np.array([0]), np.ones(1, complex))
    found = group_sensitivity(moments(np.array([-1 + 0j])), np.zeros(1, complex), group)
    assert found.sensitivity[[0, 2]].tolist() == [0, 0]
    assert found.relative_sensitivity[[0, 2]].tolist() == [0, 0]
    assert found.relative_sensitivity[1] > 0
    # λ = -1 and a constant input: the state is 0 after two steps, its derivative is not.
    moment = Moments(np.zeros(1), np.zeros(1, complex), np.ones(1))
    none, one = np.zeros(1, complex), np.ones(1, complex)
    assert np.isposinf(parameter_sensitivity(moment, none, one).relative_sensitivity[0])
    assert parameter_sensitivity(moment, none, none, one).relative_sensitivity[0] == 0


STEP = 1e-7


def moved(matrix: np.ndarray, basis: Eigenbasis, change: np.ndarray) -> np.ndarray:
    """|dλ| per unit of a change, by central differences of the spectrum."""
    reference = np.exp(basis.logs)

    def nearest(sign: int) -> np.ndarray:
        spectrum = np.linalg.eigvals(matrix + sign * STEP * change)
        return spectrum[np.abs(spectrum[None] - reference[:, None]).argmin(axis=1)]

    return np.abs(nearest(1) - nearest(-1)) / (2 * STEP)


def test_independent_signs_by_every_choice_of_signs() -> None:
    matrix = np.random.default_rng(0).standard_normal((3, 3)) / 2
    basis = eigenbasis(matrix)
    shifts = [
        moved(matrix, basis, np.array(signs, float).reshape(3, 3))
        for signs in itertools.product((-1, 1), repeat=9)
    ]
    shift = dense_shift(basis)
    root_mean_square = np.sqrt(np.mean(np.square(shifts), axis=0))
    np.testing.assert_allclose(root_mean_square, shift.independent, rtol=1e-6)
    worst = np.max(shifts, axis=0)
    assert np.all(worst <= shift.concerted * (1 + 1e-6))
    real = np.abs(np.exp(basis.logs).imag) < 1e-12
    np.testing.assert_allclose(worst[real], shift.concerted[real], rtol=1e-6)


def test_real_and_imaginary_parts_move_an_eigenvalue_by_root_two_and_by_two() -> None:
    index = np.arange(3)
    groups = [
        ParameterJacobian(3, index, index, np.full(3, derivative)) for derivative in (1 + 0j, 1j)
    ]
    shift = diagonal_shift(3, groups)
    np.testing.assert_allclose(shift.independent, np.sqrt(2))
    np.testing.assert_allclose(shift.concerted, 2)
    np.testing.assert_allclose(shift.aligned(0.5), 2**0.75)


def test_a_matrix_without_eigenvectors_has_no_bound() -> None:
    basis = Eigenbasis(np.full(2, np.log(0.5) + 0j), np.array([[1, 1], [0, 0]], complex))
    assert np.all(np.isinf(dense_shift(basis).concerted))


@pytest.mark.parametrize("steps", [1, 7, 300])
def test_an_update_without_momentum_is_the_effective_step_times_the_gradient(steps: int) -> None:
    """torch's own Adam with β₁ = 0 moves ω by exactly that."""
    random = np.random.default_rng(0)
    weight = torch.nn.Parameter(torch.zeros(5, dtype=torch.float64))
    optimizer = torch.optim.Adam([weight], lr=0.01, betas=(0.0, 0.99), eps=1e-6)
    for _ in range(steps):
        before = weight.detach().clone()
        weight.grad = torch.tensor(random.normal(size=5))
        optimizer.step()
    state = optimizer.state[weight]
    found = effective_steps(
        state["exp_avg_sq"].numpy(), 0.01, float(state["step"]), beta2=0.99, epsilon=1e-6
    )
    moved = (before - weight.detach()).numpy()
    np.testing.assert_allclose(found * weight.grad.numpy(), moved, rtol=1e-12)


def test_gradients_as_large_as_the_root_of_the_curvature_are_compensated_in_full() -> None:
    curvature = np.logspace(-3, 5, 40)
    found = compensation(effective_steps(0.3 * curvature, 1e-3, epsilon=0.0), curvature)
    assert found.correlation == pytest.approx(-1)
    assert found.spread_before == pytest.approx(np.std(np.log10(curvature)) / 2)
    assert found.spread_after == pytest.approx(0, abs=1e-12)


def test_too_few_or_equal_elements_say_nothing() -> None:
    steps, sensitivity = np.linspace(1, 2, 8), np.linspace(1, 3, 8)
    assert compensation(steps, sensitivity) is not None
    assert compensation(steps[:7], sensitivity[:7]) is None
    assert compensation(steps, np.ones(8)) is None
    assert compensation(np.ones(8), sensitivity) is None
    assert compensation(steps, np.where(np.arange(8) == 3, np.inf, sensitivity)) is None
    assert compensation(steps, np.where(np.arange(8) == 3, 0.0, sensitivity)) is None
