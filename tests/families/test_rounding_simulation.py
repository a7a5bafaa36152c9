"""Parameters that are rounded for real, and the state that a simulation then finds.

The rounding error of one value is what it is, and so is the change of its state: every unit is held
within a factor of 3, the median over units within 10 %, and the mean within its Monte Carlo error.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from families.derivatives import read_found
from scipy.signal import lfilter
from theory.test_rounding import TYPES

import memcurse_cli
from memcurse_cli.families.recurrence import Recurrence
from memcurse_cli.theory.autocorrelation import WHITE
from memcurse_cli.theory.moments import moments
from memcurse_cli.theory.rounding import Dtype, rounding_error, rounding_steps, state_change
from memcurse_cli.theory.sensitivity import group_sensitivity

Tensors = dict[str, np.ndarray]
STEPS, WARM_UP = 1500, 500


def store_as(tensor: np.ndarray, dtype: Dtype) -> np.ndarray:
    if dtype == "int8":
        scale = np.abs(tensor).max() / 127
        return np.rint(tensor / scale).astype(np.int8) * scale
    return tensor.astype(TYPES[dtype]).astype(np.float64)


def simulate(layer: Recurrence, inputs: np.ndarray) -> np.ndarray:
    """(n, steps) the state of ``h = λ h + γ x``, every eigenvalue with its own white input."""
    eigenvalues, gains = np.exp(layer.log_eigenvalues), np.exp(layer.log_gain)
    states = [
        lfilter([gain], [1, -eigenvalue], x)
        for eigenvalue, gain, x in zip(eigenvalues, gains, inputs, strict=True)
    ]
    return np.array(states)[:, WARM_UP:]


def lru(units: int) -> Tensors:
    random = np.random.default_rng(3)
    return {
        "nu_log": np.log(random.uniform(0.01, 0.3, units)),
        "theta_log": np.log(random.uniform(0.01, 0.3, units)),
        "gamma_log": np.log(random.uniform(0.1, 0.8, units)),
    }


def mamba(channels: int) -> Tensors:
    """The recurrent tensors of a Mamba layer; dt_bias moves all the states of a channel."""
    random = np.random.default_rng(4)
    return {
        "mixer.A_log": np.log(np.arange(1, 5) + random.uniform(0, 0.5, (channels, 4))),
        "mixer.dt_proj.bias": np.log(np.expm1(random.uniform(0.01, 0.1, channels))),
    }


# One type per layer whose errors are small against 1, as first order asks, and not lost in noise.
CASES = [
    (lru, "nu_log", "float8_e4m3fn"),
    (lru, "nu_log", "bfloat16"),
    (lru, "gamma_log", "float8_e5m2"),
    (mamba, "A_log", "bfloat16"),
    (mamba, "dt_proj.bias", "int8"),
]


@pytest.mark.parametrize(("network", "parameter", "dtype"), CASES)
def test_a_diagonal_state_moves_as_predicted(
    network: Callable[[int], Tensors], parameter: str, dtype: Dtype
) -> None:
    tensors = network(500)
    layer = read_found(tensors)
    (group,) = [one for one in layer.parameters if one.tensor.endswith(parameter)]
    kappa = group_sensitivity(
        moments(layer.log_eigenvalues), layer.log_gain, group
    ).relative_sensitivity
    predicted = rounding_error(kappa, rounding_steps(group.values, dtype))
    assert np.quantile(predicted, 0.99) < 0.5

    rounded = tensors | {group.tensor: store_as(tensors[group.tensor], dtype)}
    inputs = np.random.default_rng(5).normal(size=(layer.size, STEPS))
    states = simulate(layer, inputs)
    moved = simulate(read_found(rounded), inputs) - states

    def per_scalar(values: np.ndarray) -> np.ndarray:
        power = np.mean(np.abs(values) ** 2, axis=1)
        return np.bincount(group.scalar, power[group.eigenvalue], group.size)

    measured = per_scalar(moved) / per_scalar(states)
    moves = predicted > 1e-4 * predicted.max()  # int8 holds the largest value but for a last bit
    assert np.count_nonzero(moves) > 0.99 * predicted.size
    assert (measured[~moves] < 1e-6 * measured.max()).all()
    ratio = measured[moves] / predicted[moves] ** 2
    assert 1 / 9 < ratio.min() <= ratio.max() < 9
    assert abs(np.sqrt(np.median(ratio)) - 1) < 0.1
    error = ratio.std() / np.sqrt(ratio.size)
    assert error < 0.1
    assert abs(ratio.mean() - 1) < 4 * error + 0.05 * (dtype != "float32")


@pytest.mark.parametrize("network", [lru, mamba])
@pytest.mark.parametrize("dtype", ["bfloat16", "int8", "float8_e4m3fn", "float8_e5m2"])
@pytest.mark.parametrize("horizon", [None, 300])
def test_a_large_change_is_that_of_the_layer_that_is_read_again(
    network: Callable[[int], Tensors], dtype: Dtype, horizon: int | None
) -> None:
    """The p99 of every group, beyond first order too, from λ and γ of the rounded tensor."""
    tensors = network(200)
    layer = read_found(tensors)
    (found,) = memcurse_cli.inspect(tensors, horizon=horizon).layers
    held = moments(layer.log_eigenvalues, WHITE, horizon).second_moment
    for group, told in zip(layer.parameters, found.parameters, strict=True):
        again = read_found(tensors | {group.tensor: store_as(tensors[group.tensor], dtype)})
        change = state_change(
            layer.log_eigenvalues,
            again.log_eigenvalues,
            again.log_gain - layer.log_gain,
            WHITE,
            horizon,
            "last",
        )
        weight = np.exp(2 * layer.log_gain.real) if group.scalar.size > group.size else held**0
        moved, power = (
            np.bincount(group.scalar, (weight * values)[group.eigenvalue], group.size)
            for values in (change, held)
        )
        expected = np.quantile(np.sqrt(moved / power), 0.99)
        assert getattr(told.rounding, dtype) == pytest.approx(expected, rel=0.01, abs=1e-6)
