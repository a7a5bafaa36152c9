"""Powers one by one and resolvents by inversion, against what is found without trying them all."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray
from theory.matrices import eigenbasis, jordan, random
from theory.non_normal import far_from_normal

from memcurse_cli.theory.dense import bases as module
from memcurse_cli.theory.dense.bases import kreiss_bound, memory, transient_growth

Floats = NDArray[np.float64]


def sheared(size: int, strength: float) -> Floats:
    generator = np.random.default_rng(0)
    upper = strength * np.triu(generator.normal(size=(size, size)), 1)
    return np.diag(generator.uniform(-0.95, 0.95, size)) + upper


SHEARED = [sheared(12, strength) for strength in (0.1, 0.5, 1.0)]
OTHERS = [random(16, 0.99, 1), jordan(5, 0.9), np.array([[0.5, 300.0], [0.0, 0.6]])]


def every_power(matrix: Floats) -> list[float]:
    norms, power = [], np.eye(len(matrix))
    for _ in range(600):
        norms.append(float(np.linalg.norm(power, 2)))
        power = power @ matrix
    return norms


@pytest.mark.parametrize("place", range(len(SHEARED + OTHERS)))
@pytest.mark.parametrize("direct", [True, False])
def test_the_largest_power(place: int, direct: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not direct:
        monkeypatch.setattr(module, "DIRECT_NORM", 1)
    matrix = (SHEARED + OTHERS)[place]
    norms = every_power(matrix)
    found = transient_growth(matrix)
    assert found.growth == pytest.approx(norms[found.step], rel=1e-8)
    assert 0.98 * max(norms) < found.growth <= max(norms) * (1 + 1e-9)


TURNING = np.array([[0.0, 9.0], [-1 / 9, 0.0]])  # its norms go up and down with every other step
DELAY = np.eye(32, k=-1)
BESIDE = np.kron([[1, 0], [0, 0]], DELAY) + np.diag(np.repeat([0, 0.9], 32))


@pytest.mark.parametrize("matrix", [*SHEARED, *OTHERS, DELAY, BESIDE, 0.97 * TURNING])
def test_the_memory_is_the_last_power_that_matters(matrix: Floats) -> None:
    last = max(k for k, norm in enumerate(every_power(matrix)) if norm >= np.exp(-1))
    radius = float(np.abs(np.linalg.eigvals(matrix)).max())
    time_constant = -1 / np.log(radius) if radius > 0 else 0.0
    basis = eigenbasis(matrix)
    for usable in [basis, None] if basis.condition < 1e8 else [None]:
        assert memory(matrix, usable, time_constant) == max(time_constant, last)


def test_a_memory_that_rounding_changes_is_refused() -> None:
    with pytest.raises(ArithmeticError, match="rounding"):
        memory(far_from_normal(4, 0), None, 9.5)


def test_a_normal_matrix_never_grows_and_remembers_for_its_time_constant() -> None:
    rotation = np.linalg.qr(np.random.default_rng(0).normal(size=(8, 8)))[0]
    for decay in (1e-12, 1e-3, 0.7):
        matrix = np.exp(-decay) * rotation
        assert memory(matrix, eigenbasis(matrix), 1 / decay) == 1 / decay
    assert transient_growth(0.999 * rotation) == (1.0, 0)
    assert kreiss_bound(0.9 * rotation, eigenbasis(0.9 * rotation)) == pytest.approx(1)
    assert transient_growth(np.zeros((3, 3))) == (1.0, 0)


@pytest.mark.parametrize("place", range(len(SHEARED + OTHERS)))
def test_the_kreiss_constant_bounds_the_growth(place: int) -> None:
    matrix = (SHEARED + OTHERS)[place]
    growth = max(every_power(matrix))
    bases = [None] if place == len(SHEARED) + 1 else [eigenbasis(matrix), None]
    for basis in bases:
        found = kreiss_bound(matrix, basis)
        assert 1 <= found <= growth * (1 + 1e-6)
        assert growth <= np.e * len(matrix) * found * 1.05
        assert found > 0.9 * by_inversion(matrix)


def by_inversion(matrix: Floats) -> float:
    """The best of a fine grid, every resolvent's norm by singular values."""
    best = 1.0
    for excess in np.geomspace(1e-3, 30, 40):
        for angle in np.linspace(0, np.pi, 40):
            shifted = (1 + excess) * np.exp(1j * angle) * np.eye(len(matrix)) - matrix
            best = max(best, float(excess / np.linalg.svd(shifted, compute_uv=False)[-1]))
    return best
