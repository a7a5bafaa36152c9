"""Parcae against transformers' own module, a loop of its forward, and differences."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from families.derivatives import check_derivatives, match_of, read_layer
from families.impulse import impulse_response
from numpy.testing import assert_allclose
from numpy.typing import NDArray
from transformers import EsmFold2Config
from transformers.models.esmfold2.modeling_esmfold2 import EsmFold2Parcae

from memcurse_cli.errors import TensorError
from memcurse_cli.families.state_space.parcae import ESM, TRANSFORMERS, Parcae

N, STEPS = 6, 12


@pytest.fixture(scope="module")
def module() -> EsmFold2Parcae:
    """The library's module, away from where it starts."""
    torch.manual_seed(0)
    config = EsmFold2Config(pairwise_hidden_size=N, parcae_num_coda_layers=0)
    parcae = EsmFold2Parcae(config).double()
    parcae.input_norm.float()  # it computes in single precision whatever it is given
    with torch.no_grad():
        for parameter in (parcae.log_state_decay, parcae.log_delta):
            parameter.uniform_(-3, 2)
        parcae.input_matrix_continuous.normal_()
        parcae.out_proj.weight.normal_()
    return parcae


@pytest.fixture
def arrays(module: EsmFold2Parcae) -> dict[str, NDArray]:
    """Its tensors, as they are stored in the whole model."""
    state = module.state_dict(prefix="trunk.parcae.")
    return {name: tensor.numpy().copy() for name, tensor in state.items()}


def test_the_library_s_own_transition(module: EsmFold2Parcae, arrays: dict[str, NDArray]) -> None:
    recurrence = read_layer(arrays, Parcae())
    assert recurrence.name == "trunk.parcae"
    decay, readin = (each.detach().numpy() for each in module.discretize())
    assert_allclose(np.exp(recurrence.log_eigenvalues), decay, rtol=1e-14)
    assert recurrence.readin is not None
    gained = np.exp(recurrence.log_gain)[:, None] * recurrence.readin
    assert_allclose(gained, readin, rtol=1e-14)
    assert recurrence.stable_by_construction
    assert "recycling loop" in recurrence.assumptions[0]


def test_an_impulse_through_the_library_s_forward(
    module: EsmFold2Parcae, arrays: dict[str, NDArray]
) -> None:
    recurrence = read_layer(arrays, Parcae())
    given = torch.randn(N, dtype=torch.float64)
    silence = torch.zeros_like(given)  # normalised to the bias, which is zero
    outputs, state = [], torch.zeros(N, dtype=torch.float64)
    with torch.no_grad():
        decay, readin = module.discretize()
        for step in range(STEPS):
            state = module(state, silence if step else given, decay, readin)
            outputs.append(module.out_proj(state).numpy())
        heard = module.input_norm(given).numpy()
    response = impulse_response(recurrence, STEPS)
    assert_allclose(np.einsum("oil,i->lo", response, heard), outputs, rtol=0, atol=1e-13)


def test_the_names_of_esm(arrays: dict[str, NDArray]) -> None:
    renamed = {ESM[r]: arrays[f"trunk.parcae.{name}"] for r, name in TRANSFORMERS.items()}
    recurrence, expected = read_layer(renamed, Parcae()), read_layer(arrays, Parcae())
    assert recurrence.name == "parcae"
    assert_allclose(recurrence.log_eigenvalues, expected.log_eigenvalues)
    assert_allclose(impulse_response(recurrence, STEPS), impulse_response(expected, STEPS))


def test_derivatives(arrays: dict[str, NDArray]) -> None:
    check_derivatives(arrays, Parcae())


def test_the_projections_move_b_and_c(arrays: dict[str, NDArray]) -> None:
    groups = read_layer(arrays, Parcae()).projections
    assert [(group.matrix, group.size) for group in groups] == [("B", N * N), ("C", N * N)]
    del arrays["trunk.parcae.out_proj.weight"]
    without = read_layer(arrays, Parcae())
    assert without.readout is None
    assert without.projections == ()


def test_a_decay_far_from_the_middle(arrays: dict[str, NDArray]) -> None:
    arrays["trunk.parcae.log_state_decay"][:3] = -40, 800, 900
    arrays["trunk.parcae.log_delta"][:3] = -30, -799, 5
    recurrence = read_layer(arrays, Parcae())
    # softplus(p) = e^p there, so that Δ e^a is e^-70 and e^1.
    assert_allclose(-recurrence.log_eigenvalues.real[:3], [np.exp(-70), np.e, 700], rtol=1e-12)
    assert all(np.isfinite(group.eigenvalue_derivative).all() for group in recurrence.parameters)


def test_what_does_not_fit_is_left_or_refused(arrays: dict[str, NDArray]) -> None:
    assert match_of({**arrays, "trunk.parcae.log_delta": np.ones(N + 1)}, Parcae()) == []
    broken = {**arrays, "trunk.parcae.log_delta": np.full(N, np.nan)}
    with pytest.raises(TensorError, match="log_delta: 6 NaN"):
        read_layer(broken, Parcae())
    narrow = {**arrays, "trunk.parcae.out_proj.weight": np.ones((N, N + 1))}
    with pytest.raises(TensorError, match=r"out_proj.weight: its shape \(6, 7\)"):
        read_layer(narrow, Parcae())
