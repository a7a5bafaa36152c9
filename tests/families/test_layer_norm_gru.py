"""Dreamer's GRU against its module, written out in torch as both ports have it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from families.derivatives import match_of, read_layer
from families.oracles import assert_same_spectrum
from numpy.testing import assert_allclose

from memcurse_cli.checkpoints.memory import MemoryStore
from memcurse_cli.families.cells.normalised_grus import LAYER_NORM_GRU
from memcurse_cli.families.family import ReadOptions

H, INPUTS = 4, 3
EPSILON = 1e-3


class Cell(torch.nn.Module):
    """dreamerv3-torch's GRUCell in its first version, and SheepRL's LayerNormGRUCell."""

    def __init__(self, names: tuple[str, str], *, bias: bool = False, norm: bool = True) -> None:
        super().__init__()
        self.names = names
        self.add_module(names[0], torch.nn.Linear(INPUTS + H, 3 * H, bias=bias))
        self.add_module(
            names[1], torch.nn.LayerNorm(3 * H, eps=EPSILON) if norm else torch.nn.Identity()
        )
        self.double()
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.normal_()

    def forward(self, state: torch.Tensor) -> torch.Tensor:
        linear, norm = (getattr(self, name) for name in self.names)
        inputs = torch.zeros(INPUTS, dtype=state.dtype)
        pair = (state, inputs) if self.names[0] == "linear" else (inputs, state)
        reset, new, update = torch.chunk(norm(linear(torch.cat(pair))), 3)
        new = torch.tanh(torch.sigmoid(reset) * new)
        update = torch.sigmoid(update - 1)
        moved: torch.Tensor = update * new + (1 - update) * state
        return moved


LAYERS = {
    "_layer": (("_layer", "_norm"), "dynamics._cell.", {}),
    "without a norm": (("_layer", "_norm"), "dynamics._cell.", {"bias": True, "norm": False}),
    "GRU_linear": (("GRU_linear", "GRU_norm"), "dynamics._cell.layers.", {}),
    "linear": (("linear", "layer_norm"), "rssm.recurrent_model.rnn.", {}),
    "linear with a bias": (("linear", "layer_norm"), "rssm.recurrent_model.rnn.", {"bias": True}),
}


def made(kind: str) -> tuple[Cell, dict[str, np.ndarray]]:
    names, prefix, options = LAYERS[kind]
    torch.manual_seed(0)
    cell = Cell(names, **options)
    return cell, {f"{prefix}{name}": array.numpy() for name, array in cell.state_dict().items()}


@pytest.mark.parametrize("kind", ["_layer", "linear"])
def test_the_hidden_weights_are_those_of_the_state(kind: str) -> None:
    cell, arrays = made(kind)
    store = MemoryStore(arrays)
    (match,) = LAYER_NORM_GRU.find(store.tensors)
    spectra = LAYER_NORM_GRU.read(store, match, ReadOptions(spectra=True)).hidden
    assert spectra is not None
    assert spectra.jacobian is None
    assert "layer normalisation" in str(spectra.reason)
    weight = getattr(cell, cell.names[0]).weight.detach().numpy()
    hidden = weight[:, :H] if kind == "linear" else weight[:, INPUTS:]
    for index, gate in enumerate(("reset", "new", "update")):
        rows = hidden[index * H : (index + 1) * H]
        assert_same_spectrum(spectra.gates[gate], np.linalg.eigvals(rows), 1e-12)


def test_the_gate_s_spread_is_that_of_the_normalisation() -> None:
    """Over inputs of any size, since the normalisation puts out a variance of 1."""
    cell, arrays = made("_layer")
    store = MemoryStore(arrays)
    (match,) = LAYER_NORM_GRU.find(store.tensors)
    drive = LAYER_NORM_GRU.read(store, match, ReadOptions(gates=True)).gate
    assert drive is not None
    scale = cell.state_dict()["_norm.weight"][2 * H :].numpy()
    assert_allclose(drive.gate.variance(1.0, 1.0), scale**2)
    assert_allclose(drive.gate.variance(100.0, 1.0), scale**2)


def test_the_bias_that_is_added_is_said_and_can_be_given() -> None:
    _, arrays = made("GRU_linear")
    stored = arrays["dynamics._cell.layers.GRU_norm.bias"][2 * H :]
    recurrence = read_layer(arrays, LAYER_NORM_GRU)
    assert any("update_bias=-1.0" in sentence for sentence in recurrence.assumptions)
    assert_allclose(np.exp(recurrence.log_eigenvalues.real), 1 / (1 + np.exp(stored - 1)))
    other = read_layer(arrays, LAYER_NORM_GRU, update_bias="0.5")
    assert_allclose(np.exp(other.log_eigenvalues.real), 1 / (1 + np.exp(stored + 0.5)))


def test_blocks_of_feed_forward_networks_are_not_taken() -> None:
    generator = np.random.default_rng(0)
    shapes = {
        "encoder.block.linear.weight": (3 * H, INPUTS + H),  # no recurrent module
        "encoder.block.layer_norm.weight": (3 * H,),
        "encoder.block.layer_norm.bias": (3 * H,),
        "rnn.linear.weight": (3 * H, H),  # nothing is left for an input
        "rnn.layer_norm.weight": (3 * H,),
        "rnn.layer_norm.bias": (3 * H,),
        "gru.linear.weight": (3 * H, INPUTS + H),  # a head, without a normalisation
        "gru.linear.bias": (3 * H,),
        "cell._layer.weight": (3 * H + 1, INPUTS + H),
        "cell._layer.bias": (3 * H + 1,),
    }
    arrays = {name: generator.normal(size=shape) for name, shape in shapes.items()}
    assert match_of(arrays, LAYER_NORM_GRU) == []
