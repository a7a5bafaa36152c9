"""Laws of gates: their derivatives by autodiff, their tails, and where they are smooth."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose
from theory.gates import CORNERED, HEAVY_TAIL, JOINT, LAWS, RATES, SLOPES, SOFTPLUS

from memcurse_cli.theory.gates.laws import (
    Bounded,
    CappedLogistic,
    Clipped,
    Exponent,
    Exponential,
    FlooredMix,
    GateLaw,
    Keep,
    OffsetMix,
    OpenedDecay,
    Overwrite,
    StepSize,
)

BESIDE: dict[tuple[str, str], Callable[[Any], GateLaw]] = {
    ("step", "A_log"): lambda moved: StepSize(RATES * np.e**moved),
    ("unit step", "A_log"): lambda moved: StepSize(RATES * np.e**moved, writes=False),
    ("negated", "A_log"): lambda moved: StepSize(RATES - moved),
    ("exponent", "rate"): lambda moved: Exponent(RATES * np.e ** (moved * SLOPES), SLOPES),
    ("floored", "zeta"): lambda moved: FlooredMix(0.7 + moved, -2.0),
    ("floored", "nu"): lambda moved: FlooredMix(0.7, -2.0 + moved),
    ("offset", "beta"): lambda moved: OffsetMix(1.3 + moved),
    ("bounded", "bound"): lambda moved: Bounded(np.array([0.05, 0.3, 0.5, 0.9, 1.0]) - moved),
}
"""A law whose parameter of this name, which is not added to z, is moved."""


@pytest.mark.parametrize("name", LAWS | CORNERED)
def test_the_derivatives_of_the_laws_are_those_of_autodiff(name: str) -> None:
    jax = pytest.importorskip("jax")
    law = (LAWS | CORNERED)[name]
    with jax.enable_x64(True):
        z = jax.numpy.linspace(-6.0, 5.0, 5)  # without 0, where |z| has no slope
        assert_allclose(law(z).eigenvalue + law(z).complement, 1.0, rtol=1e-15)
        for parameter, motion in law(z).motions.items():

            def moved(shift: Any, parameter: str = parameter) -> Any:
                if parameter == "scale":
                    values = law(z * jax.numpy.exp(shift))
                elif (name, parameter) in BESIDE:
                    values = BESIDE[name, parameter](shift)(z)
                else:
                    values = law(z + shift)
                return values.eigenvalue, values.gain

            _, (of_eigenvalue, of_gain) = jax.jvp(moved, (0.0,), (1.0,))
            assert_allclose(motion.eigenvalue, of_eigenvalue, rtol=1e-9, atol=1e-14)
            assert_allclose(motion.gain + 0 * z, of_gain + 0 * z, rtol=1e-9, atol=1e-14)


def test_the_motions_of_laws_of_several_gates_are_those_of_autodiff() -> None:
    jax = pytest.importorskip("jax")
    places = {"forget": 0, "input": 1, "dt_bias": 0, "real": 0, "imaginary": 1}
    z = np.array([[-2.97, 0.03, 0.01, 0.01], [0.33, -1.97, 0.7, 0.2], [0.53, 0.23, -1.0, 0.4]])
    with jax.enable_x64(True):
        for law in JOINT.values():
            for parameter, motion in law(jax.numpy.asarray(z)).motions.items():

                def logs(shift: Any, law: Any = law, parameter: str = parameter) -> Any:
                    along = jax.numpy.zeros(4).at[places[parameter]].set(1.0)
                    moved = law(z + shift * along)
                    return moved.log_eigenvalue, moved.log_gain

                _, slopes = jax.jvp(logs, (0.0,), (1.0,))
                assert_allclose(motion.eigenvalue, slopes[0], rtol=1e-10, atol=1e-15)
                assert_allclose(motion.gain, slopes[1], rtol=1e-10, atol=1e-15)


@pytest.mark.parametrize("name", LAWS)
def test_a_law_is_finite_far_out(name: str) -> None:
    law, units = LAWS[name], np.array([0, 1, 2, 3, 4])
    for far in (-1e4, -800.0, -40.0, 40.0, 300.0):
        values = law.take(units)(np.full(5, far))
        for found in (values.eigenvalue, values.complement, values.gain):
            assert (np.isfinite(found) & (found >= 0)).all()
        for motion in values.motions.values():
            assert np.isfinite(np.broadcast_arrays(*motion)).all()


def test_the_tails_keep_their_digits() -> None:
    shut, wide = np.array([-40.0]), np.array([40.0])
    assert_allclose(LAWS["decay"](shut).complement, np.exp(-40.0), rtol=1e-14)
    assert_allclose(LAWS["root"](wide).complement, np.exp(-40.0) / 16, rtol=1e-14)
    beta = np.array([0.1, 0.7])
    bounded = Bounded(1 - beta)(np.array([[-800.0] * 2, [0.0] * 2, [40.0] * 2]))
    assert_allclose(bounded.eigenvalue, [beta, (1 + beta) / 2, [1.0, 1.0]], rtol=1e-14)
    assert_allclose(bounded.complement[2], (1 - beta) * np.exp(-40.0), rtol=1e-14)
    z = np.array([[2.0, -50.0, 0.0, 0.0], [-90.0, -80.0, 0.0, 0.0], [-800.0, 700.0, 0.0, 0.0]])
    floored = np.log1p(np.exp(2.0)) * 1e-4
    assert_allclose(-SOFTPLUS(z).log_eigenvalue.real[0], floored, rtol=1e-12)
    assert_allclose(HEAVY_TAIL(z).log_eigenvalue.real[1], -np.exp(-90.0) / 81, rtol=1e-12)
    assert_allclose(HEAVY_TAIL(z).motions["dt_bias"].gain[1:], 1.0, rtol=1e-12)


def test_a_wide_cap_is_none_and_a_narrow_one_has_poles() -> None:
    z = np.array([-6.0, -2.0, 0.0, 1.0])
    assert_allclose(Exponential(1e9)(z).value, Exponential()(z).value, rtol=1e-12)
    smooth = {law: law.smooth for law in (Keep(CappedLogistic(0.5)), Keep(CappedLogistic(15.0)))}
    assert list(smooth.values()) == [False, True]
    assert not Keep(Clipped(0.2, 0.5)).smooth
    assert OpenedDecay(1.0).smooth


def test_keys_that_vanish_forget_nothing() -> None:
    values = Overwrite(np.inf, 2.0)(np.array([0.3]))
    assert_allclose([values.eigenvalue, values.complement], [[1.0], [0.0]], rtol=0)
