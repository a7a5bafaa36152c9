"""The operating point against quadrature of SciPy, closed forms and a simulated network."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.integrate import quad

from memcurse_cli.theory.mean_field.fields import NODES, REACH, Gaussian, elman_operating_point

Floats = NDArray[np.float64]


@pytest.mark.parametrize(("mean", "variance"), [(0.0, 1e-6), (0.3, 1.0), (-1.0, 40.0), (0, 1e3)])
def test_a_gaussian_mean_is_the_integral(mean: float, variance: float) -> None:
    def integrand(z: float) -> float:
        u = mean + math.sqrt(variance) * z
        return (1 - math.tanh(u) ** 2) ** 2 * math.exp(-(z**2) / 2) / math.sqrt(2 * math.pi)

    centre = -mean / math.sqrt(variance)
    points = [centre] if abs(centre) < 9 else None
    wanted = quad(integrand, -9, 9, points=points, limit=400, epsabs=1e-13)[0]
    gaussian = Gaussian(np.array([mean]), math.sqrt(variance))
    found = gaussian.average(lambda u: (1 - np.tanh(u) ** 2) ** 2, NODES, REACH)
    assert found[0] == pytest.approx(wanted, rel=1e-9)


def test_a_small_network_without_input_is_linear() -> None:
    hidden = np.random.default_rng(0).normal(size=(50, 50)) * 0.5 / math.sqrt(50)
    point = elman_operating_point(hidden, None, np.zeros(50), "tanh")
    assert point is not None
    assert point.variance == 0
    assert point.slope == pytest.approx(1, rel=1e-15)


def test_a_relu_halves_the_variance_it_passes_on() -> None:
    """E relu² = V/2, so that V = drive / (1 - σ_w²/2); beyond σ_w² = 2 it has no bound."""
    generator = np.random.default_rng(0)
    hidden = generator.normal(size=(60, 60))
    hidden = (hidden - hidden.mean()) / hidden.std() / math.sqrt(60)
    readin = generator.normal(size=(60, 3))
    drive = 3 * float(np.mean(readin**2))
    point = elman_operating_point(hidden, readin, np.zeros(60), "relu")
    assert point is not None
    assert point.variance == pytest.approx(drive / 0.5, rel=1e-9)
    assert point.slope == pytest.approx(math.sqrt(0.5), rel=1e-3)
    assert elman_operating_point(2 * hidden, readin, np.zeros(60), "relu") is None


@pytest.mark.parametrize(
    ("gain", "drive", "bias_scale", "bias_mean"), [(0.9, 0.5, 0.0, 0.0), (1.8, 1.0, 0.3, 0.4)]
)
def test_a_large_random_network_works_there(
    gain: float, drive: float, bias_scale: float, bias_mean: float
) -> None:
    size, generator = 1500, np.random.default_rng(4)
    hidden = generator.normal(size=(size, size)) * gain / math.sqrt(size)
    readin = generator.normal(size=(size, 8)) * drive / math.sqrt(8)
    bias = bias_mean + bias_scale * generator.normal(size=size)
    h, slopes, states = np.zeros(size), [], []
    for step in range(60):
        u = hidden @ h + readin @ generator.normal(size=8) + bias
        h = np.tanh(u)
        if step >= 20:
            slopes.append(np.mean((1 - h**2) ** 2))
            states.append(np.mean(h**2))
    point = elman_operating_point(hidden, readin, bias, "tanh")
    assert point is not None
    assert point.slope == pytest.approx(math.sqrt(np.mean(slopes)), rel=0.03)
    assert point.second_moment == pytest.approx(np.mean(states), rel=0.03)
    # The spectral radius of the Jacobian of a step, by the circular law of its entries.
    squared = np.sum(((1 - h**2)[:, None] * hidden) ** 2) / size
    assert math.sqrt(squared) == pytest.approx(gain * point.slope, rel=0.1)
