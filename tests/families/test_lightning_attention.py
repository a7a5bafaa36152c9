"""Lightning attention against transformers' own layer."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from families.derivatives import match_of, read_configured, read_layer
from numpy.testing import assert_allclose
from transformers import MiniMaxConfig
from transformers.models.minimax.modeling_minimax import MiniMaxCache, MiniMaxLightningAttention

from memcurse_cli.errors import TensorError
from memcurse_cli.families.selective.retention import LightningAttention

HEADS, WIDTH = 4, 16
STEPS = 5


def test_the_state_decays_as_the_library_lets_it() -> None:
    config = MiniMaxConfig(
        vocab_size=8, hidden_size=WIDTH, num_hidden_layers=2, num_attention_heads=HEADS,
        head_dim=3, block_size=16, layer_types=["linear_attention", "full_attention"],
    )  # fmt: skip
    torch.manual_seed(4)
    layer = MiniMaxLightningAttention(config, layer_idx=0).double()
    recurrence = read_layer({f"self_attn.{n}": a for n, a in layer.state_dict().items()},
                            LightningAttention())  # fmt: skip
    states = []
    for length in (1, 1 + STEPS):
        impulse = torch.zeros(1, length, WIDTH, dtype=torch.float64)
        impulse[0, 0] = torch.linspace(-1, 1, WIDTH)
        cache = MiniMaxCache()
        with torch.no_grad():
            layer(impulse, None, None, cache)
        states.append(cache.get_linear_cache(0)[0].numpy())
    ratio = states[1] / states[0]
    expected = np.exp(STEPS * recurrence.log_eigenvalues.real)
    assert_allclose(ratio, np.broadcast_to(expected[:, None, None], ratio.shape), rtol=1e-5)
    assert recurrence.multiplicity == 3 * 3
    assert recurrence.stable_by_construction
    assert recurrence.parameters == ()


def test_a_rate_that_is_not_stored_is_the_librarys() -> None:
    for number in range(3):
        config = MiniMaxConfig(
            vocab_size=8, hidden_size=WIDTH, num_hidden_layers=3, num_attention_heads=HEADS,
            head_dim=3, block_size=16,
        )  # fmt: skip
        layer = MiniMaxLightningAttention(config, layer_idx=number)
        prefix = f"model.layers.{number}.self_attn."
        stored = {f"{prefix}{n}": a.detach().numpy() for n, a in layer.state_dict().items()}
        weights = {name: array for name, array in stored.items() if name.endswith(".weight")}
        sizes = {"num_attention_heads": HEADS, "num_hidden_layers": 3}
        computed = read_configured(weights, LightningAttention(), sizes)
        expected = read_layer(stored, LightningAttention())
        # The buffer is in single precision.
        assert_allclose(computed.log_eigenvalues, expected.log_eigenvalues, rtol=2e-6)
        assert computed.multiplicity == expected.multiplicity
        for short in (
            {},
            sizes | {"num_hidden_layers": number},
            sizes | {"num_attention_heads": 0},
        ):
            with pytest.raises(TensorError, match="slope_rate beside it is not stored"):
                read_configured(weights, LightningAttention(), short)


def test_a_rate_without_the_projection_is_not_it() -> None:
    assert match_of({"slope_rate": np.ones(HEADS)}, LightningAttention()) == []


def test_a_negative_rate_is_not_called_stable() -> None:
    arrays = {"slope_rate": np.array([0.1, -0.1]), "qkv_proj.weight": np.zeros((12, 4))}
    assert not read_layer(arrays, LightningAttention()).stable_by_construction
