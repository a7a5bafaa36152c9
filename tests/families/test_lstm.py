"""The LSTM against torch's own step, trained files, and its derivatives against differences."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from families.derivatives import read_layer
from families.oracles import assert_sorted_moduli, read_layers
from numpy.testing import assert_allclose

from memcurse_cli.checkpoints.memory import MemoryStore
from memcurse_cli.errors import TensorError
from memcurse_cli.families.cells.torch import LSTM
from memcurse_cli.families.cells.torch_names import hidden_weights
from memcurse_cli.families.detect import detect

H = 5


def arrays_of(module: torch.nn.Module) -> dict[str, np.ndarray]:
    return {name: tensor.numpy() for name, tensor in module.state_dict().items()}


@pytest.fixture
def lstm() -> torch.nn.LSTM:
    torch.manual_seed(3)
    return torch.nn.LSTM(3, H, num_layers=2, bidirectional=True, dtype=torch.float64)


def test_the_state_decays_as_torch_lets_it(lstm: torch.nn.LSTM) -> None:
    recurrence = read_layer(arrays_of(lstm), LSTM)
    cell = torch.nn.LSTMCell(3, H, dtype=torch.float64)
    with torch.no_grad():
        cell.bias_ih.copy_(lstm.bias_ih_l0)
        cell.bias_hh.copy_(lstm.bias_hh_l0)
        cell.weight_hh.zero_()  # the gates stay at zero input
        x, h = torch.zeros(1, 3, dtype=torch.float64), torch.zeros(1, H, dtype=torch.float64)
        kicked, still = torch.ones_like(h), torch.zeros_like(h)
        _, first = cell(x, (h, still))
        for _ in range(7):
            _, kicked = cell(x, (h, kicked))
            _, still = cell(x, (h, still))
        drive = torch.tanh(cell.bias_ih + cell.bias_hh)[2 * H : 3 * H]
    assert_allclose(np.exp(7 * recurrence.log_eigenvalues), (kicked - still)[0], rtol=1e-12)
    assert_allclose(np.exp(recurrence.log_gain), (first[0] / drive).numpy(), rtol=1e-12)


def test_every_layer_and_direction_is_found(lstm: torch.nn.LSTM) -> None:
    store = MemoryStore(arrays_of(lstm))
    layers = [match.layer for match in LSTM.find(store.tensors)]
    assert layers == ["l0", "l0_reverse", "l1", "l1_reverse"]


@pytest.mark.parametrize("prefix", ["", "model.", "module._orig_mod.net.", "a/b/", "params,x,"])
def test_a_cell_is_named_after_its_module(prefix: str) -> None:
    cell = torch.nn.LSTMCell(3, H)
    arrays = {f"{prefix}{name}": array for name, array in arrays_of(cell).items()}
    (match,) = LSTM.find(MemoryStore(arrays).tensors)
    assert match.layer == (prefix[:-1] or "lstm")
    assert match.tensors["bias_hh"] == f"{prefix}bias_hh"


def test_a_projection_leaves_the_number_of_states_to_the_rows() -> None:
    module = torch.nn.LSTM(3, 8, proj_size=2, dtype=torch.float64)
    recurrence = read_layer(arrays_of(module), LSTM)
    bias = (module.bias_ih_l0 + module.bias_hh_l0).detach()[8:16]
    assert_allclose(np.exp(recurrence.log_eigenvalues), torch.sigmoid(bias), rtol=1e-14)


def test_a_bias_of_the_wrong_size_is_refused(lstm: torch.nn.LSTM) -> None:
    arrays = arrays_of(lstm) | {"bias_ih_l0": np.zeros(19)}
    with pytest.raises(TensorError, match=r"bias_ih_l0: its shape \(19\) does not fit"):
        read_layer(arrays, LSTM)


@pytest.mark.parametrize(
    ("file", "layer", "oracle_layer"),
    [
        ("silero_vad_16k.safetensors", "lstm_cell", "silero_vad_16k.safetensors:lstm_cell"),
        ("silero_vad.jit", "_model.decoder.rnn", "silero_vad.jit:_model.decoder.rnn (16k)"),
        ("silero_vad.jit", "_model_8k.decoder.rnn", "silero_vad.jit:_model_8k.decoder.rnn"),
    ],
)
def test_silero(trained: Path, file: str, layer: str, oracle_layer: str) -> None:
    folder = trained / "silero_vad_lstm"
    oracle = json.loads((folder / "oracle.json").read_text())["layers"][oracle_layer]
    recurrence = read_layers(folder / file)[layer]
    assert_sorted_moduli(recurrence, oracle["nominal_forget"]["lambda_sorted"])


@pytest.mark.parametrize("both", [False, True])
@pytest.mark.parametrize("kind", [torch.nn.LSTM, torch.nn.GRU, torch.nn.RNN])
def test_the_second_names_of_paddle_s_cells_are_no_second_layers(
    kind: type[torch.nn.RNNBase], both: bool
) -> None:
    """paddle.nn.LSTM holds its weights once as a network's and once as its cells'."""
    torch.manual_seed(0)
    plain = {
        f"neck.lstm.{name}": tensor.numpy()
        for name, tensor in kind(3, H, 2, bidirectional=both).state_dict().items()
    }
    arrays = dict(plain)
    for name, array in plain.items():
        stem, _, index = name.removesuffix("_reverse").rpartition("_l")
        module, _, what = stem.rpartition(".")
        cell = f"cell_{'bw' if name.endswith('_reverse') else 'fw'}" if both else "cell"
        arrays[f"{module}.{index}.{cell}.{what}"] = array
    store = MemoryStore(arrays)
    found = [match.layer for _, match in detect(store.tensors)]
    assert found == [match.layer for _, match in detect(MemoryStore(plain).tensors)]
    # A cell that stands alone is a layer.
    (match,) = hidden_weights(MemoryStore({"net.0.cell.weight_hh": np.ones((4, 1))}).tensors, "")
    assert match.layer == "net.0.cell"
