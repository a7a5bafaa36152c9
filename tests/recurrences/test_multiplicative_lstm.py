"""The multiplicative LSTM against its step, written out in torch, in each of its namings."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from recurrences.derivatives import check_derivatives, match_of, read_layer
from recurrences.oracles import assert_same_spectrum

from memcurse_cli.checkpoints.memory import MemoryStore
from memcurse_cli.recurrences.family import ReadOptions
from memcurse_cli.recurrences.multiplicative_lstm import MultiplicativeLSTM

H, INPUTS = 4, 3
SHAPES = {"wx": (INPUTS, 4 * H), "wh": (H, 4 * H), "wmx": (INPUTS, H), "wmh": (H, H), "b": (4 * H,)}


def weights() -> dict[str, np.ndarray]:
    generator = np.random.default_rng(4)
    return {name: generator.normal(size=shape) for name, shape in SHAPES.items()}


def ported(suffix: str) -> dict[str, np.ndarray]:
    """The same under the names of a torch port, whose weights are transposed."""
    arrays = {f"{name}.{suffix}": array.T for name, array in weights().items() if name != "b"}
    return arrays | {"wh.bias": weights()["b"]}


def step(state: torch.Tensor) -> torch.Tensor:
    """[h, c] after one step of encoder.mlstm at zero input."""
    w = {name: torch.tensor(array) for name, array in weights().items()}
    h, c = state[:H], state[H:]
    x = torch.zeros(INPUTS, dtype=h.dtype)
    m = (x @ w["wmx"]) * (h @ w["wmh"])
    i, f, o, u = torch.split(x @ w["wx"] + m @ w["wh"] + w["b"], H)
    c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(u)
    return torch.cat([torch.sigmoid(o) * torch.tanh(c), c])


NAMINGS = {
    "openai": ({f"model/rnn/{n}": a for n, a in weights().items()}, "model/rnn"),
    "unirep": ({f"rnn_mlstm_{n}:0": a for n, a in weights().items()}, "rnn_mlstm"),
    "port": ({f"layer_0.{n}": a for n, a in ported("weight").items()}, "layer_0"),
    "tape": (
        {f"encoder.mlstm_cell.{n}": a for n, a in ported("weight_v").items()},
        "encoder.mlstm_cell",
    ),
    "norm": (ported("parametrizations.weight.original1"), "multiplicative_lstm"),
}


@pytest.mark.parametrize(("arrays", "layer"), NAMINGS.values(), ids=NAMINGS)
def test_every_naming(arrays: dict[str, np.ndarray], layer: str) -> None:
    recurrence = read_layer(arrays, MultiplicativeLSTM())
    assert recurrence.name == layer
    jacobian = torch.autograd.functional.jacobian(step, torch.zeros(2 * H, dtype=torch.float64))
    slope = np.diag(jacobian.numpy()[H:, H:])
    assert_allclose(np.exp(recurrence.log_eigenvalues), slope, rtol=1e-12)
    assert_allclose(np.exp(recurrence.log_gain), 1 / (1 + np.exp(-weights()["b"][:H])), rtol=1e-12)


def test_no_hidden_weight_adds_memory_at_zero_input() -> None:
    store = MemoryStore(NAMINGS["openai"][0])
    (match,) = MultiplicativeLSTM().find(store.tensors)
    hidden = MultiplicativeLSTM().read(store, match, ReadOptions(spectra=True)).hidden
    assert hidden is not None
    assert hidden.jacobian is not None
    jacobian = torch.autograd.functional.jacobian(step, torch.zeros(2 * H, dtype=torch.float64))
    assert_same_spectrum(hidden.jacobian, np.linalg.eigvals(jacobian.numpy()), 1e-12)


def test_derivatives() -> None:
    blocks = {"b[input]": slice(0, H), "b[forget]": slice(H, 2 * H)}
    check_derivatives(weights(), MultiplicativeLSTM(), elements=blocks)


def test_a_matrix_lstm_is_another_family() -> None:
    arrays = {name: array for name, array in weights().items() if name != "wmx"}
    assert match_of(arrays, MultiplicativeLSTM()) == []
