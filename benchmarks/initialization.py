"""`python -m benchmarks.initialization`: whether a long memory at the start helps to learn.

An LSTM is trained on the adding task over 1000 steps, from three starts with three seeds each, in
12 minutes on one core. Losses go to initialization.json here, their table into
docs/initialization.md.
"""

from __future__ import annotations

import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array

from benchmarks.calibration.networks import LSTM, Stack
from benchmarks.calibration.page import DOCS, markdown_table, put
from benchmarks.calibration.tasks import adding
from memcurse_cli.cures.initialization import recipe

RESULTS = Path(__file__).with_suffix(".json")
PAGE = DOCS / "initialization.md"
MARKS = ("<!-- adding -->\n", "<!-- /adding -->")
HORIZON, UNITS, BATCH, SEEDS = 1000, 32, 16, 3
STEPS, SHOWN = 800, 100  # batches are drawn anew at every step
RATE, CLIP = 3e-3, 1.0
STARTS = {"torch's own": None, "Chrono, 2:1000": "chrono", "critical, 1000": "critical"}

TASK = adding(HORIZON)
NETWORK = Stack(LSTM(), 1, UNITS, TASK.inputs, TASK.outputs)


def start(method: str | None, seed: int) -> dict[str, Array]:
    """The network as torch draws it, with the biases of an initialisation."""
    drawn = NETWORK.initialise(np.random.default_rng(seed))
    if method is not None:
        biases = recipe("lstm", (2, HORIZON), UNITS, seed=seed, method=method).tensors()
        drawn |= {name: values for name, values in biases.items() if name.startswith("bias")}
    return {name: jnp.asarray(value, jnp.float32) for name, value in drawn.items()}


def losses(method: str | None) -> list[list[float]]:
    """That of every step, of every seed."""
    optimizer = optax.chain(optax.clip_by_global_norm(CLIP), optax.adam(RATE))

    def loss(parameters: dict[str, Array], key: Array) -> Array:
        inputs, target = TASK.draw(key, BATCH)
        return TASK.loss(NETWORK.outputs(parameters, inputs), target)

    @jax.jit
    @jax.vmap
    def advance(parameters, state, key):  # type: ignore[no-untyped-def]
        now, gradient = jax.value_and_grad(loss)(parameters, key)
        moved, state = optimizer.update(gradient, state)
        return optax.apply_updates(parameters, moved), state, now

    every = [start(method, seed) for seed in range(SEEDS)]
    parameters = jax.tree.map(lambda *values: jnp.stack(values), *every)
    state, seen = jax.vmap(optimizer.init)(parameters), []
    keys = jax.vmap(jax.random.key)(jnp.arange(SEEDS))
    for step in range(STEPS):
        drawn = jax.vmap(jax.random.fold_in, (0, None))(keys, step)
        parameters, state, now = advance(parameters, state, drawn)
        seen.append(np.asarray(now))
    return np.stack(seen, axis=1).tolist()


def main() -> None:
    """Train, and write both."""
    found, rows = {}, []
    for name, method in STARTS.items():
        seen = np.asarray(losses(method))
        halves = [seen[:, at - SHOWN : at].mean(axis=1) for at in (SHOWN, STEPS // 2, STEPS)]
        found[name] = [half.round(3).tolist() for half in halves]
        cells = [", ".join(f"{loss:.3f}" for loss in half) for half in halves]
        rows.append([name, *cells])
        print(*rows[-1], sep=" | ", flush=True)
    RESULTS.write_text(json.dumps({"silent": TASK.silent, "losses": found}, indent=1) + "\n")
    heads = ["initialisation", *(f"steps to {at}" for at in (SHOWN, STEPS // 2, STEPS))]
    put({MARKS: markdown_table(heads, rows) + "\n"}, PAGE)


if __name__ == "__main__":
    main()
