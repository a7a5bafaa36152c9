"""The block-diagonal linear RNN: every head is the dense layer that its block alone would be."""

from __future__ import annotations

import numpy as np
import pytest

from memcurse_cli import inspect
from memcurse_cli.checkpoints.memory import MemoryStore
from memcurse_cli.diagnosis.inspection import hessian
from memcurse_cli.experiments.networks import BlockDiagonalRNN as Network
from memcurse_cli.families.dense.block_diagonal import BlockDiagonalRNN
from memcurse_cli.families.family import ReadOptions

UNITS = 12


@pytest.fixture
def state() -> dict[str, np.ndarray]:
    return Network().initialise(np.random.default_rng(0), UNITS, 0.9)


def test_every_head_is_a_dense_layer_of_its_own(state: dict[str, np.ndarray]) -> None:
    heads, size, _ = state["A"].shape
    assert heads > 1
    layers = inspect(state, horizon=50).layers
    assert [layer.name for layer in layers] == [f"block_diagonal.head{k}" for k in range(heads)]
    for head, layer in enumerate(layers):
        units = slice(head * size, (head + 1) * size)
        alone = {"A": state["A"][head], "B": state["B"][units], "C": state["C"][:, units]}
        (dense,) = inspect(alone, horizon=50).layers
        assert layer.eigenvalues == dense.eigenvalues
        assert layer.dense == dense.dense
        assert layer.usable_rate == dense.usable_rate


def test_the_hessian_says_that_heads_are_taken_apart(state: dict[str, np.ndarray]) -> None:
    """Over all heads, whose outputs add up, it has blocks that no head's own has."""
    for layer in hessian(state, horizon=50).layers:
        assert "of the other heads" in (layer.left_out or "")
    alone = {"A": state["A"][0], "B": state["B"][: state["A"].shape[1]]}
    (dense,) = hessian(alone | {"C": state["C"][:, : len(alone["B"])]}, horizon=50).layers
    assert "heads" not in (dense.left_out or "")


def test_an_impulse_decays_as_the_heads_say(state: dict[str, np.ndarray]) -> None:
    """The layer's response, step by step, from the eigenvalues, B and C of every head."""
    family = BlockDiagonalRNN()
    with MemoryStore({f"rnn.{name}": value for name, value in state.items()}) as store:
        matches = family.find(store.tensors)
        layers = [family.read(store, match, ReadOptions()) for match in matches]
    heads, size, _ = state["A"].shape
    whole = np.zeros((UNITS, UNITS))
    for head in range(heads):
        units = slice(head * size, (head + 1) * size)
        whole[units, units] = state["A"][head]
    for lag in (0, 1, 7, 40):
        expected = state["C"] @ np.linalg.matrix_power(whole, lag) @ state["B"]
        response = 0
        for layer in layers:
            assert layer.dense is not None
            vectors = layer.dense.eigenvectors
            power = vectors @ np.diag(np.exp(lag * layer.log_eigenvalues)) @ np.linalg.inv(vectors)
            response = response + layer.readout @ power @ layer.readin
        np.testing.assert_allclose(response, expected, atol=1e-10)


def test_a_stack_without_a_readin_of_its_size_is_not_taken() -> None:
    store = MemoryStore({"A": np.zeros((2, 3, 3)), "B": np.zeros((5, 1))})
    assert BlockDiagonalRNN().find(store.tensors) == []
