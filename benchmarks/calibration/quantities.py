"""What a rule for the usable rate could be made of, taken from weights as they are.

Every relative effect is √(E|d·|²/E|·|²) per unit of the rate, with tangents along independent
random signs of a set of tensors, as [value, standard error].
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import NDArray

from benchmarks.calibration.networks import RecurrentLayer, Stack
from benchmarks.calibration.tasks import Task
from memcurse_cli import inspect
from memcurse_cli.theory.simulation import Estimate

Quantities = dict[str, Any]

DRAWS, SEQUENCES = 64, 4
SEED = 0


def quantities(network: Stack, task: Task, weights: Mapping[str, NDArray[Any]]) -> Quantities:
    """Of the network, under ``network``, and of every recurrent layer, under ``layers``."""
    parameters = {name: jnp.asarray(value, jnp.float32) for name, value in weights.items()}
    task_inputs, _ = task.draw(jax.random.key(SEED), DRAWS * SEQUENCES)
    both = {"task": task_inputs, "white": _white(*task_inputs.shape)}
    measured = partial(_of_network, network, task.read, parameters, both)
    report = inspect(weights, horizon=task.horizon, simulate=True)
    layers, every = [], []
    for index in range(network.layers):
        names = network.names(index, parameters)
        recurrent = network.layer.recurrent(names)
        every += [names[name] for name in recurrent]
        of_signs = {"recurrent": measured([names[name] for name in recurrent], index)}
        if len(recurrent) < len(names):
            of_signs["whole"] = measured([*names.values()], index)
        own, width = network.of_layer(index, parameters), network.width(index)
        # Several where memcurse takes every head of a layer for itself.
        reports = [_reported(one) for one in report.layers if _belongs(one, names)]
        assert reports, "every recurrent layer is recognised"
        layers.append(
            {
                **of_signs,
                "alone": _alone(network.layer, own, task.horizon, width, recurrent),
                "reported": reports,
            }
        )
    whole = {"recurrent": measured(every, None), "whole": measured([*parameters], None)}
    return {"network": whole, "layers": layers}


def _belongs(reported: Any, names: Mapping[str, str]) -> bool:
    groups = reported.simulation.groups if reported.simulation else reported.groups
    return any(group.tensor in names.values() for group in groups)


# What is drawn comes from NumPy: JAX's generators take longer to compile than the rest to run.


def _white(*shape: int) -> Array:
    """Independent N(0, 1)."""
    return jnp.asarray(np.random.default_rng(SEED).standard_normal(shape), jnp.float32)


def _signs(parameters: Mapping[str, Array], moved: Sequence[str], draws: int) -> dict[str, Array]:
    """(draws, ...) signs of some tensors, the same for the same tensors."""
    random = np.random.default_rng(SEED + 1)
    return {
        name: jnp.asarray(
            2.0 * random.integers(0, 2, (draws, *parameters[name].shape)) - 1, jnp.float32
        )
        for name in sorted(moved)
    }


def _of_network(
    network: Stack,
    read: int,
    parameters: dict[str, Array],
    inputs: Mapping[str, Array],
    moved: list[str],
    index: int | None,
) -> Quantities:
    """Effects of signs of some tensors on what the network puts out and on one layer's state."""
    found: Quantities = {}
    signs = _signs(parameters, moved, DRAWS)
    for name, drawn in inputs.items():
        squares = _squares(network, read, index, parameters, signs, drawn)
        found |= {f"{what}_{name}": _effect(*pair) for what, pair in squares.items()}
    return found


Squares = dict[str, tuple[Array, Array]]
"""(DRAWS,) mean squares of tangents and of values."""


@partial(jax.jit, static_argnums=(0, 1, 2))
def _squares(
    network: Stack,
    read: int,
    index: int | None,
    parameters: dict[str, Array],
    signs: dict[str, Array],
    inputs: Array,
) -> Squares:
    """Of outputs, of those that the loss reads, and of a layer's state, also at the last step."""

    def one(signs: dict[str, Array], inputs: Array) -> Squares:
        def run(moved: dict[str, Array]) -> tuple[Array, Array]:
            outputs, states = network.run({**parameters, **moved}, inputs)
            return outputs, outputs[:, :0] if index is None else states[index]

        moved = {name: parameters[name] for name in signs}
        (outputs, states), (by_outputs, by_states) = jax.jvp(run, (moved,), (signs,))
        found = {
            "output": _powers(by_outputs, outputs),
            "output_read": _powers(by_outputs[:, -read:], outputs[:, -read:]),
        }
        return found if index is None else {**found, **_of_states(by_states, states)}

    return jax.vmap(one)(signs, inputs.reshape(DRAWS, SEQUENCES, *inputs.shape[1:]))


@partial(jax.jit, static_argnums=0)
def _alone_squares(
    layer: RecurrentLayer, own: dict[str, Array], signs: dict[str, Array], inputs: Array
) -> Squares:
    def one(signs: dict[str, Array], inputs: Array) -> Squares:
        moved = {name: own[name] for name in signs}
        states, along = jax.jvp(
            lambda moved: layer.states({**own, **moved}, inputs), (moved,), (signs,)
        )
        return _of_states(along, states)

    return jax.vmap(one)(signs, inputs)


def _alone(
    layer: RecurrentLayer, own: dict[str, Array], horizon: int, width: int, moved: list[str]
) -> Quantities:
    """Effects on the state of a layer that white inputs of its own width drive."""
    inputs = _white(DRAWS, SEQUENCES, horizon, width)
    squares = _alone_squares(layer, own, _signs(own, moved, DRAWS), inputs)
    return {what: _effect(*pair) for what, pair in squares.items()}


def _of_states(along: Array, states: Array) -> Squares:
    last = _powers(along[:, -1], states[:, -1])
    return {"state": _powers(along, states), "state_last": last}


def _powers(along: Array, values: Array) -> tuple[Array, Array]:
    return jnp.mean(jnp.abs(along) ** 2), jnp.mean(jnp.abs(values) ** 2)


def _effect(above: Array, below: Array) -> list[float | None]:
    found = Estimate.root_ratio(np.asarray(above, np.float64), np.asarray(below, np.float64))
    return [rounded(value) for value in found]


def rounded(value: float) -> float | None:
    """Five digits, or None for what JSON has no number for."""
    return float(f"{value:.5g}") if math.isfinite(value) else None


def _reported(layer: Any) -> Quantities:
    """What memcurse says of a layer: by its simulation and, of a linear one, its usable rate."""
    found: Quantities = {"name": layer.name}
    if layer.usable_rate is not None and layer.usable_rate.rate is not None:
        usable = layer.usable_rate
        found["usable"] = {"rate": rounded(usable.rate), "limited_by": usable.limited_by}
    ran = layer.simulation
    if ran is None:
        return found
    effects = {
        group.name: [
            rounded(part / group.learning_rate)
            for part in (group.step_effect.value, group.step_effect.error)
        ]
        for group in ran.groups
    }
    squares = [effect[0] ** 2 for effect in effects.values() if effect[0] is not None]
    if ran.stability_rate is not None:
        found["stability_rate"] = ran.stability_rate
    return {
        **found,
        "simulated": {
            "effects": effects,
            "together": rounded(math.sqrt(sum(squares))),
            "second_moment": rounded(ran.second_moment.value),
            "memory": None if ran.memory is None else rounded(ran.memory.value),
            "memory_at_least": ran.memory_at_least,
            "lyapunov": None if ran.exponent is None else rounded(ran.exponent.value),
            "chaotic": ran.chaotic,
            "saturated": None if ran.saturated is None else rounded(ran.saturated),
        },
    }
