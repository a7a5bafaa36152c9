"""A GRU student with a linear readout, in torch's layout."""

from __future__ import annotations

from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from memcurse_cli.experiments.network import InitialValues, Parameters

if TYPE_CHECKING:
    from jaxtyping import Float


class GRU:
    """`torch.nn.GRU` with one layer and one input, then `torch.nn.Linear` as ``head``.

    ``r = σ(W_ir x + b_ir + W_hr h + b_hr)``, z likewise,
    ``n = tanh(W_in x + b_in + r (W_hn h + b_hn))`` and ``h ← (1 - z) n + z h``; the rows of
    weight_ih_l0 (3n, 1), weight_hh_l0 (3n, n) and of both biases (3n,) are r, z, n in this order.
    """

    def initialise(self, random: np.random.Generator, units: int, modulus: float) -> InitialValues:
        """Initial values uniform in ±1/√n as in torch; the modulus is not used."""
        limit = 1 / np.sqrt(units)
        shapes = {
            "weight_ih_l0": (3 * units, 1),
            "weight_hh_l0": (3 * units, units),
            "bias_ih_l0": (3 * units,),
            "bias_hh_l0": (3 * units,),
            "head.weight": (1, units),
            "head.bias": (1,),
        }
        return {name: random.uniform(-limit, limit, shape) for name, shape in shapes.items()}

    def outputs(
        self, parameters: Parameters, inputs: Float[Array, "batch horizon"]
    ) -> Float[Array, "batch horizon"]:
        """The outputs from a zero state."""
        from_input = parameters["weight_ih_l0"].T, parameters["bias_ih_l0"]
        from_state = parameters["weight_hh_l0"].T, parameters["bias_hh_l0"]
        units = parameters["weight_hh_l0"].shape[1]

        def step(state: Array, column: Array) -> tuple[Array, Array]:
            driven = column[:, None] * from_input[0] + from_input[1]
            fed_back = state @ from_state[0] + from_state[1]
            gates = jax.nn.sigmoid(driven[:, : 2 * units] + fed_back[:, : 2 * units])
            reset, update = gates[:, :units], gates[:, units:]
            candidate = jnp.tanh(driven[:, 2 * units :] + reset * fed_back[:, 2 * units :])
            state = (1 - update) * candidate + update * state
            return state, state @ parameters["head.weight"][0]

        initial = jnp.zeros((inputs.shape[0], units), inputs.dtype)
        _, outputs = jax.lax.scan(step, initial, inputs.T)
        return outputs.T + parameters["head.bias"][0]
