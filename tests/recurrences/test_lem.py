"""The long expressive memory against autodiff of its cell's step."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from recurrences.derivatives import check_derivatives, match_of, read_layer
from recurrences.oracles import assert_same_spectrum

from memcurse_cli.checkpoints.memory import MemoryStore
from memcurse_cli.errors import UsageError
from memcurse_cli.recurrences.family import ReadOptions
from memcurse_cli.recurrences.lem import LEM

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
