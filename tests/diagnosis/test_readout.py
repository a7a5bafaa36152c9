"""Where a finite sequence is read: at its last step, or as the mean over every step."""

from __future__ import annotations

import math

import numpy as np
import pytest
from diagnosis.build import SAMPLES, finding, only

from memcurse_cli.diagnosis.diagnose import sensitivity_curves
from memcurse_cli.diagnosis.inspection import inspect
from memcurse_cli.diagnosis.prediction import predict
from memcurse_cli.diagnosis.settings import Settings
from memcurse_cli.errors import UsageError

DIAGONAL = SAMPLES / "complex_diagonal_rnn.safetensors"


def one_state(modulus: float, angle: float = 0.5) -> dict[str, np.ndarray]:
    eigenvalue = np.array([modulus * np.exp(1j * angle)])
    return {"A_re": eigenvalue.real, "A_im": eigenvalue.imag}


def explicit(modulus: float, steps: int, weight: np.ndarray) -> tuple[float, float]:
    """Σ of weight times |λ|^2k, and of weight times k²|λ|^(2k-2): E|h|² and E|dh/dλ|²."""
    k = np.arange(steps)
    power = modulus ** (2.0 * k)
    return float(weight @ power), float(weight @ (k**2 * power / modulus**2))


@pytest.mark.parametrize("modulus", [0.9, 1.0, 1.01])
def test_the_mean_over_every_step_weighs_a_lag_by_the_steps_that_see_it(modulus: float) -> None:
    steps = 300
    weight = {"last": np.ones(steps), "every": (steps - np.arange(steps)) / steps}
    for readout in ("last", "every"):
        found = only(one_state(modulus), horizon=steps, readout=readout)
        state, sensitivity = explicit(modulus, steps, weight[readout])
        assert found.state.second_moment.max == pytest.approx(state, rel=1e-11)
        for group in found.parameters:
            assert group.sensitivity.max == pytest.approx(sensitivity, rel=1e-11)
            assert group.relative_sensitivity.max == pytest.approx(sensitivity / state, rel=1e-11)


@pytest.mark.parametrize("readout", ["last", "every"])
def test_a_hessian_is_that_of_the_loss_that_is_read(readout: str) -> None:
    """One state y = Re[c h] and the parameters Re λ, Im λ: H = E[J Jᵀ], J by brute force."""
    steps, eigenvalue, b, c = 40, 0.95 * np.exp(0.5j), 1.5 - 0.5j, 0.3 + 2j
    state = one_state(0.95) | {
        "B_re": np.array([[b.real]]),
        "B_im": np.array([[b.imag]]),
        "C_re": np.array([[c.real]]),
        "C_im": np.array([[c.imag]]),
    }
    found = only(state, horizon=steps, readout=readout, rho=0.0).hessian
    k = np.arange(steps)
    response = c * b * k * eigenvalue ** (k - 1.0)
    jacobian = np.stack([response.real, (1j * response).real])
    weight = np.ones(steps) if readout == "last" else (steps - k) / steps
    expected = (jacobian * weight) @ jacobian.T
    assert found.order == 2
    assert found.sharpness == pytest.approx(np.linalg.eigvalsh(expected)[-1], rel=1e-10)


def test_the_report_says_by_how_much_the_horizon_matters() -> None:
    def message(angle: float = 0.5, **options: object) -> str:
        return finding(only(one_state(0.999, angle), horizon=300, **options), "MC105").message

    found = message(readout="every")
    # Section 4 of the theory: .0063 of the infinite value, 160 times too large.
    ratio = float(found.split("the sensitivity would be ")[1].split()[0])
    assert ratio == pytest.approx(1 / 0.0063, rel=0.02)
    last = message()
    _, finite = explicit(0.999, 300, np.ones(300))
    endless = (1 + 0.999**2) / (1 - 0.999**2) ** 3
    assert float(last.split("would be ")[1].split()[0]) == pytest.approx(endless / finite, rel=0.01)
    assert "times this" in message(0.0, rho=1.0)


def test_a_readout_needs_a_sequence_that_ends_and_is_last_or_for_the_loss_every_step() -> None:
    neither, last, every = (only(DIAGONAL, readout=readout) for readout in (None, "last", "every"))
    assert (neither.state, neither.parameters) == (last.state, last.parameters)
    assert neither.hessian == every.hessian != last.hessian
    assert last.parameters != every.parameters
    for command in (lambda **options: inspect(DIAGONAL, **options), predict):
        with pytest.raises(UsageError, match=r"'first'.*give last or every"):
            command(readout="first", horizon=3)
    for endless in (
        lambda: inspect(one_state(0.9), readout="last", horizon=math.inf),
        lambda: predict(readout="last"),
    ):
        with pytest.raises(UsageError, match=r"--readout.*give --horizon T"):
            endless()


def test_every_eigenvalue_has_its_relative_sensitivity_and_its_curves() -> None:
    horizon = 50

    def ratio(modulus: float) -> float:
        state, sensitivity = explicit(modulus, horizon, np.ones(horizon))
        return sensitivity / state

    state = {"A": np.diag([0.5, 0.99]), "B": np.eye(2), "C": np.eye(2)}
    found = only(state, horizon=horizon, values=True).eigenvalues
    for (real, _), kappa in zip(found.values, found.relative_sensitivities, strict=True):
        assert kappa == pytest.approx(ratio(real), rel=1e-10)
    at_one = state | {"A": np.diag([0.5, 1.0])}
    unstable = only(at_one, values=True, horizon=math.inf).eigenvalues
    assert unstable.relative_sensitivities == (pytest.approx(5 / 3 / 0.75), None)
    finite, endless = sensitivity_curves(Settings(horizon=horizon))
    assert (finite.horizon, endless.horizon) == (horizon, None)
    for constant, at_horizon, at_infinity in zip(
        finite.time_constant, finite.relative_sensitivity, endless.relative_sensitivity, strict=True
    ):
        squared = np.exp(-2 / constant)
        assert at_horizon == pytest.approx(ratio(np.sqrt(squared)), rel=1e-9)
        assert at_infinity == pytest.approx((1 + squared) / (1 - squared) ** 2, rel=1e-8)
    assert len(sensitivity_curves(Settings())) == 1
    report = inspect(state)  # without values
    assert (report.curves, report.layers[0].eigenvalues.relative_sensitivities) == ((), None)
