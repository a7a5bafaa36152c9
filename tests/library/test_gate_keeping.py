"""LiGRU, JANET and UGRNN against torchrecurrent's own cells."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from families.derivatives import check_derivatives, read_layer
from families.oracles import assert_same_spectrum
from families.simulated_gates import drive_of
from library.library_cells import H, arrays_of, blinded, cell_of, jacobian, kick
from numpy.testing import assert_allclose

from memcurse_cli.checkpoints.memory import MemoryStore
from memcurse_cli.errors import TensorError
from memcurse_cli.families.cells.torch import MGU
from memcurse_cli.families.family import ReadOptions
from memcurse_cli.families.gate_inputs import NoDrive
from memcurse_cli.theory.gates.fixed_point import RELU, TANH

FIRST, SECOND = slice(0, H), slice(H, 2 * H)
# The rows of the gate and of the candidate, and whether there are two states.
CELLS = {
    "MGU": (FIRST, SECOND, False),
    "LiGRU": (FIRST, SECOND, False),
    "UGRNN": (SECOND, FIRST, False),
    "JANET": (FIRST, SECOND, True),
}


def state_of(name: str) -> dict[str, Any]:
    double = CELLS[name][2]
    return {"double": double, "state": int(double)}


@pytest.mark.parametrize("name", CELLS)
def test_the_gate(name: str) -> None:
    _, candidate, _ = CELLS[name]
    cell = blinded(cell_of(name))
    recurrence = read_layer(arrays_of(cell, f"{name.lower()}.cells.0."), MGU)
    kept = jacobian(cell, **state_of(name))
    assert_allclose(np.exp(recurrence.log_eigenvalues.real), np.diag(kept), rtol=1e-12)
    assert_allclose(kept, np.diag(np.diag(kept)), atol=1e-15)
    bias = (cell.bias_ih + cell.bias_hh).detach().numpy()[candidate]
    slope = (bias > 0).astype(float) if name == "LiGRU" else 1 - np.tanh(bias) ** 2
    assert np.count_nonzero(slope) > 0
    gain = kick(cell, candidate, **state_of(name))
    assert_allclose(np.exp(recurrence.log_gain.real) * slope, gain, rtol=1e-12)


@pytest.mark.parametrize("name", CELLS)
def test_derivatives(name: str) -> None:
    check_derivatives(arrays_of(cell_of(name), f"{name.lower()}.cells.0."), MGU)


def test_janets_offset_is_a_parameter_of_its_own() -> None:
    arrays = arrays_of(cell_of("JANET"))
    recurrence = read_layer(arrays, MGU)  # its scalar tells
    (offset,) = (group for group in recurrence.parameters if group.name == "beta")
    assert offset.size == 1
    assert offset.eigenvalue.tolist() == list(range(H))
    assert any("cell=janet (by its scalar beta)" in text for text in recurrence.assumptions)
    without = read_layer(arrays, MGU, cell="mgu")
    assert_allclose(
        np.exp(without.log_eigenvalues), 1 - np.exp(recurrence.log_eigenvalues), rtol=1e-12
    )
    with pytest.raises(TensorError, match="an MGU has no beta"):
        read_layer({f"ligru.{name}": array for name, array in arrays.items()}, MGU)


def whole(recurrence: Any) -> Any:
    assert recurrence.hidden is not None
    assert recurrence.hidden.jacobian is not None
    return recurrence.hidden.jacobian


@pytest.mark.parametrize("name", ["MGU", "UGRNN"])
def test_the_whole_step(name: str) -> None:
    cell = cell_of(name)
    store = MemoryStore(arrays_of(cell, f"{name}_"))
    (match,) = MGU.find(store.tensors)
    found = MGU.read(store, match, ReadOptions(spectra=True))
    assert_same_spectrum(whole(found), np.linalg.eigvals(jacobian(cell)), 1e-11)


def test_the_whole_step_of_a_janet() -> None:
    cell = cell_of("JANET")
    store = MemoryStore(arrays_of(cell))
    (match,) = MGU.find(store.tensors)
    found = MGU.read(store, match, ReadOptions(spectra=True))
    # Its h is its c: the two derivatives add.
    rows = [jacobian(cell, double=True, state=1), through_h(cell)]
    assert_same_spectrum(whole(found), np.linalg.eigvals(sum(rows)), 1e-11)


def through_h(cell: Any) -> np.ndarray:

    rest = torch.zeros(H, dtype=torch.float64)
    nothing = torch.zeros(3, dtype=torch.float64)
    return torch.autograd.functional.jacobian(lambda h: cell(nothing, (h, rest))[1], rest).numpy()


@pytest.mark.parametrize("name", ["LiGRU", "UGRNN", "JANET"])
def test_what_drives_the_gate(name: str) -> None:
    gate, candidate, _ = CELLS[name]
    cell = cell_of(name)
    store = MemoryStore(arrays_of(cell, f"{name.lower()}.cells.0."))
    drive = drive_of(store, MGU)
    inputs, hidden = (getattr(cell, f"weight_{side}").detach().numpy() for side in ("ih", "hh"))
    bias = (cell.bias_ih + cell.bias_hh).detach().numpy()
    assert drive.state is not None
    for seen, rows in ((drive.gate, gate), (drive.state.candidate, candidate)):
        assert_allclose(seen.bias, bias[rows])
        assert_allclose(seen.norms.inputs, (inputs[rows] ** 2).sum(1))
        assert_allclose(seen.norms.hidden, (hidden[rows] ** 2).sum(1))
    assert drive.state.reset is None
    assert drive.state.function is (RELU if name == "LiGRU" else TANH)
    values = drive.law(drive.gate.bias)
    recurrence = read_layer({at: store.read(at) for at in store.tensors}, MGU)
    assert_allclose(values.gain, np.exp(recurrence.log_gain.real), rtol=1e-12)


def test_a_cell_that_only_the_user_says_keeps_has_no_figures() -> None:
    arrays = arrays_of(cell_of("LiGRU"))
    store = MemoryStore(arrays)
    (match,) = MGU.find(store.tensors)
    options = ReadOptions(gates=True, spectra=True, assume={"gate_keeps": "yes"})
    recurrence = MGU.read(store, match, options)
    assert isinstance(recurrence.gate, NoDrive)
    assert "--assume cell" in recurrence.gate.reason
    assert recurrence.hidden is not None
    assert recurrence.hidden.jacobian is None
    told = read_layer(arrays, MGU, cell="ligru")
    assert_allclose(told.log_eigenvalues, recurrence.log_eigenvalues)
