from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from memcurse_cli.theory.sensitivity import compensation, effective_steps


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


def test_without_a_step_the_moment_stands_as_it_is() -> None:
    moment = np.array([4.0, 0.25])
    assert effective_steps(moment, 0.1, epsilon=0.0).tolist() == [0.05, 0.2]
    corrected = effective_steps(moment, 0.1, step=1, beta2=0.75, epsilon=0.0)
    np.testing.assert_allclose(corrected, [0.025, 0.1])


def test_gradients_as_large_as_the_root_of_the_curvature_are_compensated_in_full() -> None:
    curvature = np.logspace(-3, 5, 40)
    found = compensation(effective_steps(0.3 * curvature, 1e-3, epsilon=0.0), curvature)
    assert found is not None
    assert found.correlation == pytest.approx(-1)
    assert found.spread_before == pytest.approx(np.std(np.log10(curvature)) / 2)
    assert found.spread_after == pytest.approx(0, abs=1e-12)


@given(st.integers(0, 2**32 - 1), st.floats(1e-6, 1e6), st.floats(1e-6, 1e6))
def test_neither_unit_matters(seed: int, rate: float, unit: float) -> None:
    random = np.random.default_rng(seed)
    steps, sensitivity = random.lognormal(size=20), random.lognormal(size=20)
    one, other = compensation(steps, sensitivity), compensation(rate * steps, unit * sensitivity)
    assert one is not None
    assert other is not None
    assert other == pytest.approx(one, rel=1e-9, abs=1e-9)
    assert -1 <= one.correlation <= 1
    # The spread of a sum of logarithms.
    spread = np.std(np.log10(steps))
    expected = one.spread_before**2 + spread**2 + 2 * one.correlation * one.spread_before * spread
    assert one.spread_after**2 == pytest.approx(expected, abs=1e-9)


def test_too_few_or_equal_elements_say_nothing() -> None:
    steps, sensitivity = np.linspace(1, 2, 8), np.linspace(1, 3, 8)
    assert compensation(steps, sensitivity) is not None
    assert compensation(steps[:7], sensitivity[:7]) is None
    assert compensation(steps, np.ones(8)) is None
    assert compensation(np.ones(8), sensitivity) is None
    assert compensation(steps, np.where(np.arange(8) == 3, np.inf, sensitivity)) is None
    assert compensation(steps, np.where(np.arange(8) == 3, 0.0, sensitivity)) is None
