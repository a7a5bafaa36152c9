"""What JAX users save: (params, opt_state) of real optax transformations, told apart."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from library.formats.test_committed import jax_tree

from memcurse_cli.checkpoints.memory import MemoryStore
from memcurse_cli.checkpoints.open import open_checkpoint
from memcurse_cli.checkpoints.optimizer import adam_state

optax = pytest.importorskip("optax")
jax = pytest.importorskip("jax")

CELLS = {
    f"{gate}{part}": {"kernel": (4, 4) if gate == "h" else (3, 4), "bias": (4,)}
    for gate in "ih"
    for part in "rzn"
}
TRANSFORMS = {
    "adam": lambda: optax.adam(1e-3),
    "clipped": lambda: optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-3)),
    "injected": lambda: optax.inject_hyperparams(optax.adam)(learning_rate=1e-3),
    "momentum": lambda: optax.sgd(1e-2, momentum=0.9),
    "rmsprop": lambda: optax.rmsprop(1e-3),
    "adagrad": lambda: optax.adagrad(1e-2),
    "lion": lambda: optax.lion(1e-4),
    "adafactor": lambda: optax.adafactor(1e-3),
    "many": lambda: optax.MultiSteps(optax.adam(1e-3), 4),
    "groups": lambda: optax.multi_transform({"all": optax.adam(1e-3)}, "all"),
}


def saved(name: str) -> tuple[dict[str, Any], Any]:
    random = np.random.default_rng(0)
    params = {
        "GRUCell_0": {
            gate: {
                part: jax.numpy.asarray(random.standard_normal(shape), "float32")
                for part, shape in parts.items()
            }
            for gate, parts in CELLS.items()
        }
    }
    transform = TRANSFORMS[name]()
    state = transform.init(params)
    gradients = jax.tree.map(jax.numpy.ones_like, params)
    _, state = transform.update(gradients, state, params)
    return params, state


def test_a_pickle_s_moments_are_those_of_its_weights(tmp_path: Path) -> None:
    params, state = saved("adam")
    path = tmp_path / "training.pkl"
    path.write_bytes(pickle.dumps((params, state)))
    with open_checkpoint(path) as store:
        found = adam_state(store)
    assert found is not None
    assert found.refused == {}
    assert len(found.slots) == 12
    slot = found.slots["0/GRUCell_0/hr/kernel"]
    assert slot.step == 1
    np.testing.assert_allclose(
        slot.second_moment.load(), state[0].nu["GRUCell_0"]["hr"]["kernel"], rtol=1e-6
    )


def test_a_state_in_memory_repeats_the_tree_of_the_weights() -> None:
    content, (_, moments) = jax_tree()
    store = MemoryStore(content)
    state = adam_state(store)
    assert state is not None
    assert set(state.slots) == set(moments)
    for name, moment in moments.items():
        slot = state.slots[name]
        np.testing.assert_allclose(slot.second_moment.load(), moment)
        assert (slot.step, slot.learning_rate) == (3, pytest.approx(2e-3))


def test_a_state_of_other_shapes_is_refused() -> None:
    content, _ = jax_tree()
    content["params"] = {"rnn": {"nu": np.ones(4), "theta": np.ones(4)}}
    state = adam_state(MemoryStore(content))
    assert state is not None
    assert state.slots == {}
    assert "no tree of weights" in state.refused["params/rnn/nu"]
