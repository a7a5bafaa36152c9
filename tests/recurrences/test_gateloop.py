"""GateLoop, plain and simplified, against loops of the layers' own equations, and differences."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_allclose
from recurrences.derivatives import check_derivatives, match_of, read_layer

from memcurse_cli import inspect
from memcurse_cli.checkpoints.memory import MemoryStore
from memcurse_cli.errors import TensorError
from memcurse_cli.recurrences.family import ReadOptions
from memcurse_cli.recurrences.gate_drive import GateDrive, NoDrive
from memcurse_cli.recurrences.gateloop import GateLoop
from memcurse_cli.recurrences.gateloop_simple import SimpleGateLoop

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


def test_why_there_is_no_band() -> None:
    (match,) = match_of(ARRAYS, GateLoop())
    read = GateLoop().read(MemoryStore(ARRAYS), match, ReadOptions(gates=True))
    assert isinstance(read.gate, NoDrive)
    assert "complex projection" in read.gate.reason


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
