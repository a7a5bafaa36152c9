"""Moving averages and Parcae against their kernels, written out, and differences."""

from __future__ import annotations

import math

import numpy as np
import pytest
from families.derivatives import check_derivatives, read_layer
from families.examples import drawn
from families.impulse import impulse_response
from families.oracles import as_complex, sigmoid
from numpy.testing import assert_allclose
from numpy.typing import NDArray

from memcurse_cli.families.state_space.diagonal import (
    EMA,
    PARCAE,
    PARCAE_ESM,
    TRANSFORMERS,
    MultiHeadedEMA,
    Parcae,
)

D, N, STEPS = 3, 4, 20


def mega_layer(*, tied: bool = False) -> dict[str, NDArray]:
    rng = np.random.default_rng(11)
    return {
        "layers.0.mega_layer.move.alpha": rng.normal(size=(D, N, 1)),
        "layers.0.mega_layer.move.delta": rng.normal(size=(D, 1 if tied else N, 1)),
        "layers.0.mega_layer.move.beta": rng.normal(size=(D, N, 1)),
        "layers.0.mega_layer.move.gamma": rng.normal(size=(D, N)),
        "layers.0.mega_layer.move.omega": rng.normal(size=D),
    }


def part(layer: dict[str, NDArray], role: str) -> NDArray:
    (values,) = (array for name, array in layer.items() if name.endswith(f".{role}"))
    return values


def mega_kernel(layer: dict[str, NDArray]) -> NDArray:
    """MultiHeadEMA._compute_kernel."""
    p, alpha = sigmoid(part(layer, "delta")), sigmoid(part(layer, "alpha"))
    powers = np.exp(np.arange(STEPS) * np.log(1 - p * alpha))
    kernel = p * part(layer, "beta") * powers
    return np.einsum("dnl,dn->dl", kernel, part(layer, "gamma") * math.sqrt(1 / N))


@pytest.mark.parametrize("tied", [False, True])
def test_mega(tied: bool) -> None:
    layer = mega_layer(tied=tied)
    recurrence = read_layer(layer, EMA())
    assert recurrence.name == "layers.0.mega_layer.move"
    response = impulse_response(recurrence, STEPS)
    assert_allclose(response[0], mega_kernel(layer), rtol=0, atol=1e-12)
    assert recurrence.stable_by_construction
    assert [group.matrix for group in recurrence.projections] == ["B", "C", "D"]
    assert recurrence.projections[1].derivative[0] == math.sqrt(1 / N)
    # The Mega block of state-spaces/s4 has no last axis in its expansion.
    block = layer | {"layers.0.mega_layer.move.beta": part(layer, "beta")[..., 0]}
    response = impulse_response(read_layer(block, EMA()), STEPS)
    assert_allclose(response[0], mega_kernel(layer), rtol=0, atol=1e-12)


def test_the_names_of_transformers() -> None:
    layer = mega_layer()
    renamed = {
        f"mega.layers.0.mega_layer.ema_gate.{name}": part(layer, role)
        for role, name in TRANSFORMERS.items()
    }
    recurrence = read_layer(renamed, EMA())
    assert_allclose(impulse_response(recurrence, STEPS)[0], mega_kernel(layer), atol=1e-12)


def test_megalodon() -> None:
    layer = drawn("ema")
    recurrence = read_layer(layer, EMA())
    # _calc_coeffs, and EMAParametersCPUFwdImpl: w = Re Σ p γ q^l
    theta = sigmoid(part(layer, "theta")) * (2 * math.pi / N)
    theta = np.arange(1, N + 1).reshape(1, N, 1) * theta
    p, delta = sigmoid(part(layer, "alpha")), sigmoid(part(layer, "delta"))
    q = (1 - p * delta) * np.exp(1j * theta)
    gamma = as_complex(part(layer, "gamma"))
    weights = p[..., 0] * gamma * math.sqrt(1 / N)
    expected = np.einsum("dn,dnl->dl", weights, q ** np.arange(STEPS)).real
    assert_allclose(impulse_response(recurrence, STEPS)[0], expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("layer", [mega_layer(), mega_layer(tied=True), drawn("ema")])
def test_derivatives(layer: dict[str, NDArray]) -> None:
    check_derivatives(layer, EMA())


RNG = np.random.default_rng(4)
HEADS, CHANNELS = 3, 4
ONE_WAY = {
    "alphas": RNG.normal(size=HEADS),
    "dampen_factors": 2 * RNG.normal(size=HEADS),
    "expansion": RNG.normal(size=(HEADS, CHANNELS)),
    "reduction": RNG.normal(size=(HEADS, CHANNELS)),
}
BOTH_WAYS = {
    **ONE_WAY,
    "reverse_alphas": RNG.normal(size=HEADS),
    "reverse_dampen_factors": RNG.normal(size=HEADS),
    "expansion": RNG.normal(size=(2 * HEADS, CHANNELS)),
    "reduction": RNG.normal(size=(2 * HEADS, CHANNELS)),
}


def kernel(alphas: NDArray[np.float64], dampen_factors: NDArray[np.float64]) -> NDArray[np.float64]:
    """(steps, heads), as `apply_learned_ema_with_damping` writes it."""
    alpha, damping = sigmoid(alphas), sigmoid(dampen_factors)
    return alpha * ((1 - alpha) * damping) ** np.arange(STEPS)[:, None]


def test_the_impulse_response_is_the_layer_s_kernel() -> None:
    recurrence = read_layer({f"ema.{name}": a for name, a in ONE_WAY.items()}, MultiHeadedEMA())
    assert recurrence.name == "ema"
    expected = np.einsum(
        "lh,hd,hd->dl",
        kernel(ONE_WAY["alphas"], ONE_WAY["dampen_factors"]),
        ONE_WAY["expansion"],
        ONE_WAY["reduction"],
    )
    (found,) = impulse_response(recurrence, STEPS)
    assert_allclose(found, expected, rtol=1e-12, atol=1e-15)


def test_both_directions_have_their_rates() -> None:
    recurrence = read_layer(BOTH_WAYS, MultiHeadedEMA())
    forth = kernel(BOTH_WAYS["alphas"], BOTH_WAYS["dampen_factors"])
    back = kernel(BOTH_WAYS["reverse_alphas"], BOTH_WAYS["reverse_dampen_factors"])
    decayed = np.exp(recurrence.log_gain + 7 * recurrence.log_eigenvalues)
    assert_allclose(decayed, np.repeat(np.concatenate((forth[7], back[7])), CHANNELS), rtol=1e-12)
    assert recurrence.readin is None
    assert "backward" in recurrence.assumptions[0]


@pytest.mark.parametrize("arrays", [ONE_WAY, BOTH_WAYS])
def test_derivatives_of_heads(arrays: dict[str, NDArray[np.float64]]) -> None:
    check_derivatives(arrays, MultiHeadedEMA())


WIDTH = 6


@pytest.fixture
def arrays() -> dict[str, NDArray]:
    """The module's tensors, as they are stored in the whole model."""
    rng = np.random.default_rng(0)
    tensors = {role: rng.uniform(-3, 2, WIDTH) for role in ("log_state_decay", "log_delta")}
    matrices = ("input_matrix_continuous", "out_proj.weight")
    tensors |= {role: rng.normal(size=(WIDTH, WIDTH)) for role in matrices}
    tensors |= {"input_norm.weight": np.ones(WIDTH), "input_norm.bias": np.zeros(WIDTH)}
    return {f"trunk.parcae.{name}": values for name, values in tensors.items()}


def test_the_names_of_esm(arrays: dict[str, NDArray]) -> None:
    renamed = {PARCAE_ESM[r]: arrays[f"trunk.parcae.{name}"] for r, name in PARCAE.items()}
    recurrence, expected = read_layer(renamed, Parcae()), read_layer(arrays, Parcae())
    assert recurrence.name == "parcae"
    assert_allclose(recurrence.log_eigenvalues, expected.log_eigenvalues)
    assert_allclose(impulse_response(recurrence, STEPS), impulse_response(expected, STEPS))
    check_derivatives(arrays, Parcae())


def test_a_decay_far_from_the_middle(arrays: dict[str, NDArray]) -> None:
    arrays["trunk.parcae.log_state_decay"][:3] = -40, 800, 900
    arrays["trunk.parcae.log_delta"][:3] = -30, -799, 5
    recurrence = read_layer(arrays, Parcae())
    # softplus(p) = e^p there, so that Δ e^a is e^-70 and e^1.
    assert_allclose(-recurrence.log_eigenvalues.real[:3], [np.exp(-70), np.e, 700], rtol=1e-12)
    assert all(np.isfinite(group.eigenvalue_derivative).all() for group in recurrence.parameters)
