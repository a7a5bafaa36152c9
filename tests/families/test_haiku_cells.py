"""The VanillaRNN of Haiku and Sonnet 2, and what is no core of theirs."""

from __future__ import annotations

import numpy as np
import pytest
from families.derivatives import match_of, read_layer
from numpy.testing import assert_allclose

from memcurse_cli.checkpoints.memory import MemoryStore
from memcurse_cli.families.cells.jax import HAIKU_GRU, HAIKU_LSTM, HAIKU_RNN, SONNET_LSTM
from memcurse_cli.families.detect import detect

H, INPUTS = 4, 3
Arrays = dict[str, np.ndarray]


def weights(shapes: dict[str, tuple[int, ...]]) -> Arrays:
    generator = np.random.default_rng(0)
    return {name: generator.normal(size=shape) for name, shape in shapes.items()}


@pytest.mark.parametrize(
    ("names", "layer", "activation"),
    [
        (("vanilla_rnn/linear/w", "vanilla_rnn/linear_1/w"), "vanilla_rnn", "relu"),
        (("net/~/my_rnn_1/linear/w", "net/~/my_rnn_1/linear_1/w"), "net/~/my_rnn_1", "relu"),
        (("core/input_to_hidden/w", "core/hidden_to_hidden/w"), "core", "tanh"),
    ],
)
def test_a_vanilla_rnn(names: tuple[str, str], layer: str, activation: str) -> None:
    arrays = weights({names[0]: (INPUTS, H), names[1]: (H, H)})
    store = MemoryStore(arrays)
    ((family, match),) = detect(store.tensors)
    assert (family.name, match.layer) == ("haiku_rnn", layer)
    recurrence = read_layer(arrays, HAIKU_RNN)
    assert recurrence.dense is not None
    assert recurrence.readin is not None
    assert_allclose(recurrence.dense.matrix, arrays[names[1]].T)
    assert_allclose(recurrence.readin, arrays[names[0]].T)
    assert recurrence.dense.activation == activation


def test_other_modules_are_not_taken() -> None:
    arrays = weights(
        {
            "mlp/linear/w": (INPUTS, H),
            "mlp/linear_1/w": (H, H),
            "head/linear/w": (INPUTS + H, 4 * H),
            "head/linear/b": (4 * H,),
            "lstm_head/linear/w": (H, 4 * H),  # nothing is left for an input
            "lstm_head/linear/b": (4 * H,),
            "attention/w_i": (H, 3 * H + 1),
            "attention/w_h": (H, 3 * H + 1),
            "pair/w_i": (INPUTS, 3 * H),
            "pair/w_h": (H, 3 * H),
            "pair/b": (H,),
        }
    )
    for family in (HAIKU_GRU, HAIKU_LSTM, HAIKU_RNN, SONNET_LSTM):
        assert match_of(arrays, family) == []
