"""UnICORNN against its own step, linearised by autodiff."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from families.derivatives import check_derivatives, match_of, read_layer
from families.oracles import assert_same_spectrum
from numpy.testing import assert_allclose

from memcurse_cli.checkpoints.memory import MemoryStore
from memcurse_cli.diagnosis.diagnose import diagnose
from memcurse_cli.diagnosis.settings import Settings
from memcurse_cli.errors import TensorError
from memcurse_cli.families.detect import detect
from memcurse_cli.families.state_space.oscillators import UnICORNN

ARRAYS = {
    "RNNs.0.weight_hh": np.array([0.2, 0.9, 0.01, 0.5]),
    "RNNs.0.c_": np.array([0.1, -0.1, 0.05, 2.0]),
}


def step(state: torch.Tensor, dt: float, alpha: float) -> torch.Tensor:
    """The CUDA kernel's step on [y, z] at zero input."""
    y, z = state[:4], state[4:]
    weight, scale = (torch.tensor(array) for array in ARRAYS.values())
    z = z - dt * torch.sigmoid(scale) * (torch.tanh(y * weight) + alpha * y)
    y = y + dt * torch.sigmoid(scale) * z
    return torch.cat([y, z])


def test_a_constant_in_the_file_is_that_of_the_layer() -> None:
    stored = ARRAYS | {"RNNs.0.alpha": np.array(0.5)}
    given = read_layer(ARRAYS, UnICORNN(), stiffness="0.5")
    recurrence = read_layer(stored, UnICORNN())
    assert_allclose(recurrence.log_eigenvalues, given.log_eigenvalues, rtol=0)
    assert "stiffness=0.5 (stored as RNNs.0.alpha)" in " ".join(recurrence.assumptions)


# Undamped; so stiff that the step is unstable; and with a negative stiffness.
@pytest.mark.parametrize("alpha", [30.65, 0.0, 400.0, -3.0])
def test_the_spectrum_of_one_step(alpha: float) -> None:
    recurrence = read_layer(ARRAYS, UnICORNN(), dt="0.19", stiffness=str(alpha))
    origin = torch.zeros(8, dtype=torch.float64)
    jacobian = torch.autograd.functional.jacobian(lambda s: step(s, 0.19, alpha), origin)
    theirs = np.linalg.eigvals(jacobian.numpy())
    assert_same_spectrum(np.exp(recurrence.log_eigenvalues), theirs, 1e-12)
    assert recurrence.unitary is bool(np.all(np.abs(np.abs(theirs) - 1) < 1e-12))
    if recurrence.unitary:
        assert not recurrence.log_eigenvalues.real.any()


@pytest.mark.parametrize("alpha", ["30.65", "300", "-3"])
def test_derivatives(alpha: str) -> None:
    check_derivatives(ARRAYS, UnICORNN(), stiffness=alpha, tolerance=1e-8)


def test_a_step_turns_and_the_report_says_that_nothing_decays() -> None:
    settings = Settings(horizon=100)
    report = diagnose(read_layer(ARRAYS, UnICORNN()), settings)
    assert [group.direction for group in report.parameters] == ["decorrelating"] * 2
    (finding,) = (each for each in report.findings if each.code == "MC101")
    assert finding.severity == "info"
    assert "by design" in finding.message


def test_a_unit_that_does_not_oscillate_is_refused() -> None:
    with pytest.raises(TensorError, match="coincide"):
        read_layer(ARRAYS, UnICORNN(), stiffness="-0.5")


def test_its_vector_is_no_ind_rnn() -> None:
    ((family, match),) = detect(MemoryStore(ARRAYS).tensors)
    assert (family.name, match.layer) == ("unicornn", "RNNs.0")
    assert match_of({"x.weight_hh": np.zeros(3), "x.c_": np.zeros(4)}, UnICORNN()) == []
