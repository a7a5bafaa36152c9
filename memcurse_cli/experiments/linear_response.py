"""Linear recurrences from their impulse response: every step at once instead of one by one.

From a zero state, ``h[t] = A h[t-1] + B x[t]``, ``y[t] = C h[t] + D x[t]`` is the convolution of x
with the kernel ``D + C B, C A B, C A² B, …``. The kernel does not depend on the batch, and doubling
gives T of its terms in log₂ T products, so a training step costs one Fourier transform of
the batch instead of T products with it. The numbers and gradients are those of the recurrence.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import jax.numpy as jnp
from jax import Array

if TYPE_CHECKING:
    from jaxtyping import Float, Inexact


def dense_impulse_states(
    transition: Float[Array, "n n"], readin: Float[Array, " n"], horizon: int
) -> Float[Array, "n horizon"]:
    """The states ``A^t B`` that an impulse leaves after t = 0 … T-1 steps of a dense recurrence."""
    states, power = readin[:, None], transition
    while states.shape[1] < horizon:
        states = jnp.concatenate([states, power @ states], axis=1)
        # The power after the last doubling is never used and could overflow.
        power = power @ power if states.shape[1] < horizon else power
    return states[:, :horizon]


def diagonal_impulse_states(
    eigenvalues: Inexact[Array, " n"], readin: Inexact[Array, " n"], horizon: int
) -> Inexact[Array, "n horizon"]:
    """The states ``λ^t b`` that an impulse leaves after t = 0 … T-1 steps of each eigenvalue."""
    states, power = readin[:, None], eigenvalues[:, None]
    while states.shape[1] < horizon:
        states = jnp.concatenate([states, power * states], axis=1)
        power = power * power if states.shape[1] < horizon else power
    return states[:, :horizon]


def causal_convolution(
    kernel: Float[Array, " horizon"], inputs: Float[Array, "batch horizon"]
) -> Float[Array, "batch horizon"]:
    """``y[t] = Σ_{s≤t} kernel[s] x[t-s]`` for every sequence of a batch.

    The transforms are padded to twice the horizon, so that nothing wraps around.
    """
    horizon = kernel.shape[0]
    product = jnp.fft.rfft(kernel, 2 * horizon) * jnp.fft.rfft(inputs, 2 * horizon)
    return jnp.fft.irfft(product, 2 * horizon)[:, :horizon]
