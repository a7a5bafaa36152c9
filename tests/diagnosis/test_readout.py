"""Where a finite sequence is read: at its last step, or as the mean over every step."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from memcurse_cli.diagnosis.inspection import inspect
from memcurse_cli.diagnosis.prediction import predict
from memcurse_cli.errors import UsageError
from memcurse_cli.schema.report import LayerReport, Report

SAMPLES = Path(__file__).resolve().parents[2] / "sample_checkpoints"
DIAGONAL = SAMPLES / "complex_diagonal_rnn.safetensors"


def layer(report: Report) -> LayerReport:
    (only,) = report.layers
    return only


def one_state(modulus: float, angle: float = 0.5) -> dict[str, np.ndarray]:
    eigenvalue = np.array([modulus * np.exp(1j * angle)])
    return {"A_re": eigenvalue.real, "A_im": eigenvalue.imag}


def message(report: Report, code: str) -> str:
    (found,) = (one for one in layer(report).findings if one.code == code)
    return found.message


def explicit(modulus: float, steps: int, weight: np.ndarray) -> tuple[float, float]:
    """Σ of weight times |λ|^2k, and of weight times k²|λ|^(2k-2): E|h|² and E|dh/dλ|²."""
    k = np.arange(steps)
    power = modulus ** (2.0 * k)
    return float(weight @ power), float(weight @ (k**2 * power / modulus**2))


@pytest.mark.parametrize("modulus", [0.9, 0.999, 1.0, 1.01])
def test_the_mean_over_every_step_weighs_a_lag_by_the_steps_that_see_it(modulus: float) -> None:
    steps = 300
    weight = {"last": np.ones(steps), "every": (steps - np.arange(steps)) / steps}
    for readout in ("last", "every"):
        found = layer(inspect(one_state(modulus), horizon=steps, readout=readout))
        state, sensitivity = explicit(modulus, steps, weight[readout])
        assert found.state.second_moment.max == pytest.approx(state, rel=1e-11)
        for group in found.parameters:
            assert group.sensitivity.max == pytest.approx(sensitivity, rel=1e-11)
            assert group.relative_sensitivity.max == pytest.approx(sensitivity / state, rel=1e-11)


def test_by_default_states_are_read_last_and_the_loss_at_every_step() -> None:
    neither, last, every = (
        layer(inspect(DIAGONAL, readout=readout)) for readout in (None, "last", "every")
    )
    assert neither.state == last.state
    assert neither.parameters == last.parameters
    assert neither.hessian == every.hessian
    assert last.hessian != every.hessian
    assert last.parameters != every.parameters


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
    found = layer(inspect(state, horizon=steps, readout=readout, rho=0.0)).hessian
    k = np.arange(steps)
    response = c * b * k * eigenvalue ** (k - 1.0)
    jacobian = np.stack([response.real, (1j * response).real])
    weight = np.ones(steps) if readout == "last" else (steps - k) / steps
    expected = (jacobian * weight) @ jacobian.T
    assert found.order == 2
    assert found.sharpness == pytest.approx(np.linalg.eigvalsh(expected)[-1], rel=1e-10)


def test_the_report_says_by_how_much_the_horizon_matters() -> None:
    found = message(inspect(one_state(0.999), horizon=300, readout="every"), "MC105")
    # Section 4 of the theory: .0063 of the infinite value, 160 times too large.
    ratio = float(found.split("E|dh/dλ|² would be ")[1].split()[0])
    assert ratio == pytest.approx(1 / 0.0063, rel=0.02)
    assert "τ = 999 steps" in found or "τ = 1000 steps" in found
    assert "every step" in found
    last = message(inspect(one_state(0.999), horizon=300), "MC105")
    _, finite = explicit(0.999, 300, np.ones(300))
    endless = (1 + 0.999**2) / (1 - 0.999**2) ** 3
    assert float(last.split("would be ")[1].split()[0]) == pytest.approx(endless / finite, rel=0.01)
    assert "the last step" in last
    constant = message(inspect(one_state(0.999, 0.0), horizon=300, rho=1.0), "MC105")
    assert "times as large" in constant


def test_a_readout_needs_a_sequence_that_ends() -> None:
    with pytest.raises(UsageError, match=r"--readout.*give --horizon T"):
        inspect(one_state(0.9), readout="every")
    with pytest.raises(UsageError, match=r"--readout.*give --horizon T"):
        predict(readout="last")
    with pytest.raises(UsageError, match=r"'first'.*give last or every"):
        inspect(DIAGONAL, readout="first")
    with pytest.raises(UsageError, match=r"'first'.*give last or every"):
        predict(readout="first", horizon=3)
