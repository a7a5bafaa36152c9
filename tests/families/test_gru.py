"""The GRU against torch's own step, trained files, and its derivatives against differences."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from families.derivatives import match_of, read_layer
from families.oracles import assert_sorted_moduli, read_layers
from numpy.testing import assert_allclose

from memcurse_cli.errors import TensorError
from memcurse_cli.families.cells.torch import GRU

H = 4


def arrays_of(module: torch.nn.Module) -> dict[str, np.ndarray]:
    return {name: tensor.numpy() for name, tensor in module.state_dict().items()}


@pytest.fixture
def gru() -> torch.nn.GRU:
    torch.manual_seed(5)
    return torch.nn.GRU(3, H, dtype=torch.float64)


def test_the_state_decays_as_torch_lets_it(gru: torch.nn.GRU) -> None:
    recurrence = read_layer(arrays_of(gru), GRU)
    with torch.no_grad():
        gru.weight_hh_l0.zero_()  # the gates stay at zero input
        x = torch.zeros(9, 1, 3, dtype=torch.float64)
        kicked, _ = gru(x, torch.ones(1, 1, H, dtype=torch.float64))
        still, _ = gru(x, torch.zeros(1, 1, H, dtype=torch.float64))
        reset = torch.sigmoid((gru.bias_ih_l0 + gru.bias_hh_l0)[:H])
        drive = torch.tanh(gru.bias_ih_l0[2 * H :] + reset * gru.bias_hh_l0[2 * H :])
    assert_allclose(np.exp(9 * recurrence.log_eigenvalues), (kicked - still)[-1, 0], rtol=1e-10)
    assert_allclose(np.exp(recurrence.log_gain), (still[0, 0] / drive).numpy(), rtol=1e-12)


@pytest.mark.parametrize("new_style", [True, False])
def test_weight_normalisation_does_not_hide_the_layer(gru: torch.nn.GRU, new_style: bool) -> None:
    expected = read_layer(arrays_of(gru), GRU)
    if new_style:
        torch.nn.utils.parametrizations.weight_norm(gru, "weight_hh_l0")
    else:
        with pytest.warns(FutureWarning):
            torch.nn.utils.weight_norm(gru, "weight_hh_l0")
    arrays = {f"net.{name}": array for name, array in arrays_of(gru).items()}
    (match,) = match_of(arrays, GRU)
    assert match.layer == "net.l0"
    recurrence = read_layer(arrays, GRU)
    assert_allclose(recurrence.log_eigenvalues, expected.log_eigenvalues, rtol=0)


def test_an_empty_layer_is_refused() -> None:
    with pytest.raises(TensorError, match="bias_ih: the tensor is empty"):
        read_layer({"weight_hh": np.ones((0, 0)), "bias_ih": np.ones(0)}, GRU)


@pytest.mark.parametrize("layer", ["enc", "dec"])
def test_g2p(trained: Path, layer: str) -> None:
    folder = trained / "g2p_en_gru_npz"
    oracle = json.loads((folder / "oracle.json").read_text())["layers"][layer]
    recurrence = read_layers(folder / "checkpoint20.npz")[layer]
    assert recurrence.family == "gru"
    assert_sorted_moduli(recurrence, oracle["nominal_update"]["lambda_sorted"])


def test_gtcrn(trained: Path) -> None:
    folder = trained / "gtcrn_gru"
    oracle = json.loads((folder / "oracle.json").read_text())["layers"]
    layers = read_layers(folder / "model_trained_on_dns3.tar")
    expected = {
        name.removeprefix("tar:model.").replace("weight_hh_", ""): layer
        for name, layer in oracle.items()
        if name.startswith("tar:")
    }
    assert layers.keys() == expected.keys()
    for name, layer in expected.items():
        assert_sorted_moduli(layers[name], layer["nominal_update"]["lambda_sorted"])
