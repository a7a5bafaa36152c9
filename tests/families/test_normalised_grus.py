"""GRUs behind a norm: SpeechBrain's light GRU against torch's norms, and Dreamer's."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from families.cell_steps import CASES, H
from families.derivatives import check_derivatives, match_of, read_layer
from families.simulated_gates import check_bands, gates_of
from numpy.testing import assert_allclose

from memcurse_cli.families.cells.torch import LAYER_NORM_GRU, LIGHT_GRU

WIDTH, SIZE = 3, 4


def layer(norm: str, inputs: int = WIDTH, size: int = SIZE) -> torch.nn.Module:
    """What `LiGRU_Layer` registers, its normalisation trained a little."""
    torch.manual_seed(1)
    made = torch.nn.Module()
    made.w = torch.nn.Linear(inputs, 2 * size, bias=False)
    made.u = torch.nn.Linear(size, 2 * size, bias=False)
    if norm == "batchnorm":
        made.norm = torch.nn.BatchNorm1d(2 * size, momentum=0.3)
    else:
        made.norm = torch.nn.LayerNorm(2 * size)
    made.double()
    for _ in range(20):
        made.norm(1 + 2 * torch.randn(30, 2 * size, dtype=torch.float64))
    with torch.no_grad():
        for parameter in made.norm.parameters():
            parameter += 0.5 * torch.randn_like(parameter)
    return made.eval()


def arrays_of(norm: str) -> dict[str, np.ndarray]:
    state = layer(norm).state_dict()
    return {name: tensor.numpy() for name, tensor in state.items() if tensor.ndim}


def test_a_normalised_state_adds_the_bias_of_its_norm() -> None:
    """SLiGRU's gates are N(W x) + LN(U h), and LN(0) is its bias."""
    torch.manual_seed(2)
    norm = torch.nn.LayerNorm(2 * SIZE).double()
    torch.nn.init.normal_(norm.bias)
    arrays = arrays_of("batchnorm") | {
        f"layer_norm.{name}": tensor.numpy() for name, tensor in norm.state_dict().items()
    }
    with torch.no_grad():
        normal = layer("batchnorm").norm(torch.zeros(1, 2 * SIZE, dtype=torch.float64))
        gates = normal + norm(torch.zeros(1, 2 * SIZE, dtype=torch.float64))
    kept = torch.sigmoid(gates.chunk(2, 1)[1])[0].numpy()
    assert_allclose(np.exp(read_layer(arrays, LIGHT_GRU).log_eigenvalues), kept, rtol=1e-12)
    check_derivatives(arrays, LIGHT_GRU)
    assert "stands between" in (gates_of(arrays).reason or "")


def test_half_of_a_normalisations_statistics_is_no_layer() -> None:
    arrays = arrays_of("batchnorm")
    assert match_of(arrays, LIGHT_GRU)
    del arrays["norm.running_var"]
    assert not match_of(arrays, LIGHT_GRU)


@pytest.mark.parametrize(("norm", "scale"), [("batchnorm", 3.0), ("layernorm", 1.0)])
def test_the_band_and_the_state_are_those_of_the_layer(norm: str, scale: float) -> None:
    torch.manual_seed(3)
    made = layer(norm, inputs=40, size=128)
    with torch.no_grad():
        made.u.weight.mul_(0.5)
        made.norm.bias[128:] += 1
    arrays = {name: t.numpy() for name, t in made.state_dict().items() if t.ndim}
    gates, squares = [], []
    with torch.no_grad():
        seen = made.norm(made.w(scale * torch.randn(6000, 40, dtype=torch.float64)))
        h = torch.zeros(128, dtype=torch.float64)
        for step, driven in enumerate(seen):
            candidate, gate = (driven + made.u(h)).chunk(2)
            z = torch.sigmoid(gate)
            h = z * h + (1 - z) * torch.relu(candidate)
            if step > 500:
                gates.append(z.numpy())
                squares.append(float((h**2).mean()))
    bands = gates_of(arrays, input_scale=scale)
    check_bands(bands, np.array(gates))
    assert_allclose(bands.hidden_second_moment, np.mean(squares), rtol=0.15)
    (moved,) = bands.parameters  # of the scale what it moves follows the input
    assert moved.name == "norm.bias[update]"


def test_a_state_that_grows_is_told() -> None:
    arrays = arrays_of("batchnorm")
    arrays["u.weight"] = 10 * np.abs(arrays["u.weight"])
    gates = gates_of(arrays)
    assert gates.bands == ()
    assert "grows without bound" in (gates.reason or "")


def test_the_bias_that_dreamer_adds_is_said_and_can_be_given() -> None:
    arrays = {
        name.replace("_cell._layer", "_cell.layers.GRU_linear").replace(
            "_cell._norm", "_cell.layers.GRU_norm"
        ): array
        for name, array in CASES["dreamer"].arrays().items()
    }
    stored = arrays["dynamics._cell.layers.GRU_norm.bias"][2 * H :]
    recurrence = read_layer(arrays, LAYER_NORM_GRU)
    assert recurrence.name == "dynamics._cell"
    assert any("update_bias=-1.0" in sentence for sentence in recurrence.assumptions)
    assert_allclose(np.exp(recurrence.log_eigenvalues.real), 1 / (1 + np.exp(stored - 1)))
    other = read_layer(arrays, LAYER_NORM_GRU, update_bias="0.5")
    assert_allclose(np.exp(other.log_eigenvalues.real), 1 / (1 + np.exp(stored + 0.5)))
