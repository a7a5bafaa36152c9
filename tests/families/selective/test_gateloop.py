"""GateLoop, plain and simplified, against loops of the layers' own equations."""

from __future__ import annotations

import numpy as np
import pytest
from families.derivatives import check_derivatives, match_of, read_layer
from families.selective.layers import GATELOOP
from families.simulated_gates import check_bands, gates_of, joint_drive_of
from numpy.testing import assert_allclose
from numpy.typing import NDArray

from memcurse_cli.checkpoints.memory import MemoryStore
from memcurse_cli.errors import TensorError
from memcurse_cli.families.selective.gateloop import ANGLE_AT_ZERO, GateLoop, SimpleGateLoop

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


def test_the_second_moment_is_that_of_states_with_drawn_gates() -> None:
    """S[t] = λ S[t-1] + x with x of R(Δ) = 0.8^Δ, beside those of gates at their bias."""
    rng = np.random.default_rng(1)
    chains, steps, scale = 4000, 240, 0.7
    state, held = np.zeros((2, chains, HEADS), dtype=np.complex128)
    still = transitions(np.zeros(WIDTH))
    drive = rng.standard_normal((chains, 1))
    squares = np.zeros((2, HEADS))
    for step in range(steps):
        state = transitions(scale * rng.standard_normal((chains, WIDTH))) * state + drive
        held = still * held + drive
        drive = 0.8 * drive + 0.6 * rng.standard_normal((chains, 1))
        if step >= steps // 2:
            squares += [np.mean(np.abs(one) ** 2, axis=0) / (steps / 2) for one in (state, held)]
    figure = gates_of(GATELOOP, input_scale=scale, autocorrelation="1:0.8").second_moment
    assert figure is not None
    for of, seen in zip((figure.moving, figure.nominal), squares, strict=True):
        expected = [np.min(seen), np.median(seen), np.max(seen)]
        assert_allclose([of.min, of.p50, of.max], expected, rtol=0.03)
    assert_allclose(figure.ratio.max, np.max(squares[0] / squares[1]), rtol=0.03)
    assert abs(np.log(squares[0] / squares[1])).max() > 0.2  # gates that move it


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
