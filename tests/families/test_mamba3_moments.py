"""Moments of Mamba-3 under gates that move, against the library's reference step."""

from __future__ import annotations

import numpy as np
import pytest
from families.mamba3_mixers import HEAD_DIMENSION, HEADS, mixer
from families.simulated_gates import gates_of
from numpy.testing import assert_allclose
from numpy.typing import NDArray


def reference_states(arrays: dict[str, NDArray], scale: float) -> tuple[NDArray, NDArray]:
    """E h² and E (dh/d dt_bias)² of every head, by the library's reference step on random inputs.

    `mamba3_siso_step_ref` of its tests: inputs of the layer are drawn anew at every step, keys and
    values from elsewhere. A state is seen in the frame of its query, which turns with it.
    """
    jax = pytest.importorskip("jax")
    jnp = jax.numpy
    runs, steps, skipped = 250, 550, 250
    state = arrays["mixer.B_bias"].shape[2]
    rows = arrays["mixer.in_proj.weight"][2 * HEADS * HEAD_DIMENSION + 2 * state :]
    turning = len(rows) - 3 * HEADS

    def run(bias: NDArray, key: NDArray) -> tuple[NDArray, NDArray]:
        def step(carry: tuple[NDArray, ...], key: NDArray) -> tuple[tuple[NDArray, ...], NDArray]:
            angle, states, last = carry
            first, second = jax.random.split(key)
            seen = scale * jax.random.normal(first, (runs, rows.shape[1])) @ rows.T
            parts = jnp.split(seen, [HEADS, 2 * HEADS, 3 * HEADS], axis=1)
            size = jax.nn.softplus(parts[0] + bias)
            negative = jnp.minimum(parts[1], 0)
            rate = jnp.maximum(jnp.maximum(parts[1], 0) + 1 / (1 - negative), 1e-4)
            angle = angle + jnp.tanh(parts[3])[:, None] * jnp.pi * size[..., None]
            drive = turned(jax.random.normal(second, (runs, HEADS, state)), angle)
            trapezoid = jax.nn.sigmoid(parts[2])
            alpha = jnp.exp(-rate * size)
            states = alpha[..., None] * states
            states += ((1 - trapezoid) * size * alpha)[..., None] * last
            states += (trapezoid * size)[..., None] * drive
            return (angle, states, drive), turned(states, -angle)

        empty = jnp.zeros((runs, HEADS, state))
        begin = (jnp.zeros((runs, HEADS, turning)), empty, empty)
        return jax.lax.scan(step, begin, jax.random.split(key, steps))[1]

    def turned(tensor: NDArray, angle: NDArray) -> NDArray:
        pairs = tensor.reshape(*tensor.shape[:-1], -1, 2)
        left = [(0, 0), (0, 0), (0, pairs.shape[-2] - turning)]
        cos, sin = jnp.pad(jnp.cos(angle), left, constant_values=1.0), jnp.pad(jnp.sin(angle), left)
        first = pairs[..., 0] * cos - pairs[..., 1] * sin
        second = pairs[..., 0] * sin + pairs[..., 1] * cos
        return jnp.stack([first, second], axis=-1).reshape(tensor.shape)

    bias = jnp.asarray(arrays["mixer.dt_bias"])
    states, moved = jax.jvp(
        lambda bias: run(bias, jax.random.key(4)), (bias,), (jnp.ones_like(bias),)
    )
    held, changed = (
        np.asarray((each[skipped:] ** 2).mean(axis=(0, 1, 3)), dtype=float)
        for each in (states, moved)
    )
    return held, changed


def apart(arrays: dict[str, NDArray], angles: int) -> dict[str, NDArray]:
    """The mixer with angles that see inputs of their own, independent of the gates."""
    weight = arrays["mixer.in_proj.weight"]
    none = np.zeros_like(weight)
    wide = np.concatenate([np.concatenate([weight, none], 1)[:-angles], none.repeat(2, 1)[:angles]])
    wide[-angles:, weight.shape[1] :] = weight[-angles:]
    return arrays | {
        "mixer.in_proj.weight": wide,
        "mixer.out_proj.weight": np.ones((wide.shape[1], HEADS * HEAD_DIMENSION)),
    }


def test_the_moments_are_those_of_the_reference_step() -> None:
    arrays, scale = apart(mixer(state=4), 1), 1.5
    held, changed = reference_states(arrays, scale)
    gates = gates_of(arrays, input_scale=scale)
    assert gates.second_moment is not None
    seen = gates.second_moment.moving
    assert_allclose([seen.min, seen.p50, seen.max], spread_of(held), rtol=0.03)
    (group,) = gates.parameters
    kappa = group.relative_sensitivity.moving
    assert_allclose([kappa.min, kappa.p50, kappa.max], spread_of(changed / held), rtol=0.03)


def spread_of(values: NDArray) -> list[float]:
    return [values.min(), np.median(values), values.max()]


def test_gates_that_stand_still_have_the_moments_of_the_impulse() -> None:
    """c_0 = Δ/2 and c_k = Δ λᵏ, of any trapezoid."""
    gates = gates_of(mixer(scale=0.0))
    assert gates.second_moment is not None
    assert gates.second_moment.ratio.max == pytest.approx(1.0)
    step = np.log1p(np.exp(mixer()["mixer.dt_bias"]))
    expected = step**2 * (0.25 + np.exp(-2 * step) / -np.expm1(-2 * step))
    assert gates.second_moment.nominal.max == pytest.approx(expected.max())
    assert gates.second_moment.nominal.min == pytest.approx(expected.min())
