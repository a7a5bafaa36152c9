"""The long expressive memory against autodiff of its cell's step."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from families.derivatives import check_derivatives, match_of, read_layer
from families.oracles import assert_same_spectrum
from families.simulated_gates import check_bands, drive_of, gates_of
from numpy.testing import assert_allclose

from memcurse_cli.checkpoints.memory import MemoryStore
from memcurse_cli.errors import UsageError
from memcurse_cli.families.cells.lem import LEM
from memcurse_cli.families.family import ReadOptions

H, INPUTS = 3, 2
LINEARS = {"inp2hid": (4 * H, INPUTS), "hid2hid": (3 * H, H), "transform_z": (H, H)}


def cell() -> dict[str, np.ndarray]:
    generator = np.random.default_rng(8)
    arrays = {}
    for layer, shape in LINEARS.items():
        arrays[f"cell.{layer}.weight"] = generator.normal(size=shape)
        arrays[f"cell.{layer}.bias"] = generator.normal(size=shape[0])
    return arrays


def step(state: torch.Tensor, dt: float) -> torch.Tensor:
    """[y, z] after LEMCell.forward at zero input."""
    w = {name.partition(".")[2]: torch.tensor(array) for name, array in cell().items()}
    y, z = state[:H], state[H:]
    i_dt1, i_dt2, i_z, i_y = torch.split(w["inp2hid.bias"], H)
    h_dt1, h_dt2, h_y = torch.split(w["hid2hid.weight"] @ y + w["hid2hid.bias"], H)
    slow, fast = dt * torch.sigmoid(i_dt1 + h_dt1), dt * torch.sigmoid(i_dt2 + h_dt2)
    z = (1 - fast) * z + fast * torch.tanh(i_y + h_y)
    transformed = w["transform_z.weight"] @ z + w["transform_z.bias"]
    return torch.cat([(1 - slow) * y + slow * torch.tanh(transformed + i_z), z])


@pytest.mark.parametrize("dt", ["1", "0.05"])
def test_the_gates_and_the_whole_step(dt: str) -> None:
    store = MemoryStore(cell())
    (match,) = LEM().find(store.tensors)
    recurrence = LEM().read(store, match, ReadOptions(assume={"dt": dt}, spectra=True))
    biases = (cell()["cell.inp2hid.bias"][: 2 * H], cell()["cell.hid2hid.bias"][: 2 * H])
    steps = float(dt) / (1 + np.exp(-(biases[0] + biases[1])))
    assert_allclose(np.exp(recurrence.log_eigenvalues), 1 - steps, rtol=1e-12)
    assert_allclose(np.exp(recurrence.log_gain), steps, rtol=1e-12)
    assert recurrence.hidden is not None
    assert recurrence.hidden.jacobian is not None
    origin = torch.zeros(2 * H, dtype=torch.float64)
    jacobian = torch.autograd.functional.jacobian(lambda s: step(s, float(dt)), origin)
    theirs = np.linalg.eigvals(jacobian.numpy())
    assert_same_spectrum(recurrence.hidden.jacobian, theirs, 1e-11)


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


@pytest.mark.parametrize("dt", ["1", "0.3"])
def test_derivatives(dt: str) -> None:
    rows = {f"{layer}.bias[steps]": slice(0, 2 * H) for layer in ("inp2hid", "hid2hid")}
    check_derivatives(cell(), LEM(), elements=rows, dt=dt)


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
