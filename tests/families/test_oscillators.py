"""LinOSS, UnICORNN and IndRNN against their own steps, and against differences."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from families.derivatives import check_derivatives, match_of, read_layer
from families.examples import drawn
from families.impulse import impulse_response
from families.oracles import as_complex, assert_same_spectrum, jacobian, sigmoid
from numpy.testing import assert_allclose
from numpy.typing import NDArray

from memcurse_cli.checkpoints.open import MemoryStore
from memcurse_cli.errors import TensorError
from memcurse_cli.families.detect import detect
from memcurse_cli.families.state_space.oscillators import IndRNN, LinOSS, UnICORNN

P, STEPS = 4, 24


def layer_of(*, damped: bool = False) -> dict[str, NDArray]:
    layer = {name.rpartition(".")[2]: array for name, array in drawn("linoss", 15).items()}
    layer |= {"A_diag": np.linspace(0.5, 1.5, P), "steps": 0.5 * layer["steps"]}
    if damped:
        layer |= {"dt": layer.pop("steps"), "G_diag": np.linspace(0.1, 0.5, P)}
    return {f"blocks.0.ssm.{role}": values for role, values in layer.items()}


def part(layer: dict[str, NDArray], role: str) -> NDArray:
    return layer[f"blocks.0.ssm.{role}"]


def projected(scheme: str, a: NDArray, g: NDArray | None, step: NDArray) -> tuple[NDArray, NDArray]:
    """_soft_project_AGdt of the damped layers, relu of the others."""
    if g is None:
        return np.maximum(a, 0), np.zeros(P)
    if scheme in ("im", "ex"):
        low = step * a if scheme == "ex" else -step * a
        g = np.maximum(g, low)
        return np.maximum(a, g**2 / 4), g
    g = np.maximum(g, 0)
    inner = step * g if scheme == "imex" else -step * g
    low, high = ((2 + inner + sign * 2 * np.sqrt(1 + inner)) / step**2 for sign in (-1, 1))
    return np.clip(a, low, high), g


def matrices(scheme: str, a: NDArray, g: NDArray, step: NDArray) -> tuple[list[NDArray], ...]:
    """The rows of M and of F of one scheme, as the layers' _recurrence has them."""
    if scheme == "im":
        s = 1 + step * g + step**2 * a
        rows = [1 / s, -step * a / s, step / s, (1 + step * g) / s]
        return rows, [step / s, step**2 / s]
    if scheme == "imex":
        s = 1 + step * g
        rows = [1 / s, -step / s * a, step / s, 1 - step**2 / s * a]
        return rows, [step / s, step**2 / s]
    if scheme == "imex2":
        rows = [1 - step * g, -step * a, step * (1 - step * g), 1 - step**2 * a]
        return rows, [step, step**2]
    return [1 - step * g, -step * a, step, np.ones(P)], [step, 0 * step]


def expected_response(layer: dict[str, NDArray], scheme: str) -> NDArray:
    """C x of an impulse, by running every oscillator's two states."""
    damped = "blocks.0.ssm.G_diag" in layer
    step = sigmoid(part(layer, "dt" if damped else "steps"))
    a, g = projected(scheme, part(layer, "A_diag"), part(layer, "G_diag") if damped else None, step)
    rows, driven = matrices(scheme, a, g, step)
    readin, readout = (as_complex(part(layer, matrix)) for matrix in "BC")
    state, outputs = np.stack(driven)[..., None] * readin, []
    for _ in range(STEPS):
        outputs.append((readout @ state[1]).real)
        state = np.einsum("ijp,jpk->ipk", np.reshape(rows, (2, 2, P)), state)
    return np.stack(outputs, axis=-1)


@pytest.mark.parametrize(
    ("damped", "scheme"),
    [(False, "imex"), (False, "im"), *((True, scheme) for scheme in ("imex", "imex2", "im", "ex"))],
)
def test_the_impulse_response_is_the_position_s(damped: bool, scheme: str) -> None:
    layer = layer_of(damped=damped)
    recurrence = read_layer(layer, LinOSS(), **{"oscillator-scheme": scheme})
    response, expected = impulse_response(recurrence, STEPS), expected_response(layer, scheme)
    assert_allclose(response, expected, rtol=0, atol=1e-12)
    assert recurrence.size == 2 * P
    assert recurrence.name == "blocks.0.ssm"
    if scheme == "ex":  # away from the edges of the projection, G = Δ A and A = G²/4
        part(layer, "G_diag")[:] = 1.6
        part(layer, "A_diag")[:] += 0.7
    check_derivatives(layer, LinOSS(), **{"oscillator-scheme": scheme})


@pytest.mark.parametrize("scheme", ["imex", "imex2", "im"])
def test_a_projection_binds(scheme: str) -> None:
    layer = layer_of(damped=True)
    part(layer, "G_diag")[0] = -2.0
    part(layer, "A_diag")[1] = 40.0
    recurrence = read_layer(layer, LinOSS(), **{"oscillator-scheme": scheme})
    assert (recurrence.log_eigenvalues.real <= 1e-7).all()
    held = recurrence.parameters[-1]
    assert held.name == "G_diag"
    if scheme != "im":
        assert_allclose(held.eigenvalue_derivative[held.scalar == 0], 0, atol=1e-12)
        assert_allclose(recurrence.log_eigenvalues.real[[0, P]], 0, atol=0)


def test_without_damping_the_modulus_is_one() -> None:
    recurrence = read_layer(layer_of(), LinOSS())
    assert_allclose(recurrence.log_eigenvalues.real, 0, atol=0)
    assert "by design" in recurrence.assumptions[-1]
    implicit = read_layer(layer_of(), LinOSS(), **{"oscillator-scheme": "im"})
    assert (implicit.log_eigenvalues.real < 0).all()
    assert "by design" not in implicit.assumptions[-1]


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


# Undamped; so stiff that the step is unstable; and with a negative stiffness.
@pytest.mark.parametrize("alpha", [30.65, 0.0, 400.0, -3.0])
def test_the_spectrum_of_one_step(alpha: float) -> None:
    recurrence = read_layer(ARRAYS, UnICORNN(), dt="0.19", stiffness=str(alpha))
    theirs = np.linalg.eigvals(jacobian(lambda s: step(s, 0.19, alpha), 8))
    assert_same_spectrum(np.exp(recurrence.log_eigenvalues), theirs, 1e-12)
    assert recurrence.unitary is bool(np.all(np.abs(np.abs(theirs) - 1) < 1e-12))
    if recurrence.unitary:
        assert not recurrence.log_eigenvalues.real.any()


@pytest.mark.parametrize("alpha", ["30.65", "300", "-3"])
def test_derivatives_of_unicornn(alpha: str) -> None:
    check_derivatives(ARRAYS, UnICORNN(), stiffness=alpha, tolerance=1e-8)


def test_a_unit_that_does_not_oscillate_is_refused() -> None:
    with pytest.raises(TensorError, match="coincide"):
        read_layer(ARRAYS, UnICORNN(), stiffness="-0.5")


def test_its_vector_is_no_ind_rnn() -> None:
    ((family, match),) = detect(MemoryStore(ARRAYS).tensors)
    assert (family.name, match.layer) == ("unicornn", "RNNs.0")
    assert match_of({"x.weight_hh": np.zeros(3), "x.c_": np.zeros(4)}, UnICORNN()) == []


VECTOR = np.array([0.9, -0.5, 1.0, 1.2])
WEIGHT = np.array([[1.0, 2.0, 0.5], [-1.0, 0.3, 0.0], [0.2, 0.2, 0.2], [1.0, 0.0, -1.0]])
TORCH = {"cells.0.weight_hh": VECTOR, "cells.0.weight_ih": WEIGHT, "cells.0.bias_ih": np.zeros(4)}
HASTE = {"rnn.kernel": WEIGHT.T, "rnn.recurrent_scale": VECTOR, "rnn.bias": np.zeros(4)}
TENSORFLOW = {
    "rnn/ind_rnn_cell/input_kernel": WEIGHT.T,
    "rnn/ind_rnn_cell/recurrent_kernel": VECTOR,
}
KERAS = {"ind_rnn/kernel": WEIGHT.T, "ind_rnn/recurrent_kernel": VECTOR}


def response(steps: int) -> np.ndarray:
    """(units, inputs, steps) of h = φ(W x + u ∘ h) where every unit is where φ has slope 1."""
    state, found = WEIGHT.copy(), []
    for _ in range(steps):
        found.append(state)
        state = VECTOR[:, None] * state
    return np.stack(found, axis=-1)


@pytest.mark.parametrize(
    ("arrays", "layer", "activation"),
    [
        (TORCH, "cells.0", "relu"),
        (HASTE, "rnn", "tanh"),
        (TENSORFLOW, "rnn/ind_rnn_cell", "relu"),
        (KERAS, "ind_rnn", "relu"),
    ],
    ids=["indrnn-pytorch", "haste", "tensorflow", "keras"],
)
def test_an_impulse(arrays: dict[str, np.ndarray], layer: str, activation: str) -> None:
    recurrence = read_layer(arrays, IndRNN())
    assert recurrence.name == layer
    ours = impulse_response(recurrence, 6, readout=np.eye(4))
    assert_allclose(ours, response(6), rtol=1e-12, atol=1e-15)
    assert f"activation={activation}" in recurrence.assumptions[0]
    assert not recurrence.stable_by_construction


@pytest.mark.parametrize("arrays", [TORCH, HASTE], ids=["torch", "haste"])
def test_derivatives(arrays: dict[str, np.ndarray]) -> None:
    check_derivatives(arrays, IndRNN())
