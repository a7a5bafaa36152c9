"""The constant of a long expressive memory, its precision, and its gates against its own run."""

from __future__ import annotations

import numpy as np
import pytest
from families.derivatives import match_of, read_layer
from families.simulated_gates import check_bands, drive_of, gates_of
from numpy.testing import assert_allclose

from memcurse_cli.checkpoints.memory import MemoryStore
from memcurse_cli.errors import UsageError
from memcurse_cli.families.cells.papers import LEM

H, INPUTS = 3, 2
LINEARS = {"inp2hid": (4 * H, INPUTS), "hid2hid": (3 * H, H), "transform_z": (H, H)}


def cell() -> dict[str, np.ndarray]:
    generator = np.random.default_rng(8)
    arrays = {}
    for layer, shape in LINEARS.items():
        arrays[f"cell.{layer}.weight"] = generator.normal(size=shape)
        arrays[f"cell.{layer}.bias"] = generator.normal(size=shape[0])
    return arrays


def test_a_constant_in_the_file_is_that_of_the_layer() -> None:
    stored = cell() | {"cell.dt": np.array(0.5)}
    given = read_layer(cell(), LEM(), dt="0.5")
    recurrence = read_layer(stored, LEM())
    assert_allclose(recurrence.log_eigenvalues, given.log_eigenvalues, rtol=0)
    assert "dt=0.5 (stored as cell.dt)" in " ".join(recurrence.assumptions)


def test_long_memories_keep_their_digits() -> None:
    arrays = cell()
    arrays["cell.inp2hid.bias"] = np.full(4 * H, -60.0)
    arrays["cell.hid2hid.bias"] = np.zeros(3 * H)
    recurrence = read_layer(arrays, LEM())
    assert_allclose(recurrence.log_eigenvalues.real, -np.exp(-60.0), rtol=1e-12)


def test_what_is_refused() -> None:
    with pytest.raises(UsageError, match="outside"):
        read_layer(cell(), LEM(), dt="2")
    assert match_of(cell() | {"cell.hid2hid.weight": np.zeros((4 * H, H))}, LEM()) == []


@pytest.mark.parametrize("dt", ["1", "0.3"])
def test_the_bands_are_those_of_the_cell(dt: str) -> None:
    """Both sets of steps see x and y, whose size follows from that of z."""
    random = np.random.default_rng(3)
    size, inputs = 64, 24
    w = random.normal(size=(4, size, inputs)) / 3
    u = random.normal(size=(3, size, size)) / 12
    shown = random.normal(size=(size, size)) / 12
    bias = random.normal(size=(4, size)) - 1
    arrays = {
        "inp2hid.weight": w.reshape(-1, inputs),
        "inp2hid.bias": bias.ravel(),
        "hid2hid.weight": u.reshape(-1, size),
        "hid2hid.bias": np.zeros(3 * size),
        "transform_z.weight": shown,
        "transform_z.bias": np.zeros(size),
    }
    y, z = np.zeros((2, size))
    kept, squares = [], []
    for x in random.normal(size=(12_000, inputs)):
        slow, fast, into_y, into_z = w @ x + bias
        by_slow, by_fast, by_z = u @ y
        of_y, of_z = (float(dt) / (1 + np.exp(-at)) for at in (slow + by_slow, fast + by_fast))
        z = (1 - of_z) * z + of_z * np.tanh(into_z + by_z)
        y = (1 - of_y) * y + of_y * np.tanh(into_y + shown @ z)
        kept.append(np.concatenate([1 - of_y, 1 - of_z]))
        squares.append(np.mean(y**2))
    drive_of(MemoryStore(arrays), LEM(), dt=dt)
    gates = gates_of(arrays, assume={"dt": dt})
    check_bands(gates, np.array(kept[500:]))
    assert_allclose(gates.hidden_second_moment, np.mean(squares[500:]), rtol=0.1)
