"""The mLSTM against transformers' own model, a plain loop, and differences."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from families.derivatives import check_derivatives, match_of, read_layer
from families.simulated_gates import check_bands, drive_of, gates_of
from numpy.testing import assert_allclose
from transformers import xLSTMConfig
from transformers.models.xlstm.modeling_xlstm import xLSTMLayer

from memcurse_cli.checkpoints.memory import MemoryStore
from memcurse_cli.errors import TensorError
from memcurse_cli.families.selective.xlstm import MLSTM

HEADS, WIDTH = 2, 8
RANDOM = np.random.default_rng(14)
INPUT, FORGET = RANDOM.normal(size=HEADS) * 5, RANDOM.normal(size=HEADS) * 5
LARGE = {
    "igate_preact.bias": INPUT,
    "fgate_preact.bias": FORGET,
    "k.weight": np.zeros((4, WIDTH)),
    "v.weight": np.zeros((8, WIDTH)),
}
FUSED = {
    "ifgate_preact.bias": np.concatenate([INPUT, FORGET]),
    "qkv_opreact.weight": np.zeros((2 * 4 + 2 * 8, WIDTH)),
    "out_proj.weight": np.zeros((WIDTH, 8)),
}
BLOCK = {
    "igate.bias": INPUT,
    "fgate.bias": FORGET,
    "fgate.weight": np.zeros((HEADS, 3 * WIDTH)),
    "outnorm.weight": np.ones(WIDTH),
}
FUSED_ROWS = {
    "ifgate_preact.bias[input]": slice(0, HEADS),
    "ifgate_preact.bias[forget]": slice(HEADS, None),
}


def capped(bias: np.ndarray, cap: float = 15.0) -> np.ndarray:
    return cap * np.tanh(bias / cap)


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


@pytest.mark.parametrize("weight_mode", ["single", "fused"])
def test_the_state_decays_as_the_library_lets_it(weight_mode: str) -> None:
    torch.manual_seed(1)
    config = xLSTMConfig(
        vocab_size=8, hidden_size=WIDTH, num_heads=HEADS, num_hidden_layers=1, mode="inference",
        qk_dim_factor=0.5, weight_mode=weight_mode, chunk_size=16,
    )  # fmt: skip
    layer = xLSTMLayer(config).double()
    arrays = LARGE if weight_mode == "single" else FUSED
    with torch.no_grad():
        for name, parameter in layer.named_parameters():
            if name in arrays and name.endswith("bias"):
                parameter.copy_(torch.from_numpy(arrays[name]))
    (match,) = match_of(layer.state_dict(), MLSTM())
    recurrence = read_layer(layer.state_dict(), MLSTM())
    assert match.layer == "mlstm"
    assert recurrence.multiplicity == 2 * 4  # keys × values of a head
    kicked = torch.ones(1, HEADS, 2, 4)
    state = (kicked, torch.zeros(1, HEADS, 2), torch.zeros(1, HEADS, 1))
    with torch.no_grad():
        _, (cell, _, log_scale) = layer(torch.zeros(1, 5, WIDTH, dtype=torch.float64), state)
    real = cell[0, :, 0, 0].double().numpy() * np.exp(log_scale.double().numpy()).reshape(HEADS)
    # The library keeps its state in float32.
    assert_allclose(real, np.exp(5 * recurrence.log_eigenvalues.real), rtol=1e-5)


@pytest.mark.parametrize(
    ("arrays", "elements"), [(LARGE, None), (FUSED, FUSED_ROWS), (BLOCK, None)]
)
def test_derivatives(arrays: dict[str, np.ndarray], elements: dict[str, slice] | None) -> None:
    check_derivatives(arrays, MLSTM(), elements=elements)


@pytest.mark.parametrize("arrays", [LARGE, FUSED])
def test_the_large_model_caps_its_gates(arrays: dict[str, np.ndarray]) -> None:
    recurrence = read_layer(arrays, MLSTM())
    assert_allclose(np.exp(recurrence.log_eigenvalues), sigmoid(capped(FORGET)), rtol=1e-13)
    assert_allclose(recurrence.log_gain, capped(INPUT), rtol=1e-13)
    assert "gate_soft_cap=15" in recurrence.assumptions[0]
    assert recurrence.multiplicity == 2 * 4
    other = read_layer(arrays, MLSTM(), gate_soft_cap="3")
    assert_allclose(other.log_gain, capped(INPUT, 3.0), rtol=1e-13)
    uncapped = read_layer(arrays, MLSTM(), gate_soft_cap="0")
    assert_allclose(uncapped.log_gain, INPUT, rtol=0)


def test_the_block_stack_does_not() -> None:
    recurrence = read_layer(BLOCK, MLSTM())
    assert_allclose(np.exp(recurrence.log_eigenvalues), sigmoid(FORGET), rtol=1e-13)
    assert_allclose(recurrence.log_gain, INPUT, rtol=0)
    assert recurrence.assumptions == ()
    assert recurrence.multiplicity == (WIDTH // HEADS) ** 2


def test_gates_of_other_layers_are_not_it() -> None:
    assert match_of(BLOCK | {"fgate.weight": np.zeros((HEADS, WIDTH))}, MLSTM()) == []
    assert match_of({"igate.bias": INPUT, "fgate.bias": FORGET}, MLSTM()) == []


def test_a_fused_bias_of_odd_length_is_refused() -> None:
    with pytest.raises(TensorError, match=r"ifgate_preact.bias: its shape \(5\)"):
        read_layer({"ifgate_preact.bias": np.zeros(5)}, MLSTM())


@pytest.mark.parametrize("weight_mode", ["single", "fused"])
def test_the_bands_are_those_of_the_gates_of_the_library(weight_mode: str) -> None:
    torch.manual_seed(3)
    width, heads, steps = 32, 16, 10_000
    config = xLSTMConfig(
        vocab_size=8, hidden_size=width, num_heads=heads, num_hidden_layers=1, mode="inference",
        qk_dim_factor=0.5, weight_mode=weight_mode, chunk_size=16, gate_soft_cap=3.0,
    )  # fmt: skip
    layer = xLSTMLayer(config).double()
    x = 2 * torch.randn(steps, width, dtype=torch.float64)
    with torch.no_grad():
        for name, parameter in layer.named_parameters():
            if "gate_preact" in name and name.split(".")[0] != "ogate_preact":
                parameter.normal_(0.0, 0.3)
        gates = layer.fgate_preact if weight_mode == "single" else layer.ifgate_preact
        z = gates(x)[:, -heads:]
    arrays = {name: tensor.numpy() for name, tensor in layer.state_dict().items()}
    store = MemoryStore(arrays)
    store.config = {"gate_soft_cap": 3.0}
    drive = drive_of(store, MLSTM())
    bands = gates_of(arrays, assume={"gate_soft_cap": 3.0}, input_scale=2.0)
    check_bands(bands, sigmoid(capped(z.numpy(), 3.0)), 0.02)
    # γ of the nominal layer, and its derivative by the input gate's bias.
    assert drive.write is not None
    assert drive.write_gate is not None
    recurrence = read_layer(arrays, MLSTM(), gate_soft_cap="3")
    opened = drive.write(drive.write_gate.bias)
    assert_allclose(opened.value, np.exp(recurrence.log_gain.real), rtol=1e-12)
    slope = recurrence.parameters[1].log_gain_derivative.real * opened.value
    assert_allclose(opened.slope, slope, rtol=1e-12)


def test_the_gates_of_a_block_see_queries_keys_and_values() -> None:
    weight = RANDOM.normal(size=(HEADS, 3 * WIDTH))
    arrays = BLOCK | {"igate.weight": weight, "fgate.weight": 0.1 * weight}
    arrays |= {"fgate.bias": FORGET / 5, "igate.bias": INPUT / 5}
    drive = drive_of(MemoryStore(arrays), MLSTM())
    assert drive.sees == "the queries, keys and values"
    assert_allclose(drive.gate.variance(4.0, 0.0), 0.04 * (weight**2).sum(1))
    z = RANDOM.normal(size=(20_000, 3 * WIDTH)) @ arrays["fgate.weight"].T + FORGET / 5
    check_bands(gates_of(arrays), sigmoid(z), 0.02)
