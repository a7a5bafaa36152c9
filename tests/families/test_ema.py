"""The moving averages of Mega and Megalodon against their kernels, written out."""

from __future__ import annotations

import math

import numpy as np
import pytest
from families.derivatives import check_derivatives, match_of, read_layer
from families.impulse import impulse_response
from numpy.testing import assert_allclose
from numpy.typing import NDArray

from memcurse_cli.families.state_space.ema import EMA, TRANSFORMERS

D, N, STEPS = 3, 4, 20


def mega_layer(channels: int = D, *, tied: bool = False) -> dict[str, NDArray]:
    rng = np.random.default_rng(11)
    return {
        "layers.0.mega_layer.move.alpha": rng.normal(size=(channels, N, 1)),
        "layers.0.mega_layer.move.delta": rng.normal(size=(channels, 1 if tied else N, 1)),
        "layers.0.mega_layer.move.beta": rng.normal(size=(channels, N, 1)),
        "layers.0.mega_layer.move.gamma": rng.normal(size=(channels, N)),
        "layers.0.mega_layer.move.omega": rng.normal(size=D),
    }


def megalodon_layer() -> dict[str, NDArray]:
    rng = np.random.default_rng(12)
    return {
        "layers.0.mega.cema.alpha": rng.normal(size=(D, N, 1)),
        "layers.0.mega.cema.delta": rng.normal(size=(D, N, 1)),
        "layers.0.mega.cema.theta": rng.normal(size=(D, 1, 1)),
        "layers.0.mega.cema.gamma": rng.normal(size=(D, N, 2)),
        "layers.0.mega.cema.omega": rng.normal(size=(D, 1)),
    }


def part(layer: dict[str, NDArray], role: str) -> NDArray:
    (values,) = (array for name, array in layer.items() if name.endswith(f".{role}"))
    return values


def sigmoid(x: NDArray) -> NDArray:
    return 1 / (1 + np.exp(-x))


def mega_kernel(layer: dict[str, NDArray]) -> NDArray:
    """MultiHeadEMA._compute_kernel."""
    p, alpha = sigmoid(part(layer, "delta")), sigmoid(part(layer, "alpha"))
    powers = np.exp(np.arange(STEPS) * np.log(1 - p * alpha))
    kernel = p * part(layer, "beta") * powers
    return np.einsum("dnl,dn->dl", kernel, part(layer, "gamma") * math.sqrt(1 / N))


def test_the_mega_block_of_s4_has_no_last_axis_in_its_expansion() -> None:
    layer = mega_layer()
    beta = "layers.0.mega_layer.move.beta"
    block = {**layer, beta: layer[beta][..., 0]}
    response = impulse_response(read_layer(block, EMA()), STEPS)
    assert_allclose(response[0], mega_kernel(layer), rtol=0, atol=1e-12)
    check_derivatives(block, EMA())
    assert match_of({**layer, beta: np.ones((N, D))}, EMA()) == []


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


def test_the_names_of_transformers() -> None:
    layer = mega_layer()
    renamed = {
        f"mega.layers.0.mega_layer.ema_gate.{name}": part(layer, role)
        for role, name in TRANSFORMERS.items()
    }
    recurrence = read_layer(renamed, EMA())
    assert_allclose(impulse_response(recurrence, STEPS)[0], mega_kernel(layer), atol=1e-12)


def test_a_second_direction_has_channels_of_its_own() -> None:
    layer = mega_layer(2 * D)
    recurrence = read_layer(layer, EMA())
    assert "backward" in recurrence.assumptions[0]
    assert recurrence.projections == ()
    assert_allclose(impulse_response(recurrence, STEPS)[0], mega_kernel(layer), atol=1e-12)


def test_megalodon() -> None:
    layer = megalodon_layer()
    recurrence = read_layer(layer, EMA())
    # _calc_coeffs, and EMAParametersCPUFwdImpl: w = Re Σ p γ q^l
    theta = sigmoid(part(layer, "theta")) * (2 * math.pi / N)
    theta = np.arange(1, N + 1).reshape(1, N, 1) * theta
    p, delta = sigmoid(part(layer, "alpha")), sigmoid(part(layer, "delta"))
    q = (1 - p * delta) * np.exp(1j * theta)
    gamma = part(layer, "gamma")[..., 0] + 1j * part(layer, "gamma")[..., 1]
    weights = p[..., 0] * gamma * math.sqrt(1 / N)
    expected = np.einsum("dn,dnl->dl", weights, q ** np.arange(STEPS)).real
    assert_allclose(impulse_response(recurrence, STEPS)[0], expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("layer", [mega_layer(), mega_layer(tied=True), megalodon_layer()])
def test_derivatives(layer: dict[str, NDArray]) -> None:
    check_derivatives(layer, EMA())


def test_gates_far_from_the_middle() -> None:
    layer = mega_layer()
    part(layer, "alpha")[0, 0], part(layer, "delta")[0, 0] = -20, -10
    part(layer, "alpha")[0, 1], part(layer, "delta")[0, 1] = 900, 900
    recurrence = read_layer(layer, EMA())
    assert_allclose(recurrence.log_eigenvalues[0].real, -np.exp(-30), rtol=1e-4)
    assert np.isfinite(recurrence.log_eigenvalues).all()
    assert recurrence.log_eigenvalues[1].real < -30


def test_a_norm_s_gamma_and_beta_are_not_it() -> None:
    vectors = {f"norm.{role}": np.ones(N) for role in ("alpha", "beta", "gamma", "delta")}
    assert match_of(vectors, EMA()) == []
    layer = mega_layer()
    layer["layers.0.mega_layer.move.gamma"] = np.ones((D, N + 1))
    assert match_of(layer, EMA()) == []
