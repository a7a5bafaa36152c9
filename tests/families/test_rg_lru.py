"""The RG-LRU against transformers' own layer, the original layer's output, and differences."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from families.derivatives import check_derivatives, match_of, read_layer
from families.oracles import original_layer
from numpy.testing import assert_allclose
from transformers import RecurrentGemmaConfig
from transformers.models.recurrent_gemma.modeling_recurrent_gemma import RecurrentGemmaRglru

from memcurse_cli.checkpoints.memory import MemoryStore
from memcurse_cli.errors import TensorError
from memcurse_cli.families.family import ReadOptions
from memcurse_cli.families.gate_inputs import NoDrive
from memcurse_cli.families.selective.rg_lru import RGLRU

HEADS, WIDTH = 2, 6
RANDOM = np.random.default_rng(11)
ARRAYS = {
    "recurrent_param": RANDOM.normal(size=WIDTH) - 2,
    "recurrent_gate_bias": RANDOM.normal(size=(HEADS, WIDTH // HEADS)),
    "input_gate_bias": RANDOM.normal(size=(HEADS, WIDTH // HEADS)),
}
ORIGINAL = dict(zip(("a_param", "a_gate.b", "input_gate.b"), ARRAYS.values(), strict=True))
COMPLEX = ORIGINAL | {"a_imag_param": RANDOM.uniform(-2, 2, WIDTH)}


@pytest.fixture
def layer() -> RecurrentGemmaRglru:
    config = RecurrentGemmaConfig(
        vocab_size=8, hidden_size=WIDTH, lru_width=WIDTH, num_attention_heads=HEADS
    )
    layer = RecurrentGemmaRglru(config)
    torch.manual_seed(0)
    with torch.no_grad():
        for name, parameter in layer.named_parameters():
            values = ARRAYS.get(name, np.zeros(parameter.shape))
            parameter.copy_(torch.from_numpy(values))
    return layer.double()


def test_the_state_decays_as_the_library_lets_it(layer: RecurrentGemmaRglru) -> None:
    recurrence = read_layer(
        {f"rg_lru.{name}": a for name, a in layer.state_dict().items()}, RGLRU()
    )
    impulse = torch.zeros(1, 9, WIDTH, dtype=torch.float64)
    impulse[0, 0] = 1.0
    with torch.no_grad():
        states = layer(impulse, torch.arange(1, 10)[None])[0].numpy()
    expected = np.exp(
        np.outer(np.arange(9), recurrence.log_eigenvalues.real) + recurrence.log_gain.real
    )
    # The library accumulates in float32.
    assert_allclose(states, expected, rtol=3e-6)
    assert recurrence.name == "rg_lru"
    assert recurrence.input_dependent


@pytest.mark.parametrize(
    "arrays", [ARRAYS, ORIGINAL, COMPLEX], ids=["transformers", "recurrentgemma", "complex"]
)
def test_derivatives(arrays: dict[str, np.ndarray]) -> None:
    check_derivatives(arrays, RGLRU())
    recurrence = read_layer(arrays, RGLRU())
    assert [group.name for group in recurrence.parameters] == list(arrays)


def test_a_complex_layer_turns_by_its_gated_angle() -> None:
    real, turning = read_layer(ORIGINAL, RGLRU()), read_layer(COMPLEX, RGLRU())
    gate = 1 / (1 + np.exp(-ORIGINAL["a_gate.b"].ravel()))
    rate = 8 * np.log1p(np.exp(ORIGINAL["a_param"]))
    expected = np.exp(gate * (-rate + 1j * COMPLEX["a_imag_param"]))
    assert_allclose(np.exp(turning.log_eigenvalues), expected, rtol=1e-13)
    assert_allclose(turning.log_gain, real.log_gain, rtol=0)
    store = MemoryStore(COMPLEX)
    drive = RGLRU().read(store, RGLRU().find(store.tensors)[0], ReadOptions(gates=True)).gate
    assert isinstance(drive, NoDrive)


@pytest.mark.parametrize("separator", "./,")
def test_both_namings_give_the_same_recurrence(separator: str) -> None:
    nested = {
        f"blocks.0.rg_lru.{name}".replace(".", separator): array for name, array in ORIGINAL.items()
    }
    ours, theirs = read_layer(ARRAYS, RGLRU()), read_layer(nested, RGLRU())
    assert theirs.name == f"blocks{separator}0{separator}rg_lru"
    assert_allclose(ours.log_eigenvalues, theirs.log_eigenvalues, rtol=0)
    assert_allclose(ours.log_gain, theirs.log_gain, rtol=0)


def test_the_gain_keeps_full_precision_where_the_state_hardly_decays() -> None:
    arrays = ARRAYS | {"recurrent_param": np.array([-30.0, -800.0, 800.0, -30.0, 0.0, 0.0])}
    recurrence = read_layer(arrays, RGLRU())
    assert np.isfinite(recurrence.log_gain).all()
    gate = 1 / (1 + np.exp(-ARRAYS["recurrent_gate_bias"].ravel()[0]))
    opened = 1 / (1 + np.exp(-ARRAYS["input_gate_bias"].ravel()[0]))
    decay = 8 * np.exp(-30.0) * gate
    assert_allclose(-recurrence.log_eigenvalues[0].real, decay, rtol=1e-12)
    assert_allclose(np.exp(recurrence.log_gain[0].real), np.sqrt(2 * decay) * opened, rtol=1e-12)


def test_vectors_of_different_sizes_are_refused() -> None:
    with pytest.raises(TensorError, match=r"a_gate.b: its shape \(4\) does not fit a layer that"):
        read_layer(ORIGINAL | {"a_gate.b": np.zeros(4)}, RGLRU())


def test_a_gate_alone_is_not_it() -> None:
    assert match_of({"a_param": np.zeros(3), "a_gate.b": np.zeros(3)}, RGLRU()) == []


def test_the_original_layer(paper: Path) -> None:
    arrays, stored = original_layer(paper, "rglru")
    recurrence = read_layer(arrays, RGLRU())
    # The stored λ are those of its inputs; at zero input the gate's weights do not act.
    gate = np.einsum(
        "bthi,hij->bthj", stored["x"].reshape(2, 16, 2, 4), arrays["a_gate.w"]
    ).reshape(2, 16, 8)
    at_zero = np.log(stored["lambda_t"]) * (1 + np.exp(-gate)) / 2
    assert_allclose(
        at_zero, np.broadcast_to(recurrence.log_eigenvalues.real, gate.shape), rtol=1e-5
    )
