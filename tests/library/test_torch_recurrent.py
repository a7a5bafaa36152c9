"""The cells of torchrecurrent that torch has no shapes for, against the library's own."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from families.derivatives import check_derivatives, read_layer
from families.oracles import assert_same_spectrum
from families.simulated_gates import drive_of
from library.library_cells import (
    INPUTS,
    H,
    arrays_of,
    blinded,
    cell_of,
    jacobian,
    whole_jacobian,
)
from numpy.testing import assert_allclose

from memcurse_cli import inspect
from memcurse_cli.checkpoints.memory import MemoryStore
from memcurse_cli.errors import TensorError, UsageError
from memcurse_cli.families.cells.torchrecurrent import TorchRecurrent
from memcurse_cli.families.family import ReadOptions
from memcurse_cli.families.gate_inputs import NoDrive

FAMILY = TorchRecurrent()
BLOCKS = [slice(at * H, (at + 1) * H) for at in range(4)]


# The state that λ is that of, where there are two; MUT1 and the others have one.
CELLS: dict[str, dict[str, Any]] = {
    "RAN": {"double": True, "state": 1},
    **{name: {} for name in ("CFN", "MUT1", "LightRU", "STAR", "MinimalRNN")},
}


def prefix_of(name: str) -> str:
    return f"{name}.cells.0."


@pytest.mark.parametrize("name", CELLS)
def test_the_eigenvalues(name: str) -> None:
    cell = blinded(cell_of(name))
    recurrence = read_layer(arrays_of(cell, prefix_of(name)), FAMILY)
    assert recurrence.name == prefix_of(name).rstrip(".")
    kept = jacobian(cell, **CELLS[name])
    assert_allclose(np.exp(recurrence.log_eigenvalues), np.diag(kept), rtol=1e-12)
    assert_allclose(kept, np.diag(np.diag(kept)), atol=1e-15)


def gain_of(name: str, cell: torch.nn.Module) -> np.ndarray:
    """dh' by what comes in, c, at zero input and zero state: by autodiff through the weights of x.

    With W = 0 but for one input that adds ε to the candidate's pre-activation n alone, dh'/dε is
    γ dc/dn.
    """
    rows = {"RAN": 0, "CFN": 2, "MUT1": 2, "LightRU": 0, "STAR": 0}[name]
    with torch.no_grad():
        cell.weight_ih.zero_()
        cell.weight_ih[BLOCKS[rows], 0] = 1.0
    rest = torch.zeros(H, dtype=torch.float64)

    def step(push: torch.Tensor) -> torch.Tensor:
        x = torch.cat([push.reshape(1), torch.zeros(INPUTS - 1, dtype=torch.float64)])
        return cell(x, (rest, rest))[1] if name == "RAN" else cell(x, rest)

    nothing = torch.zeros((), dtype=torch.float64)
    return torch.autograd.functional.jacobian(step, nothing).detach().numpy()


@pytest.mark.parametrize("name", [name for name in CELLS if name != "MinimalRNN"])
def test_the_gain(name: str) -> None:
    cell = blinded(cell_of(name))
    recurrence = read_layer(arrays_of(cell, prefix_of(name)), FAMILY)
    inner = cell.bias_ih.detach().numpy()
    taken = {"RAN": np.ones(H), "LightRU": 1 - np.tanh(inner[BLOCKS[0]]) ** 2}
    taken["STAR"] = taken["LightRU"]
    if name == "CFN":
        taken[name] = 1 - np.tanh(inner[BLOCKS[2]]) ** 2
    if name == "MUT1":
        own = np.tanh(inner[BLOCKS[2]])
        outer = np.tanh(own + cell.bias_hh.detach().numpy()[BLOCKS[1]])
        taken[name] = (1 - outer**2) * (1 - own**2)
    gains = np.exp(recurrence.log_gain.real) * taken[name]
    assert_allclose(gains, gain_of(name, cell), rtol=1e-12)


def test_the_gain_of_a_minimal_rnn_is_what_its_gate_does_not_keep() -> None:
    cell = blinded(cell_of("MinimalRNN"))
    recurrence = read_layer(arrays_of(cell), FAMILY)
    nothing = torch.zeros(INPUTS, dtype=torch.float64)
    rest = torch.zeros(H, dtype=torch.float64)
    latent = torch.tanh(cell.bias_ih)
    # From rest the step takes in γ z.
    assert_allclose(
        np.exp(recurrence.log_gain.real),
        (cell(nothing, rest) / latent).detach().numpy(),
        rtol=1e-12,
    )


@pytest.mark.parametrize("name", CELLS)
def test_the_whole_step(name: str) -> None:
    cell = cell_of(name)
    store = MemoryStore(arrays_of(cell, prefix_of(name)))
    (match,) = FAMILY.find(store.tensors)
    found = FAMILY.read(store, match, ReadOptions(spectra=True))
    assert found.hidden is not None
    assert found.hidden.jacobian is not None
    expected = jacobian(cell, **CELLS[name])
    assert_same_spectrum(found.hidden.jacobian, np.linalg.eigvals(expected), 1e-11)
    blocks = cell.weight_hh.detach().numpy()
    assert len(found.hidden.gates) == len(blocks) // H


@pytest.mark.parametrize(("name", "rows"), [("MUT1", BLOCKS[0]), ("LightRU", BLOCKS[1])])
def test_what_drives_the_gate(name: str, rows: slice) -> None:
    cell = cell_of(name)
    drive = drive_of(MemoryStore(arrays_of(cell, prefix_of(name))), FAMILY)
    inputs = (cell.weight_ih.detach().numpy() ** 2).sum(1)
    assert_allclose(drive.gate.norms.inputs, inputs[rows])
    hidden = (cell.weight_hh.detach().numpy() ** 2).sum(1)
    assert_allclose(drive.gate.norms.hidden, hidden if name == "LightRU" else 0.0)
    assert (drive.state is None) == (name == "MUT1")
    if drive.state is not None:
        assert_allclose(drive.state.candidate.norms.inputs, inputs[BLOCKS[0]])
        assert_allclose(drive.state.candidate.bias, cell.bias_ih.detach().numpy()[BLOCKS[0]])
        assert not drive.state.candidate.norms.hidden.any()


@pytest.mark.parametrize(
    ("name", "others", "choice"),
    [("CFN", "CFN and MUT1 and NBR", "cfn"), ("STAR", "LightRU and STAR", "star")],
)
def test_shapes_that_do_not_tell(name: str, others: str, choice: str) -> None:
    arrays = arrays_of(cell_of(name), "model.cells.0.")
    with pytest.raises(TensorError, match=others) as caught:
        inspect(arrays)
    assert f"cell={choice}" in caught.value.remedy
    told = read_layer(arrays, FAMILY, cell=choice)
    named = read_layer(arrays_of(cell_of(name), prefix_of(name)), FAMILY)
    assert_allclose(told.log_eigenvalues, named.log_eigenvalues)
    assert "as given" in told.assumptions[0]
    assert "by its name" in named.assumptions[0]


@pytest.mark.parametrize(
    ("name", "title"), [("NBR", "NBR"), ("GatedAntisymmetricRNN", "AntisymmetricRNN")]
)
def test_a_name_that_says_a_cell_that_is_not_read(name: str, title: str) -> None:
    with pytest.raises(TensorError, match=f"its name says {title}"):
        inspect(arrays_of(cell_of(name), prefix_of(name)))


@pytest.mark.parametrize("function", ["tanh", "sigmoid"])
def test_a_fast_grnn(function: str) -> None:
    cell = cell_of("FastGRNN", nonlinearity=function)
    arrays = arrays_of(cell)
    check_derivatives(arrays, FAMILY, gate_activation=function)
    store = MemoryStore(arrays)
    (match,) = FAMILY.find(store.tensors)
    options = ReadOptions(spectra=True, assume={"gate_activation": function})
    whole = FAMILY.read(store, match, options)
    assert whole.hidden is not None
    assert whole.hidden.jacobian is not None
    assert_same_spectrum(whole.hidden.jacobian, np.linalg.eigvals(jacobian(cell)), 1e-11)
    # Without W and U the step is λ h + γ tanh(b_h).
    own = np.exp(read_layer(arrays, FAMILY, gate_activation=function).log_eigenvalues)
    assert_allclose(own, np.diag(jacobian(blinded(cell))), rtol=1e-12)
    rest = torch.zeros(H, dtype=torch.float64)
    candidate = torch.tanh((cell.bias_ih + cell.bias_hh)[H:])
    taken = (cell(torch.zeros(INPUTS, dtype=torch.float64), rest) / candidate).detach().numpy()
    assert_allclose(np.exp(whole.log_gain.real), taken, rtol=1e-12)


def test_the_gate_of_a_fast_grnn_is_a_tanh_by_default() -> None:
    arrays = arrays_of(cell_of("FastGRNN"))
    found = read_layer(arrays, FAMILY)
    total = (arrays["bias_ih"] + arrays["bias_hh"])[:H]
    assert total.min() < 0
    assert_allclose(np.exp(found.log_eigenvalues), np.tanh(total), rtol=1e-12)
    assert "gate_activation=tanh" in found.assumptions[0]
    store = MemoryStore(arrays)
    (match,) = FAMILY.find(store.tensors)
    assert isinstance(FAMILY.read(store, match, ReadOptions(gates=True)).gate, NoDrive)


def test_what_drives_the_gate_of_a_fast_grnn() -> None:
    cell = cell_of("FastGRNN", nonlinearity="sigmoid")
    drive = drive_of(MemoryStore(arrays_of(cell)), FAMILY, gate_activation="sigmoid")
    inputs, hidden = (
        (getattr(cell, name).detach().numpy() ** 2).sum(1) for name in ("weight_ih", "weight_hh")
    )
    assert drive.state is not None
    for seen in (drive.gate, drive.state.candidate):
        assert_allclose(seen.norms.inputs, inputs)
        assert_allclose(seen.norms.hidden, hidden)
    assert drive.state.written is not None


def lem(**arguments: float) -> torch.nn.Module:
    return cell_of("LEM", **arguments)


@pytest.mark.parametrize("dt", [1.0, 0.3])
def test_a_long_expressive_memory(dt: float) -> None:
    cell = blinded(lem(dt=dt), "weight_hh", "weight_ch")
    found = read_layer(arrays_of(cell), FAMILY, dt=str(dt))
    kept = np.concatenate([np.diag(jacobian(cell, double=True, state=at)) for at in (0, 1)])
    assert_allclose(np.exp(found.log_eigenvalues), kept, rtol=1e-12)
    assert_allclose(np.exp(found.log_gain), 1 - kept, rtol=1e-12)
    check_derivatives(arrays_of(lem()), FAMILY, dt=str(dt))
    with pytest.raises(UsageError):
        read_layer(arrays_of(cell), FAMILY, dt="2")


def test_the_whole_step_of_a_long_expressive_memory() -> None:
    cell = lem(dt=0.7)
    store = MemoryStore(arrays_of(cell))
    (match,) = FAMILY.find(store.tensors)
    found = FAMILY.read(store, match, ReadOptions(spectra=True, assume={"dt": "0.7"}))
    expected = whole_jacobian(cell)
    assert found.hidden is not None
    assert found.hidden.jacobian is not None
    assert_same_spectrum(found.hidden.jacobian, np.linalg.eigvals(expected), 1e-11)


def test_what_drives_the_steps_of_a_long_expressive_memory() -> None:
    cell = lem()
    drive = drive_of(MemoryStore(arrays_of(cell)), FAMILY)
    own, hidden, shown = (
        (getattr(cell, name).detach().numpy() ** 2).sum(1)
        for name in ("weight_ih", "weight_hh", "weight_ch")
    )
    assert_allclose(drive.gate.norms.hidden, hidden[: 2 * H])
    assert drive.state is not None
    assert drive.state.cascade == H
    norms = drive.state.candidate.norms
    assert_allclose(norms.inputs, np.concatenate([own[BLOCKS[3]], own[BLOCKS[2]]]))
    assert_allclose(norms.hidden, np.concatenate([shown, hidden[BLOCKS[2]]]))
