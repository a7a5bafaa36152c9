"""The whole line against nothing but impulse responses and finite differences.

The state's impulse response is K[k] = γ λ^k, so that for white input E|h|² = Σ_k |K[k]|² and
E|dh/dω|² = Σ_k |dK[k]/dω|². The derivative is a central difference of what the family reads from
a checkpoint whose stored scalar was changed; no formula of the theory takes part.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from diagnosis.build import only
from families.derivatives import read_found
from numpy.typing import NDArray

from memcurse_cli.schema.figures import Quantiles

State = dict[str, NDArray[np.float64]]
GENERATOR = np.random.default_rng(7)
UNITS, STEPS, STEP = 4, 4000, 1e-5


def lru() -> State:
    return {
        "nu_log": np.log(GENERATOR.uniform(0.01, 0.5, UNITS)),
        "theta_log": np.log(GENERATOR.uniform(0.1, 3, UNITS)),
        "gamma_log": GENERATOR.normal(size=UNITS) - 1,
        **{name: GENERATOR.normal(size=(UNITS, 2)) for name in ("B_re", "B_im")},
        **{name: GENERATOR.normal(size=(3, UNITS)) for name in ("C_re", "C_im")},
    }


def lstm() -> State:
    return {
        "weight_ih_l0": GENERATOR.normal(size=(4 * UNITS, 2)),
        "weight_hh_l0": GENERATOR.normal(size=(4 * UNITS, UNITS)),
        **{name: GENERATOR.normal(size=4 * UNITS) for name in ("bias_ih_l0", "bias_hh_l0")},
    }


def s4d() -> State:
    return {
        "kernel.log_dt": np.log(GENERATOR.uniform(0.05, 0.5, 2)),
        "kernel.log_A_real": np.log(GENERATOR.uniform(0.3, 1, (2, UNITS))),
        "kernel.A_imag": GENERATOR.uniform(0, 3, (2, UNITS)),
        "kernel.C": GENERATOR.normal(size=(2, UNITS, 2)),
        "D": GENERATOR.normal(size=2),
    }


def impulse_response(state: State) -> NDArray[np.complex128]:
    """(n, STEPS) γ λ^k of every state."""
    recurrence = read_found(state)
    return np.exp(
        recurrence.log_gain[:, None] + recurrence.log_eigenvalues[:, None] * np.arange(STEPS)
    )


def assert_quantiles(found: Quantiles, elements: NDArray[np.float64]) -> None:
    expected = np.quantile(elements, [0, 0.5, 0.9, 0.99, 1])
    np.testing.assert_allclose(
        [found.min, found.p50, found.p90, found.p99, found.max], expected, rtol=2e-6, atol=1e-12
    )


@pytest.mark.parametrize("make", [lru, lstm, s4d], ids=lambda make: make.__name__)
def test_every_figure_of_every_group(make: Callable[[], State]) -> None:
    state = make()
    layer = only(state, device="cpu")
    recurrence = read_found(state)
    response = impulse_response(state)
    second_moment = np.sum(np.abs(response) ** 2, axis=1)
    assert_quantiles(layer.state.second_moment, second_moment)
    drive = np.ones(recurrence.size)
    if recurrence.readin is not None:
        drive = np.sum(np.abs(recurrence.readin) ** 2, axis=1)

    assert layer.parameters
    for group, summary in zip(recurrence.parameters, layer.parameters, strict=True):
        sensitivity = np.empty(group.size)
        relative = np.empty(group.size)
        tensor = state[group.tensor]
        places = [tensor.ravel().tolist().index(value) for value in group.values.tolist()]
        for scalar in range(group.size):
            shifted = [_shifted(state, group.tensor, places[scalar], sign) for sign in (1, -1)]
            change = (impulse_response(shifted[0]) - impulse_response(shifted[1])) / (2 * STEP)
            squares = np.sum(np.abs(change) ** 2, axis=1)
            moved = group.eigenvalue[group.scalar == scalar]
            assert np.allclose(np.delete(squares, moved), 0)
            sensitivity[scalar] = squares.sum()
            relative[scalar] = (drive * squares).sum() / (drive * second_moment)[moved].sum()
        assert_quantiles(summary.sensitivity, sensitivity)
        assert_quantiles(summary.relative_sensitivity, relative)
        assert summary.step_effect == pytest.approx(
            1e-3 * np.sqrt(np.quantile(relative, 0.99)), rel=2e-6
        )


def _shifted(state: State, name: str, place: int, sign: int) -> State:
    tensor = state[name].copy()
    tensor.flat[place] += sign * STEP
    return {**state, name: tensor}
