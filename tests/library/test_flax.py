"""Flax's recurrent cells, linen and nnx, against Flax's own step."""

from __future__ import annotations

from typing import Any

import flax.linen
import flax.nnx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose

from memcurse_cli.checkpoints.memory import MemoryStore
from memcurse_cli.families.detect import detect
from memcurse_cli.families.family import ReadOptions

SIZE, INPUTS = 5, 3


def linen(kind: str) -> tuple[Any, dict[str, np.ndarray[Any, Any]], Any]:
    """A cell of Flax with random biases, its tensors in double precision, and its step."""
    names = {"lstm": "OptimizedLSTMCell", "gru": "GRUCell", "mgu": "MGUCell", "rnn": "SimpleCell"}
    cell = getattr(flax.linen, names[kind])(SIZE, param_dtype=jnp.float32)
    carry = cell.initialize_carry(jax.random.key(0), (INPUTS,))
    variables = cell.init(jax.random.key(1), carry, jnp.zeros(INPUTS))
    rng = np.random.default_rng(2)
    variables = jax.tree.map(lambda a: jnp.asarray(rng.standard_normal(a.shape)), variables)
    store = MemoryStore({"cell": variables["params"]})
    arrays = {name: store.read(name) for name in store.tensors}
    return cell, arrays, lambda state: cell.apply(variables, state, jnp.zeros(INPUTS))[0]


def nnx(kind: str) -> tuple[Any, dict[str, np.ndarray[Any, Any]], Any]:
    names = {
        "lstm": "OptimizedLSTMCell",
        "lstm_": "LSTMCell",
        "gru": "GRUCell",
        "rnn": "SimpleCell",
    }
    cell = getattr(flax.nnx, names[kind])(INPUTS, SIZE, rngs=flax.nnx.Rngs(0))
    rng = np.random.default_rng(3)
    graph, state = flax.nnx.split(cell, ...)[:2]
    state = jax.tree.map(
        lambda a: (
            jnp.asarray(rng.standard_normal(a.shape), jnp.float32) if a.dtype == jnp.float32 else a
        ),
        state,
    )
    cell = flax.nnx.merge(graph, state)
    pure = {
        name: child
        for name, child in flax.nnx.to_pure_dict(flax.nnx.state(cell, flax.nnx.Param)).items()
        if name != "rngs"
    }
    store = MemoryStore({"cell": pure})
    arrays = {name: store.read(name) for name in store.tensors}
    return cell, arrays, lambda state: cell(state, jnp.zeros(INPUTS))[0]


CELLS = [(linen, kind) for kind in ("lstm", "gru", "mgu", "rnn")]
CELLS += [(nnx, kind) for kind in ("lstm", "lstm_", "gru", "rnn")]


@pytest.mark.parametrize(("make", "kind"), CELLS, ids=[f"{m.__name__}-{k}" for m, k in CELLS])
def test_the_step_of_flax_at_zero_input(make: Any, kind: str) -> None:
    _, arrays, step = make(kind)
    store = MemoryStore(arrays)
    ((family, match),) = detect(store.tensors)
    assert match.layer == "cell"
    recurrence = family.read(store, match, ReadOptions(spectra=True))
    zero = jnp.zeros(SIZE)
    if kind.startswith("lstm"):  # the state is c; its carry is (c, h)
        direct = jax.jacobian(lambda c: step((c, zero))[0])(zero)
        whole = np.asarray(
            jax.jacobian(lambda s: jnp.concatenate(step((s[:SIZE], s[SIZE:]))))(jnp.zeros(2 * SIZE))
        )
        assert_allclose(np.diag(direct), np.exp(recurrence.log_eigenvalues.real), rtol=1e-5)
    else:
        whole = np.asarray(jax.jacobian(step)(zero))
    if kind == "rnn":
        # tanh has its slope at the bias; with zero biases the Jacobian is A itself.
        slope = 1 - np.asarray(step(zero), np.float64) ** 2
        assert recurrence.dense is not None
        assert_allclose(slope[:, None] * recurrence.dense.matrix, whole, rtol=1e-4, atol=1e-5)
        return
    assert recurrence.hidden is not None
    ours, theirs = recurrence.hidden.jacobian, np.linalg.eigvals(whole.astype(np.float64))
    for value in theirs:
        assert np.abs(ours - value).min() < 1e-4
