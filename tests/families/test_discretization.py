"""λ, γ and their slopes against arithmetic of many digits."""

from __future__ import annotations

import mpmath
import numpy as np
import pytest

from memcurse_cli.families.state_space.discretization import (
    METHODS,
    TRANSFORMS,
    apply_transform,
    discretise,
)

DECAYS = (1e-300, 1e-12, 1e-6, 1e-3, 0.1, 0.49, 0.51, 1.0, 1.99, 2.01, 7.0, 90.0)
ANGLES = (0.0, 1e-9, 1e-3, 0.3, -0.3, 1.0, 3.0, -6.2, 12.0)
Z = np.array([-decay + 1j * angle for decay in DECAYS for angle in ANGLES])
GROWING = np.array([1e-12 + 0.3j, 0.2 - 1j, 1.5 + 0.1j, 40.0 + 2j])


def exact(z: complex, method: str) -> tuple[complex, complex, complex, complex]:
    with mpmath.workdps(340):  # 1 - 1e-300, and 15 digits more
        w = mpmath.mpc(z)
        if method == "zoh":
            eigenvalue = mpmath.exp(w)
            gain = mpmath.expm1(w) / w
            slope, log_gain_slope = eigenvalue, eigenvalue / mpmath.expm1(w) - 1 / w
        else:
            eigenvalue = (1 + w / 2) / (1 - w / 2)
            gain = 1 / (1 - w / 2)
            slope, log_gain_slope = 1 / (1 - w / 2) ** 2, 1 / (2 - w)
        return (
            complex(mpmath.log(abs(eigenvalue)), mpmath.arg(eigenvalue)),
            complex(slope),
            complex(gain),
            complex(log_gain_slope),
        )


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("z", [*Z, *GROWING])
def test_agrees_with_exact_arithmetic(z: complex, method: str) -> None:
    modes = discretise(np.array([z]), method)
    log_eigenvalue, slope, gain, log_gain_slope = exact(z, method)
    assert modes.log_eigenvalue[0].real == pytest.approx(log_eigenvalue.real, rel=2e-14, abs=0)
    turn = np.exp(1j * (modes.log_eigenvalue[0].imag - log_eigenvalue.imag))
    assert turn == pytest.approx(1, abs=2e-15)
    assert modes.eigenvalue_slope[0] == pytest.approx(slope, rel=1e-14)
    assert np.exp(modes.log_gain[0]) == pytest.approx(gain, rel=2e-14)
    assert modes.log_gain_slope[0] == pytest.approx(log_gain_slope, rel=1e-14)


def test_the_bilinear_zero_and_pole_stay_finite() -> None:
    modes = discretise(np.array([-2, 2], dtype=complex), "bilinear")
    for values in (modes.log_eigenvalue, modes.log_gain):
        assert np.all(np.isfinite(values))
    assert modes.log_eigenvalue[0].real < -300
    assert modes.log_eigenvalue[1].real > 300


FORMULAS = {
    "exp": mpmath.exp,
    "softplus": lambda p: mpmath.log1p(mpmath.exp(p)),
    "sigmoid": lambda p: 1 / (1 + mpmath.exp(-p)),
    "relu": lambda p: max(p, 0) + mpmath.mpf(1e-4),
    "none": lambda p: p,
}


@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize("p", [-100.0, -50.0, -39.0, -2.0, 0.3, 5.0, 60.0])
def test_transforms_agree_with_exact_arithmetic(transform: str, p: float) -> None:
    parameter = apply_transform(np.array([p]), transform)
    with mpmath.workdps(80):
        value = FORMULAS[transform](mpmath.mpf(p))
        slope = mpmath.diff(FORMULAS[transform], mpmath.mpf(p))
        log, log_slope = complex(mpmath.log(value)), float(slope / value)
    assert parameter.value[0] == pytest.approx(float(value), rel=1e-14)
    assert parameter.slope[0] == pytest.approx(float(slope), rel=1e-14, abs=1e-300)
    assert parameter.log[0] == pytest.approx(log, rel=1e-14)
    assert parameter.log_slope[0] == pytest.approx(log_slope, rel=1e-14, abs=1e-300)
