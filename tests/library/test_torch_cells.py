"""Every cell of torchrecurrent is read as what it is, or refused with a reason."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from families.derivatives import check_derivatives, read_layer
from families.oracles import assert_same_spectrum
from families.simulated_gates import drive_of
from hypothesis import given, settings
from hypothesis import strategies as st
from library.library_cells import (
    H,
    arrays_of,
    blinded,
    cell_of,
    jacobian,
    kick,
    torchrecurrent,
    whole_jacobian,
)
from numpy.testing import assert_allclose

from memcurse_cli import inspect
from memcurse_cli.checkpoints.memory import MemoryStore
from memcurse_cli.errors import NoRecurrenceError, TensorError
from memcurse_cli.families.cells.torch import GRU, LSTM
from memcurse_cli.families.cells.torch_names import named_cell
from memcurse_cli.families.detect import detect
from memcurse_cli.families.family import ReadOptions
from memcurse_cli.families.gate_inputs import NoDrive, OwnStateDrive
from memcurse_cli.families.state_space.ind_rnn import IndRNN

UPDATE, NEW = slice(0, H), slice(2 * H, 3 * H)
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
    "coRNN": "weight_ch",
    "tauGRU": "its name says tauGRU",
}
BY_NAME = {name for name, reason in REFUSED.items() if "name says" in reason}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_read_is_refused(name: str) -> None:
    with pytest.raises(TensorError, match=REFUSED[name]) as caught:
        inspect(arrays_of(cell_of(name), f"{name}.cells.0."))
    assert "--assume cell=" in caught.value.remedy


@pytest.mark.parametrize("name", ["TGRU", "TLSTM", "IntersectionRNN"])
def test_a_cell_that_looks_like_torchs_where_it_has_as_many_inputs_as_units(name: str) -> None:
    cell = getattr(torchrecurrent, f"{name}Cell")(H, H)
    with pytest.raises(TensorError, match=f"its name says {name}"):
        inspect(arrays_of(cell, f"{name}.cells.0."))
    (layer,) = inspect(arrays_of(cell, "model.cells.0.")).layers
    assert any(name in text for text in layer.assumptions)
    arrays = arrays_of(cell, "model.cells.0.")
    arrays["model.cells.0.weight_ih"] = np.ones((len(arrays["model.cells.0.bias_ih"]), H + 1))
    assert not any(name in text for text in inspect(arrays).layers[0].assumptions)


@pytest.mark.parametrize("name", sorted(BY_NAME))
def test_where_no_name_tells_the_report_says_what_else_it_could_be(name: str) -> None:
    (layer,) = inspect(arrays_of(cell_of(name), "model.cells.0.")).layers
    title = name.removesuffix("1").removesuffix("2")
    assert any("torchrecurrent stores" in text and title in text for text in layer.assumptions)


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


def test_a_norm_beside_a_cell_is_no_part_of_it() -> None:
    arrays = arrays_of(torch.nn.LSTMCell(3, H), "layers.0.cell.")
    assert inspect(arrays | arrays_of(torch.nn.LayerNorm(H), "layers.0.norm.")).layers


NAMES = (
    *("weight_hh", "weight_ih", "bias_ih", "bias_hh", "weight_ph", "weight_mm", "weight_ch"),
    *("bias_ch", "weight_ho", "vector_u", "alpha", "beta", "zeta", "nu"),
)
MODULES = ("", "mut2.cells.0.", "star.", "janet.", "ugrnn_", "model.cells.3.", "cfn.", "ligru.")
SIZES = st.lists(st.sampled_from([0, 1, 2, 3, 4, 6, 8]), max_size=3).map(tuple)
VALUES = st.sampled_from([0.0, 1.0, -0.3, 1e-300, 1e70, -800.0, 800.0, np.nan])


@settings(max_examples=150, deadline=None)
@given(
    module=st.sampled_from(MODULES),
    blocks=st.tuples(*[st.sampled_from([1, 2, 3, 4])] * 4),
    odd=st.dictionaries(st.sampled_from(NAMES), st.tuples(SIZES, VALUES), max_size=4),
    values=st.tuples(*[VALUES] * 4),
    assume=st.sampled_from([{}, {"cell": "star"}, {"cell": "cfn"}, {"gate_keeps": "yes"}]),
)
def test_whatever_stands_beside_only_our_errors_come(
    module: str,
    blocks: tuple[int, ...],
    odd: dict[str, tuple[tuple[int, ...], float]],
    values: tuple[float, ...],
    assume: dict[str, str],
) -> None:
    shapes = [(2 * blocks[0], 3), (2 * blocks[1], 2), (2 * blocks[2],), (2 * blocks[3],)]
    held = dict(zip(("weight_ih", "weight_hh", "bias_ih", "bias_hh"), shapes, strict=True))
    arrays = {name: np.full(held[name], value) for name, value in zip(held, values, strict=True)}
    arrays |= {name: np.full(shape, value) for name, (shape, value) in odd.items()}
    store = MemoryStore({f"{module}{name}": array for name, array in arrays.items()})
    try:
        found = detect(store.tensors)
    except NoRecurrenceError:
        return
    for family, match in found:
        try:
            recurrence = family.read(store, match, ReadOptions(gates=True, assume=assume))
        except TensorError:
            continue
        assert np.isfinite(recurrence.log_eigenvalues).all()
        assert np.isfinite(recurrence.log_gain).all()
        for group in recurrence.parameters:
            assert np.isfinite(group.eigenvalue_derivative).all()
            assert group.scalar.max() < group.size
            assert group.eigenvalue.max() < recurrence.size


def test_other_layers_are_reported_beside_a_refused_one() -> None:
    arrays = arrays_of(torch.nn.LSTM(3, H), "a.") | arrays_of(cell_of("WMCLSTM"), "b.")
    report = inspect(arrays)
    assert [layer.name for layer in report.layers] == ["a.l0"]
    assert [layer.name for layer in report.skipped] == ["b"]


def test_tensors_that_training_adds_are_no_strangers() -> None:
    layer = torch.nn.LSTM(3, H, proj_size=2)
    torch.nn.utils.parametrizations.weight_norm(layer, "weight_ih_l0")
    arrays = arrays_of(layer) | {"weight_hh_l0_mask": np.ones((4 * H, 2))}
    assert [one.family for one in inspect(arrays).layers] == ["lstm"]


def test_a_readout_beside_a_hand_written_cell_is_no_stranger() -> None:
    arrays = {"weight_ih": np.ones((H, 3)), "weight_hh": np.eye(H), "weight_ho": np.ones((H, H))}
    assert [one.family for one in inspect(arrays).layers] == ["dense_rnn"]


@pytest.mark.parametrize(
    ("module", "path", "cell"),
    [
        ("encoder.mut2.cells.0", "", "mut2"),
        ("MUT2Cell", "", "mut2"),
        ("", "/runs/mut3/mut_2.pt", "mut2"),
        ("", "/runs/mut2/model.pt", None),
        ("permut2e", "", None),
        ("atr_rnn2", "", "atr"),
        ("matrix.patron", "", None),
        ("my_sgrn", "", "sgrn"),
    ],
)
def test_names(module: str, path: str, cell: str | None) -> None:
    assert named_cell(module, path, ("mut2", "mut3", "atr", "sgrn")) == cell


@pytest.mark.parametrize("name", ["MUT2", "MUT3"])
def test_a_mutation_of_the_gru(name: str) -> None:
    prefix = f"{name.lower()}.cells.0."
    cell = blinded(cell_of(name))
    recurrence = read_layer(arrays_of(cell, prefix), GRU)
    assert_allclose(np.exp(recurrence.log_eigenvalues.real), np.diag(jacobian(cell)), rtol=1e-12)
    slope = 1 - np.tanh((cell.bias_ih + cell.bias_hh).detach().numpy()[NEW]) ** 2
    assert_allclose(np.exp(recurrence.log_gain.real) * slope, kick(cell, NEW), rtol=1e-12)
    check_derivatives(arrays_of(cell_of(name), prefix), GRU)


@pytest.mark.parametrize("name", ["MUT2", "MUT3"])
def test_the_whole_step_of_a_mutation(name: str) -> None:
    cell = cell_of(name)
    store = MemoryStore(arrays_of(cell))
    (match,) = GRU.find(store.tensors)
    options = ReadOptions(spectra=True, gates=True, assume={"cell": name.lower()})
    found = GRU.read(store, match, options)
    assert found.hidden is not None
    assert found.hidden.jacobian is not None
    assert_same_spectrum(found.hidden.jacobian, np.linalg.eigvals(jacobian(cell)), 1e-11)
    first = np.linalg.eigvals(cell.weight_hh.detach().numpy()[UPDATE])
    assert_same_spectrum(found.hidden.gates["update"], first, 1e-11)
    assert isinstance(found.gate, NoDrive) == (name == "MUT3")


def test_what_drives_a_mutation() -> None:
    cell = cell_of("MUT2")
    drive = drive_of(MemoryStore(arrays_of(cell)), GRU, cell="mut2")
    hidden = (cell.weight_hh.detach().numpy() ** 2).sum(1)
    assert_allclose(drive.gate.norms.hidden, hidden[UPDATE])
    assert drive.state is not None
    assert drive.state.reset is not None
    assert_allclose(drive.state.reset.norms.hidden, hidden[H : 2 * H])
    assert_allclose(drive.state.candidate.norms.hidden, hidden[NEW])


def names_of(arrays: dict[str, Any]) -> list[str]:
    return [family.name for family, _ in detect(MemoryStore(arrays).tensors)]


def test_an_ind_rnn() -> None:
    cell = cell_of("IndRNN")
    arrays = arrays_of(cell, "cells.0.")
    assert names_of(arrays) == ["ind_rnn"]
    (layer,) = inspect(arrays).layers
    assert any("activation=tanh" in text for text in layer.assumptions)
    with torch.no_grad():
        cell.bias_ih.zero_()
        cell.bias_hh.zero_()
    assert_allclose(
        np.exp(read_layer(arrays, IndRNN()).log_eigenvalues), np.diag(jacobian(cell)), rtol=1e-12
    )


def test_peepholes() -> None:
    cell = blinded(cell_of("PeepholeLSTM"))
    arrays = arrays_of(cell, "cells.0.")
    recurrence = read_layer(arrays, LSTM)
    kept = jacobian(cell, double=True, state=1)
    assert_allclose(np.exp(recurrence.log_eigenvalues), np.diag(kept), rtol=1e-12)
    check_derivatives(arrays_of(cell_of("PeepholeLSTM"), "cells.0."), LSTM)
    slope = 1 - np.tanh((cell.bias_ih + cell.bias_hh).detach().numpy()[NEW]) ** 2
    gain = kick(cell, NEW, double=True, state=1)
    assert_allclose(np.exp(recurrence.log_gain.real) * slope, gain, rtol=1e-12)


def test_the_whole_step_behind_peepholes() -> None:
    cell = cell_of("PeepholeLSTM")
    store = MemoryStore(arrays_of(cell))
    (match,) = LSTM.find(store.tensors)
    found = LSTM.read(store, match, ReadOptions(spectra=True, gates=True))
    assert isinstance(found.gate, OwnStateDrive)
    _, forget, output = cell.weight_ph.detach().numpy().reshape(3, H)
    after = found.gate.step(np.zeros((1, H, 4)), np.ones((1, H)), np.arange(H))
    kept = 1 / (1 + np.exp(-forget))  # of c = 1, with nothing taken in
    assert_allclose(after.shown, [np.tanh(kept) / (1 + np.exp(-output * kept))])
    expected = whole_jacobian(cell)
    assert found.hidden is not None
    assert found.hidden.jacobian is not None
    assert_same_spectrum(found.hidden.jacobian, np.linalg.eigvals(expected), 1e-11)


def test_peepholes_of_another_size_are_refused() -> None:
    arrays = arrays_of(cell_of("PeepholeLSTM")) | {"weight_ph": np.ones(2 * H)}
    with pytest.raises(TensorError, match="does not fit"):
        inspect(arrays)
