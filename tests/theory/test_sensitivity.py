from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from numpy.typing import NDArray

from memcurse_cli.theory.autocorrelation import Autocorrelation
from memcurse_cli.theory.moments import Moments, moments
from memcurse_cli.theory.sensitivity import (
    group_sensitivity,
    parameter_sensitivity,
    relative_sensitivity,
)

COLOURED = Autocorrelation((0.5, 1.0), (0.0, 0.9))


@dataclass(frozen=True)
class Jacobian:
    size: int
    scalar: NDArray[np.intp]
    eigenvalue: NDArray[np.intp]
    eigenvalue_derivative: NDArray[np.complex128]
    log_gain_derivative: NDArray[np.complex128] | None = None


def layer(size: int) -> tuple[NDArray[np.complex128], NDArray[np.complex128], Jacobian]:
    """Random eigenvalues and gains, and a parameter each."""
    random = np.random.default_rng(0)
    logs = -random.uniform(1e-3, 2, size) + 1j * random.uniform(-3, 3, size)
    gain, rates, slopes = random.normal(size=(3, size)) + 1j * random.normal(size=(3, size))
    index = np.arange(size)
    return logs, gain, Jacobian(size, index, index, rates, slopes)


def test_a_single_parameter_is_the_quadratic_form_of_its_covariance() -> None:
    logs, gain, jacobian = layer(30)
    moment = moments(logs, COLOURED)
    assert jacobian.log_gain_derivative is not None
    moved = (jacobian.eigenvalue_derivative, jacobian.log_gain_derivative)
    found = parameter_sensitivity(moment, gain, *moved)
    relative = relative_sensitivity(moment, *moved)
    for i in range(30):
        covariance = np.array(
            [
                [moment.sensitivity[i], moment.cross_moment[i]],
                [moment.cross_moment[i].conj(), moment.second_moment[i]],
            ]
        )
        direction = np.exp(gain[i]) * np.array([moved[0][i], moved[1][i]])
        expected = (direction @ covariance @ direction.conj()).real
        assert found[i] == pytest.approx(expected, rel=1e-12)
        held = abs(np.exp(gain[i])) ** 2 * moment.second_moment[i]
        assert relative[i] == pytest.approx(expected / held, rel=1e-12)


def test_parameters_of_one_eigenvalue_each_in_any_order() -> None:
    logs, gain, jacobian = layer(12)
    moment = moments(logs, COLOURED)
    straight = group_sensitivity(moment, gain, jacobian)
    order = np.random.default_rng(1).permutation(12)
    assert jacobian.log_gain_derivative is not None
    shuffled = Jacobian(
        12,
        order,
        order,
        jacobian.eigenvalue_derivative[order],
        jacobian.log_gain_derivative[order],
    )
    for one, other in zip(straight, group_sensitivity(moment, gain, shuffled), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-13)


def test_a_tied_parameter_adds_squares_above_and_below() -> None:
    logs, gain, single = layer(6)
    weight = np.array([1.0, 2.0, 0.5, 0.0, 3.0, 1.0])
    moment = moments(logs, COLOURED)
    each = parameter_sensitivity(
        moment, gain, single.eigenvalue_derivative, single.log_gain_derivative
    )
    held = np.exp(2 * gain.real) * moment.second_moment
    scalar = np.array([0, 0, 0, 1, 1, 1])
    tied = Jacobian(
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
    group = Jacobian(max(scalar) + 1, np.array(scalar), index, rate, np.ones(3, complex))
    gain = np.zeros(3, complex)
    for value in group_sensitivity(moments(logs), gain, group):
        assert np.isposinf(value[scalar[1]])
        assert np.isfinite(np.delete(value, scalar[1])).all()
    driven = np.array([1.0, 0.0, 1.0])
    for value in group_sensitivity(moments(logs), gain, group, driven):
        assert np.isfinite(value).all()


def test_a_scalar_that_moves_nothing_is_not_sensitive() -> None:
    group = Jacobian(3, np.array([1]), np.array([0]), np.ones(1, complex))
    found = group_sensitivity(moments(np.array([-1 + 0j])), np.zeros(1, complex), group)
    assert found.sensitivity[[0, 2]].tolist() == [0, 0]
    assert found.relative_sensitivity[[0, 2]].tolist() == [0, 0]
    assert found.relative_sensitivity[1] > 0


def test_a_state_of_zero_that_is_moved_is_infinitely_sensitive() -> None:
    """λ = -1 and a constant input: the state is 0 after two steps, its derivative is not."""
    moment = Moments(np.zeros(1), np.zeros(1, complex), np.ones(1))
    assert np.isposinf(relative_sensitivity(moment, np.ones(1, complex))[0])
    assert relative_sensitivity(moment, np.zeros(1, complex), np.ones(1, complex))[0] == 0
