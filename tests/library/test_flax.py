"""Flax's recurrent cells, linen and nnx, against Flax's own step."""

from __future__ import annotations

from typing import Any

import flax.linen
import flax.nnx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from families.derivatives import read_found
from families.oracles import run_on
from numpy.testing import assert_allclose

SIZE, INPUTS = 5, 3


ZEROS = jnp.zeros(INPUTS)
NAMES = {"lstm": "OptimizedLSTMCell", "lstm_": "LSTMCell", "gru": "GRUCell", "rnn": "SimpleCell"}
NAMES |= {"mgu": "MGUCell"}
CELLS = [(flax.linen, kind) for kind in ("lstm", "gru", "mgu", "rnn")]
CELLS += [(flax.nnx, kind) for kind in ("lstm", "lstm_", "gru", "rnn")]


def drawn(tree: Any) -> Any:
    """The tree with random weights, biases too."""
    rng = np.random.default_rng(3)
    return jax.tree.map(
        lambda a: (
            jnp.asarray(rng.standard_normal(a.shape), jnp.float32) if a.dtype == jnp.float32 else a
        ),
        tree,
    )


def made(library: Any, kind: str) -> tuple[Any, Any]:
    """The parameters of a cell and its step."""
    new = getattr(library, NAMES[kind])
    if library is flax.linen:
        cell = new(SIZE)
        carry = cell.initialize_carry(jax.random.key(0), (INPUTS,))
        variables = drawn(cell.init(jax.random.key(1), carry, ZEROS))
        return variables["params"], lambda state, x=ZEROS: cell.apply(variables, state, x)[0]
    graph, state = flax.nnx.split(new(INPUTS, SIZE, rngs=flax.nnx.Rngs(0)))
    cell = flax.nnx.merge(graph, drawn(state))
    pure = flax.nnx.to_pure_dict(flax.nnx.state(cell, flax.nnx.Param))
    pure.pop("rngs", None)
    return pure, lambda state, x=ZEROS: cell(state, x)[0]


each_cell = pytest.mark.parametrize(
    ("library", "kind"), CELLS, ids=[f"{library.__name__}-{kind}" for library, kind in CELLS]
)


@each_cell
def test_a_run_is_that_of_flax(library: Any, kind: str) -> None:
    parameters, step = made(library, kind)
    inputs = np.random.default_rng(0).standard_normal((5, 1, INPUTS))
    state = (jnp.zeros(SIZE),) * 2 if kind.startswith("lstm") else jnp.zeros(SIZE)
    for x in inputs:
        state = step(state, jnp.asarray(x[0]))
    found = run_on(read_found({"cell": parameters}, simulate=True), inputs)
    assert_allclose(found[0], state[1] if isinstance(state, tuple) else state, atol=1e-5)


@each_cell
def test_the_step_of_flax_at_zero_input(library: Any, kind: str) -> None:
    parameters, step = made(library, kind)
    recurrence = read_found({"cell": parameters}, spectra=True)
    assert recurrence.name == "cell"
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
        assert_allclose(slope[:, None] * recurrence.dense.matrix, whole, rtol=1e-4, atol=1e-5)
        return
    ours, theirs = recurrence.hidden.jacobian, np.linalg.eigvals(whole.astype(np.float64))
    for value in theirs:
        assert np.abs(ours - value).min() < 1e-4
