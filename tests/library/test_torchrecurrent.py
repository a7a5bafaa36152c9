"""Every cell of torchrecurrent against the library's own step, or refused with a reason."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from checkpoints.readers import arrays_of
from families.derivatives import check_derivatives, read_layer
from families.oracles import assert_same_spectrum, run_on
from families.simulated_gates import drive_of
from numpy.testing import assert_allclose
from numpy.typing import NDArray

from memcurse_cli import inspect
from memcurse_cli.checkpoints.open import MemoryStore
from memcurse_cli.errors import TensorError, UsageError
from memcurse_cli.families.cells.papers import TORCH_RECURRENT
from memcurse_cli.families.cells.torch import GRU, LSTM, MGU, named_cell
from memcurse_cli.families.family import Family, ReadOptions
from memcurse_cli.families.gate_inputs import NoDrive, OwnStateDrive
from memcurse_cli.families.recurrence import Recurrence
from memcurse_cli.families.state_space.oscillators import IndRNN

torchrecurrent = pytest.importorskip("torchrecurrent")

INPUTS, H = 3, 4
REST = torch.zeros(H, dtype=torch.float64)
NOTHING = torch.zeros(INPUTS, dtype=torch.float64)
FIRST, SECOND, THIRD = (slice(at * H, (at + 1) * H) for at in range(3))
OWN = TORCH_RECURRENT


def cell_of(name: str, **arguments: Any) -> torch.nn.Module:
    """A cell with random parameters in double precision, biases too."""
    made = getattr(torchrecurrent, f"{name}Cell")(INPUTS, H, dtype=torch.float64, **arguments)
    generator = torch.Generator().manual_seed(6)
    with torch.no_grad():
        for parameter in made.double().parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
    return made


def blinded(cell: torch.nn.Module, *weights: str) -> torch.nn.Module:
    """The cell without its hidden weights: what is left of its memory is each unit's own."""
    with torch.no_grad():
        for weight in weights or ("weight_hh",):
            getattr(cell, weight).zero_()
    return cell


def step(cell: torch.nn.Module, x: torch.Tensor, state: torch.Tensor, at: int) -> torch.Tensor:
    """The next state; of two of them the one ``at`` this place, from the other at rest."""
    if at < 0:
        return cell(x, state)
    return cell(x, (REST, state) if at else (state, REST))[at]


def jacobian(cell: torch.nn.Module, at: int = -1) -> NDArray[Any]:
    """Of one step at zero input and zero state, by autodiff."""
    return torch.autograd.functional.jacobian(lambda h: step(cell, NOTHING, h, at), REST).numpy()


def both_states(cell: torch.nn.Module) -> NDArray[Any]:
    """The same of both states of a cell."""

    def whole(states: torch.Tensor) -> torch.Tensor:
        return torch.cat(cell(NOTHING, (states[:H], states[H:])))

    return torch.autograd.functional.jacobian(whole, torch.cat([REST, REST])).numpy()


def through_h(cell: torch.nn.Module) -> NDArray[Any]:
    """JANET's h is its c: the derivatives by both add."""
    by_h = torch.autograd.functional.jacobian(lambda h: cell(NOTHING, (h, REST))[1], REST)
    return jacobian(cell, 1) + by_h.numpy()


class Read(NamedTuple):
    """A cell that is read: by whom, the candidate's rows in weight_ih, the state, its step."""

    family: Family
    new: slice
    at: int = -1
    whole: Any = jacobian


CELLS = {
    "MUT2": Read(GRU, THIRD),
    "MUT3": Read(GRU, THIRD),
    "PeepholeLSTM": Read(LSTM, THIRD, 1, both_states),
    "MGU": Read(MGU, SECOND),
    "LiGRU": Read(MGU, SECOND, whole=None),
    "UGRNN": Read(MGU, FIRST),
    "JANET": Read(MGU, SECOND, 1, through_h),
    "RAN": Read(OWN, FIRST, 1, lambda cell: jacobian(cell, 1)),
    "CFN": Read(OWN, THIRD),
    "MUT1": Read(OWN, THIRD),
    "LightRU": Read(OWN, FIRST),
    "STAR": Read(OWN, FIRST),
    "MinimalRNN": Read(OWN, FIRST),
}


RUN = ("MUT2", "PeepholeLSTM", "MGU", "UGRNN", "LightRU")


def prefix_of(name: str) -> str:
    return f"{name}.cells.0."


def gain_of(name: str, cell: torch.nn.Module) -> tuple[NDArray[Any], NDArray[Any]]:
    """∂h' by what one input adds to the candidate's pre-activation n alone, and ∂f(n)."""
    _, new, at, _ = CELLS[name]
    inputs, hidden = cell.bias_ih.detach().numpy(), cell.bias_hh.detach().numpy()
    if name == "RAN":
        slope = np.ones(H)
    elif name == "MUT1":
        own = np.tanh(inputs[new])
        slope = (1 - np.tanh(own + hidden[SECOND]) ** 2) * (1 - own**2)
    else:
        n = inputs[new] + (hidden[new] if hidden.shape == inputs.shape else 0)
        slope = (n > 0) * 1.0 if name == "LiGRU" else 1 - np.tanh(n) ** 2
    with torch.no_grad():
        cell.weight_ih.zero_()
        cell.weight_ih[new, 0] = 1.0
    by_input = torch.autograd.functional.jacobian(lambda x: step(cell, x, REST, at), NOTHING)
    return by_input[:, 0].numpy(), slope


@pytest.mark.parametrize("name", CELLS)
def test_what_a_unit_keeps_and_takes_in_by_itself(name: str) -> None:
    family, _, at, _ = CELLS[name]
    cell = blinded(cell_of(name))
    found = read_layer(arrays_of(cell, prefix_of(name)), family)
    kept = jacobian(cell, at)
    assert_allclose(np.exp(found.log_eigenvalues), np.diag(kept), rtol=1e-12)
    assert_allclose(kept, np.diag(np.diag(kept)), atol=1e-15)
    gain = np.exp(found.log_gain.real)
    if name == "MinimalRNN":  # the gate sees the latent input too; from rest a step takes in γ z
        taken, slope = step(cell, NOTHING, REST, at), np.tanh(cell.bias_ih.detach().numpy())
        assert_allclose(gain * slope, taken.detach(), rtol=1e-12)
    else:
        taken, slope = gain_of(name, cell)
        assert np.count_nonzero(slope) > 0
        assert_allclose(gain * slope, taken, rtol=1e-12)
    check_derivatives(arrays_of(cell_of(name), prefix_of(name)), family)


@pytest.mark.parametrize("name", CELLS)
def test_a_run_is_the_cell_s(name: str) -> None:
    cell, inputs = cell_of(name), torch.randn(5, 1, INPUTS, dtype=torch.float64)
    store, family = MemoryStore(arrays_of(cell, prefix_of(name))), CELLS[name].family
    found = family.read(store, family.find(store.tensors)[0], ReadOptions(simulate=True))
    assert (found.dynamics is not None) == (name in RUN)
    if found.dynamics is not None:
        state: Any = (REST[None],) * 2 if name == "PeepholeLSTM" else REST[None]
        for x in inputs:
            state = cell(x, state)
        shown = state[0] if isinstance(state, tuple) else state
        assert_allclose(run_on(found, inputs.numpy()), shown.detach().numpy(), atol=1e-12)


def read_whole(cell: torch.nn.Module, family: Family, prefix: str, **assume: str) -> Recurrence:
    store = MemoryStore(arrays_of(cell, prefix))
    (match,) = family.find(store.tensors)
    return family.read(store, match, ReadOptions(spectra=True, gates=True, assume=assume))


@pytest.mark.parametrize("name", [name for name, cell in CELLS.items() if cell.whole])
def test_the_whole_step(name: str) -> None:
    cell = cell_of(name)
    found = read_whole(cell, CELLS[name].family, prefix_of(name))
    expected = np.linalg.eigvals(CELLS[name].whole(cell))
    assert_same_spectrum(found.hidden.jacobian, expected, 1e-11)
    assert len(found.hidden.gates) == len(cell.weight_hh) // H
    undriven = ("MUT3", "RAN", "CFN", "STAR", "MinimalRNN")
    assert isinstance(found.gate, NoDrive) == (name in undriven)
    if name == "PeepholeLSTM":
        assert isinstance(found.gate, OwnStateDrive)
        _, forget, output = cell.weight_ph.detach().numpy().reshape(3, H)
        after = found.gate.step(np.zeros((1, H, 4)), np.ones((1, H)), np.arange(H))
        kept = 1 / (1 + np.exp(-forget))  # of c = 1, with nothing taken in
        assert_allclose(after.shown, [np.tanh(kept) / (1 + np.exp(-output * kept))])


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


def test_a_cell_that_only_the_user_says_keeps_has_no_gates() -> None:
    arrays = arrays_of(cell_of("LiGRU"))
    recurrence = read_whole(cell_of("LiGRU"), MGU, "", gate_keeps="yes")
    assert isinstance(recurrence.gate, NoDrive)
    assert "--assume cell" in recurrence.gate.reason
    told = read_layer(arrays, MGU, cell="ligru")
    assert_allclose(told.log_eigenvalues, recurrence.log_eigenvalues)


def test_an_ind_rnn() -> None:
    cell = blinded(cell_of("IndRNN"), "bias_ih", "bias_hh")
    arrays = arrays_of(cell, "cells.0.")
    (layer,) = inspect(arrays).layers
    assert layer.family == "ind_rnn"
    assert any("activation=tanh" in text for text in layer.assumptions)
    found = read_layer(arrays, IndRNN())
    assert_allclose(np.exp(found.log_eigenvalues), np.diag(jacobian(cell)), rtol=1e-12)


@pytest.mark.parametrize("function", ["tanh", "sigmoid"])
def test_a_fast_grnn(function: str) -> None:
    cell = cell_of("FastGRNN", nonlinearity=function)
    arrays = arrays_of(cell)
    assume = {"gate_activation": function} if function == "sigmoid" else {}  # the default is tanh
    check_derivatives(arrays, OWN, **assume)
    whole = read_whole(cell, OWN, "", **assume)
    assert "gate_activation" in whole.assumptions[0]
    assert_same_spectrum(whole.hidden.jacobian, np.linalg.eigvals(jacobian(cell)), 1e-11)
    assert isinstance(whole.gate, NoDrive) == (function == "tanh")
    # Without W and U the step is λ h + γ tanh(b_h).
    own = np.exp(whole.log_eigenvalues)
    assert_allclose(own, np.diag(jacobian(blinded(cell))), rtol=1e-12)
    candidate = torch.tanh((cell.bias_ih + cell.bias_hh)[H:])
    taken = (cell(NOTHING, REST) / candidate).detach().numpy()
    assert_allclose(np.exp(whole.log_gain.real), taken, rtol=1e-12)


@pytest.mark.parametrize("dt", [1.0, 0.3])
def test_a_long_expressive_memory(dt: float) -> None:
    cell = cell_of("LEM", dt=dt)
    hidden = read_whole(cell, OWN, "", dt=str(dt)).hidden
    assert_same_spectrum(hidden.jacobian, np.linalg.eigvals(both_states(cell)), 1e-11)
    check_derivatives(arrays_of(cell), OWN, dt=str(dt))
    blinded(cell, "weight_hh", "weight_ch")
    found = read_layer(arrays_of(cell), OWN, dt=str(dt))
    kept = np.concatenate([np.diag(jacobian(cell, at)) for at in (0, 1)])
    assert_allclose(np.exp(found.log_eigenvalues), kept, rtol=1e-12)
    assert_allclose(np.exp(found.log_gain), 1 - kept, rtol=1e-12)
    with pytest.raises(UsageError):
        read_layer(arrays_of(cell), OWN, dt="2")


# The rows of the gate in the weights of x and of h.
GATES: dict[str, tuple[slice, slice | None]] = {
    "LiGRU": (FIRST, FIRST),
    "UGRNN": (SECOND, SECOND),
    "JANET": (FIRST, FIRST),
    "MUT1": (FIRST, None),
    "MUT2": (FIRST, FIRST),
    "LightRU": (SECOND, FIRST),
    "LEM": (slice(2 * H), slice(2 * H)),
}


@pytest.mark.parametrize("name", GATES)
def test_the_weights_that_a_gate_is_driven_through(name: str) -> None:
    cell, (of_input, of_state) = cell_of(name), GATES[name]
    family = CELLS[name].family if name in CELLS else OWN
    drive = drive_of(MemoryStore(arrays_of(cell, f"{name}.cells.0.")), family)
    inputs, hidden = (
        (held.detach().numpy() ** 2).sum(1) for held in (cell.weight_ih, cell.weight_hh)
    )
    assert_allclose(drive.gate.inputs, inputs[of_input])
    assert_allclose(drive.gate.hidden, 0 if of_state is None else hidden[of_state])


# What a cell that is not read is refused by: a tensor that torch's has not, or its name.
REFUSED = {
    "ATR": "its name says ATR",
    "AntisymmetricRNN": "its name says AntisymmetricRNN",
    "BR": "does not fit",
    "DSGU": "weight_ho",
    "FastRNN": "alpha",
    "MiRU1": "its name says MiRU",
    "MiRU2": "its name says MiRU",
    "MultiplicativeLSTM": "weight_mh",
    "OriginalLSTM": "its name says OriginalLSTM",
    "ResLSTM": "weight_proj",
    "SCRN": "weight_ch",
    "SGRN": "its name says SGRN",
    "SGU": "its name says SGU",
    "UnICORNN": "weight_ch",
    "WMCLSTM": "weight_mh",
    "NBR": "its name says NBR",
    "GatedAntisymmetricRNN": "its name says AntisymmetricRNN",
    "coRNN": "weight_ch",
    "tauGRU": "its name says tauGRU",
}
BY_NAME = {name for name, said in REFUSED.items() if "name says" in said} - {
    *("NBR", "GatedAntisymmetricRNN")  # whose shapes are none of torch's
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_read_is_refused(name: str) -> None:
    with pytest.raises(TensorError, match=REFUSED[name]) as caught:
        inspect(arrays_of(cell_of(name), prefix_of(name)))
    assert "--assume cell=" in caught.value.remedy
    if name in BY_NAME:  # where no name tells, the report says what else it could be
        (layer,) = inspect(arrays_of(cell_of(name), "model.cells.0.")).layers
        title = name.rstrip("12")
        assert any("torchrecurrent stores" in said and title in said for said in layer.assumptions)


@pytest.mark.parametrize("name", ["TGRU", "TLSTM", "IntersectionRNN"])
def test_a_cell_that_looks_like_torchs_where_it_has_as_many_inputs_as_units(name: str) -> None:
    cell = getattr(torchrecurrent, f"{name}Cell")(H, H)
    with pytest.raises(TensorError, match=f"its name says {name}"):
        inspect(arrays_of(cell, prefix_of(name)))
    (layer,) = inspect(arrays_of(cell, "model.cells.0.")).layers
    assert any(name in text for text in layer.assumptions)
    arrays = arrays_of(cell, "model.cells.0.")
    arrays["model.cells.0.weight_ih"] = np.ones((len(arrays["model.cells.0.bias_ih"]), H + 1))
    assert not any(name in text for text in inspect(arrays).layers[0].assumptions)


@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
def test_torchs_own_layers_and_cells_stay_what_they_are(kind: str) -> None:
    layer = getattr(torch.nn, kind)(3, H, num_layers=2, bidirectional=True)
    cell = getattr(torch.nn, f"{kind}Cell")(3, H)
    family = {"RNN": "dense_rnn"}.get(kind, kind.lower())
    for prefix in ("atr.rnn.", "mut2_", "original_lstm.tau_gru."):
        found = inspect(arrays_of(layer, prefix)).layers
        assert [one.family for one in found] == [family] * 4
        assert not any("cell=" in text for one in found for text in one.assumptions)
    for prefix in ("", "encoder.", "transformer.grand.start_matrix."):
        (one,) = inspect(arrays_of(cell, prefix)).layers
        assert one.family == family
        assert not any("cell=" in text for text in one.assumptions)


@pytest.mark.parametrize("shape", [(), (4 * H,)])
def test_a_stranger_is_refused_and_the_user_may_insist(shape: tuple[int, ...]) -> None:
    arrays = arrays_of(torch.nn.LSTM(3, H)) | {"alpha": np.ones(shape)}
    with pytest.raises(TensorError, match="torch's LSTM has no alpha"):
        inspect(arrays)
    (layer,) = inspect(arrays, assume={"cell": "lstm"}).layers
    assert layer.family == "lstm"
    assert any("cell=lstm (as given)" in text for text in layer.assumptions)
    with pytest.raises(TensorError, match="does not fit"):
        inspect(arrays_of(cell_of("PeepholeLSTM")) | {"weight_ph": np.ones(2 * H)})


@pytest.mark.parametrize("kind", ["LSTM", "GRU"])
@pytest.mark.parametrize("insists", [False, True])
def test_norms_inside_the_gates_are_refused_though_the_user_insists(
    kind: str, insists: bool
) -> None:
    """TorchScript's LayerNormLSTMCell has its gates' biases in the norms, and one of its state."""
    weights = arrays_of(getattr(torch.nn, f"{kind}Cell")(3, H, bias=False), "layers.0.cell.")
    arrays = weights | arrays_of(torch.nn.LayerNorm(4 * H), "layers.0.cell.layernorm_i.")
    with pytest.raises(TensorError, match="weight of a norm inside the gates") as caught:
        inspect(arrays, assume={"cell": kind.lower()} if insists else {})
    assert "--assume" not in caught.value.remedy


def test_what_stands_beside_a_cell_is_no_stranger() -> None:
    trained = torch.nn.LSTM(3, H, proj_size=2)
    torch.nn.utils.parametrizations.weight_norm(trained, "weight_ih_l0")
    masked = arrays_of(trained) | {"weight_hh_l0_mask": np.ones((4 * H, 2))}
    normed = arrays_of(torch.nn.LSTMCell(3, H), "layers.0.cell.")
    normed |= arrays_of(torch.nn.LayerNorm(H), "layers.0.norm.")
    own = {"weight_ih": np.ones((H, 3)), "weight_hh": np.eye(H), "weight_ho": np.ones((H, H))}
    for family, arrays in (("lstm", masked), ("lstm", normed), ("dense_rnn", own)):
        assert [one.family for one in inspect(arrays).layers] == [family]


@pytest.mark.parametrize(
    ("name", "others", "choice"),
    [("CFN", "CFN and MUT1 and NBR", "cfn"), ("STAR", "LightRU and STAR", "star")],
)
def test_shapes_that_do_not_tell(name: str, others: str, choice: str) -> None:
    arrays = arrays_of(cell_of(name), "model.cells.0.")
    with pytest.raises(TensorError, match=others) as caught:
        inspect(arrays)
    assert f"cell={choice}" in caught.value.remedy
    told = read_layer(arrays, OWN, cell=choice)
    named = read_layer(arrays_of(cell_of(name), prefix_of(name)), OWN)
    assert_allclose(told.log_eigenvalues, named.log_eigenvalues)
    assert "as given" in told.assumptions[0]
    assert "by its name" in named.assumptions[0]
    # The name of the file tells, and not that of its folder.
    for path, cell in (("/runs/mut3/mut_2.pt", "mut2"), ("/runs/mut2/model.pt", None)):
        assert named_cell("permut3e", path, ("mut2", "mut3")) == cell
