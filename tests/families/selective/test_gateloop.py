"""GateLoop, plain and simplified, against loops of the layers' own equations."""

from __future__ import annotations

import numpy as np
import pytest
from families.derivatives import check_derivatives, match_of, read_layer
from families.selective.layers import GATELOOP
from families.simulated_gates import check_bands, gates_of, joint_drive_of
from numpy.typing import NDArray

from memcurse_cli.checkpoints.memory import MemoryStore
from memcurse_cli.errors import TensorError
from memcurse_cli.families.selective.linear_attention import ANGLE_AT_ZERO, GateLoop, SimpleGateLoop

WIDTH, HEADS = 5, 4


def test_derivatives_near_a_bias_of_0() -> None:
    check_derivatives(GATELOOP, GateLoop(), tolerance=1e-6)


def transitions(inputs: NDArray[np.float64]) -> NDArray[np.complex128]:
    """λ of every head as gateloop-transformer computes it, of inputs (..., WIDTH)."""
    projected = inputs @ GATELOOP["to_a.0.weight"].T + GATELOOP["to_a.0.bias"]
    pairs = projected.reshape(*inputs.shape[:-1], HEADS, 2)
    a = pairs[..., 0] + 1j * pairs[..., 1]
    return 1 / (1 + np.exp(-np.abs(a))) * np.exp(1j * np.angle(a))


@pytest.mark.parametrize("scale", [0.3, 3.0])
def test_the_band_is_that_of_gates_on_random_inputs(scale: float) -> None:
    inputs = scale * np.random.default_rng(0).standard_normal((200_000, WIDTH))
    joint_drive_of(MemoryStore(GATELOOP), GateLoop())
    gates = gates_of(GATELOOP, input_scale=scale)
    check_bands(gates, np.abs(transitions(inputs)), tolerance=0.01, reason=ANGLE_AT_ZERO)
    assert gates.parameters == ()


def test_a_bias_without_an_angle_is_refused() -> None:
    bias = GATELOOP["to_a.0.bias"] * (np.arange(2 * HEADS) // 2 != 1)
    with pytest.raises(TensorError, match="head 1 has a bias of 0"):
        read_layer({**GATELOOP, "to_a.0.bias": bias}, GateLoop())


@pytest.mark.parametrize(
    ("role", "shape"),
    [
        ("to_a.0.bias", (7,)),
        ("to_a.0.weight", (2 * HEADS, WIDTH + 1)),
        ("to_qkv.weight", (37, WIDTH)),
        ("to_qkv.weight", (3,)),
        ("to_qkv.weight", (0, WIDTH)),
    ],
)
def test_other_shapes_are_not_it(role: str, shape: tuple[int, ...]) -> None:
    assert match_of({**GATELOOP, role: np.zeros(shape)}, GateLoop()) == []
    assert match_of({"to_qkva.0.weight": np.zeros((WIDTH, WIDTH))}, SimpleGateLoop()) == []
