"""GateLoop, plain and simplified, against loops of the layers' own equations, and differences."""

from __future__ import annotations

import numpy as np
import pytest
from families.derivatives import check_derivatives, match_of, read_layer
from families.simulated_gates import check_bands, gates_of
from numpy.testing import assert_allclose
from numpy.typing import NDArray

from memcurse_cli import inspect
from memcurse_cli.checkpoints.memory import MemoryStore
from memcurse_cli.errors import TensorError
from memcurse_cli.families.family import ReadOptions
from memcurse_cli.families.gate_inputs import GateDrive, JointDrive
from memcurse_cli.families.selective.gateloop import ANGLE_AT_ZERO, GateLoop, SimpleGateLoop

RNG = np.random.default_rng(23)
WIDTH, HEADS, HEAD_SIZE = 5, 4, 3
ARRAYS = {
    "to_qkv.weight": RNG.normal(size=(3 * HEADS * HEAD_SIZE, WIDTH)),
    "to_a.0.weight": RNG.normal(size=(2 * HEADS, WIDTH)),
    "to_a.0.bias": RNG.normal(size=2 * HEADS),
}
SIMPLE = {"to_qkva.0.weight": RNG.normal(size=(3 * WIDTH, WIDTH)), "norm.gamma": np.ones(WIDTH)}


def test_the_state_turns_and_decays_as_the_bias_says() -> None:
    """torch.polar(|a|.sigmoid(), angle(a)) of a pair of numbers, five steps after k vᵀ."""
    recurrence = read_layer({f"layers.0.0.fn.{name}": a for name, a in ARRAYS.items()}, GateLoop())
    assert recurrence.name == "layers.0.0.fn"
    assert recurrence.multiplicity == HEAD_SIZE**2
    for head, (real, imaginary) in enumerate(ARRAYS["to_a.0.bias"].reshape(HEADS, 2)):
        radius, angle = np.hypot(real, imaginary), np.arctan2(imaginary, real)
        state = 1.0 + 0j
        for _ in range(5):
            state *= 1 / (1 + np.exp(-radius)) * (np.cos(angle) + 1j * np.sin(angle))
        assert_allclose(np.exp(5 * recurrence.log_eigenvalues[head]), state, rtol=1e-12)


def test_derivatives() -> None:
    check_derivatives(ARRAYS, GateLoop(), tolerance=1e-6)
    far = {**ARRAYS, "to_a.0.bias": 3 + ARRAYS["to_a.0.bias"]}
    check_derivatives(far, GateLoop())


def transitions(inputs: NDArray[np.float64]) -> NDArray[np.complex128]:
    """λ of every head as gateloop-transformer computes it, of inputs (..., WIDTH)."""
    projected = inputs @ ARRAYS["to_a.0.weight"].T + ARRAYS["to_a.0.bias"]
    pairs = projected.reshape(*inputs.shape[:-1], HEADS, 2)
    a = pairs[..., 0] + 1j * pairs[..., 1]
    return 1 / (1 + np.exp(-np.abs(a))) * np.exp(1j * np.angle(a))


def test_its_parts_alternate_in_the_weights_too() -> None:
    (match,) = match_of(ARRAYS, GateLoop())
    store = MemoryStore(ARRAYS)
    assert GateLoop().read(store, match, ReadOptions()).gate is None
    drive = GateLoop().read(store, match, ReadOptions(gates=True)).gate
    assert isinstance(drive, JointDrive)
    gates = drive.preactivations(0.49)
    weight = ARRAYS["to_a.0.weight"].reshape(HEADS, 2, WIDTH)
    assert_allclose(gates.covariance, 0.49 * weight @ weight.swapaxes(1, 2))
    assert_allclose(gates.mean, ARRAYS["to_a.0.bias"].reshape(HEADS, 2))


@pytest.mark.parametrize("scale", [0.3, 1.0, 3.0])
def test_the_band_is_that_of_gates_on_random_inputs(scale: float) -> None:
    inputs = scale * np.random.default_rng(0).standard_normal((200_000, WIDTH))
    gates = gates_of(ARRAYS, input_scale=scale)
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
    figure = gates_of(ARRAYS, input_scale=scale, autocorrelation="1:0.8").second_moment
    assert figure is not None
    for of, seen in zip((figure.moving, figure.nominal), squares, strict=True):
        expected = [np.min(seen), np.median(seen), np.max(seen)]
        assert_allclose([of.min, of.p50, of.max], expected, rtol=0.03)
    assert_allclose(figure.ratio.max, np.max(squares[0] / squares[1]), rtol=0.03)
    assert abs(np.log(squares[0] / squares[1])).max() > 0.2  # gates that move it


def test_weights_that_are_nothing_leave_every_figure_at_the_bias() -> None:
    arrays = {**ARRAYS, "to_a.0.weight": np.zeros((2 * HEADS, WIDTH))}
    gates = gates_of(arrays)
    assert gates.second_moment is not None
    assert gates.second_moment.ratio.max == gates.second_moment.ratio.min == 1
    moduli = np.abs(transitions(np.zeros(WIDTH)))
    assert_allclose([band.modulus.max for band in gates.bands], moduli.max(), rtol=1e-12)


def test_a_bias_without_an_angle_is_refused() -> None:
    bias = ARRAYS["to_a.0.bias"].copy()
    bias[2:4] = 0
    with pytest.raises(TensorError, match="head 1 has a bias of 0"):
        read_layer({**ARRAYS, "to_a.0.bias": bias}, GateLoop())


@pytest.mark.parametrize(
    "change",
    [
        {"to_a.0.bias": np.zeros(7)},
        {"to_a.0.weight": np.zeros((2 * HEADS, WIDTH + 1))},
        {"to_qkv.weight": np.zeros((3 * HEADS * HEAD_SIZE + 1, WIDTH))},
        {"to_qkv.weight": np.zeros(3)},
        {"to_qkv.weight": np.zeros((0, WIDTH))},
    ],
)
def test_other_shapes_are_not_it(change: dict[str, np.ndarray]) -> None:
    assert match_of({**ARRAYS, **change}, GateLoop()) == []


def test_a_simple_layer_keeps_half_at_zero_input() -> None:
    recurrence = read_layer(SIMPLE, SimpleGateLoop())
    assert_allclose(np.exp(recurrence.log_eigenvalues), 0.5)
    assert recurrence.parameters == ()
    assert match_of({"to_qkva.0.weight": np.zeros((WIDTH, WIDTH))}, SimpleGateLoop()) == []


def test_the_band_of_a_simple_layer_is_that_of_its_last_rows() -> None:
    (match,) = match_of(SIMPLE, SimpleGateLoop())
    drive = SimpleGateLoop().read(MemoryStore(SIMPLE), match, ReadOptions(gates=True)).gate
    assert isinstance(drive, GateDrive)
    rows = SIMPLE["to_qkva.0.weight"][2 * WIDTH :]
    inputs = np.random.default_rng(0).standard_normal((200_000, WIDTH))
    drawn = inputs @ rows.T
    assert_allclose(drive.gate.norms.inputs, drawn.var(axis=0), rtol=0.02)
    assert_allclose(drive.law(np.array([0.3])).eigenvalue, 1 / (1 + np.exp(-0.3)))
    assert inspect(SIMPLE, gates=True).layers[0].gates is not None
