"""Train an LRU in Flax with Optax on a task with long memory, and watch it while it learns.

Run it with `python docs/examples/flax_and_optax.py`.
"""

from __future__ import annotations

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

import memcurse_cli

UNITS, HORIZON, BATCH, STEPS = 16, 100, 16, 300


class LRU(nn.Module):
    """λ = exp(-exp(nu_log) + i exp(theta_log)); the names are those of the paper's own code."""

    @nn.compact
    def __call__(self, inputs):
        """The outputs of every step, from a zero state."""

        def between(low, high):
            return lambda key, shape: jnp.log(
                jax.random.uniform(key, shape, minval=low, maxval=high)
            )

        decay = jnp.exp(self.param("nu_log", between(0.01, 0.5), (UNITS,)))
        angle = jnp.exp(self.param("theta_log", between(0.01, 3.0), (UNITS,)))
        gain = jnp.exp(self.param("gamma_log", nn.initializers.constant(-1.5), (UNITS,)))
        normal = nn.initializers.normal(0.3)
        readin = [self.param(name, normal, (UNITS, 1)) for name in ("B_re", "B_im")]
        readout = [self.param(name, normal, (1, UNITS)) for name in ("C_re", "C_im")]
        skip = self.param("D", nn.initializers.zeros, (1,))
        eigenvalues = jnp.exp(-decay + 1j * angle)
        drive = gain * (readin[0] + 1j * readin[1])[:, 0]

        def step(state, x):
            state = eigenvalues * state + drive * x[:, None]
            return state, (state @ (readout[0] + 1j * readout[1])[0]).real + skip[0] * x

        _, outputs = jax.lax.scan(step, jnp.zeros((inputs.shape[0], UNITS), complex), inputs.T)
        return outputs.T


def log(step, loss, scalars):
    """Stands for the logger of your choice."""
    print(
        f"step {step}: loss {loss:.3g}, verdict {scalars['memcurse/verdict']:.0f}, "
        f"longest memory {scalars['memcurse/memory']:.0f} steps"
    )


def main():
    """Learn to give back the input of 20 steps ago."""
    network, rate = LRU(), 3e-3
    key = jax.random.key(0)
    parameters = network.init(key, jnp.zeros((1, HORIZON)))["params"]
    optimizer = optax.adam(rate)
    state = optimizer.init(parameters)

    def loss_of(parameters, inputs):
        outputs = network.apply({"params": parameters}, inputs)
        return jnp.mean((outputs[:, 20:] - inputs[:, :-20]) ** 2)

    @jax.jit
    def train(parameters, state, key):
        inputs = jax.random.normal(key, (BATCH, HORIZON))
        loss, gradient = jax.value_and_grad(loss_of)(parameters, inputs)
        updates, state = optimizer.update(gradient, state)
        return optax.apply_updates(parameters, updates), state, loss

    for step in range(STEPS + 1):
        parameters, state, loss = train(parameters, state, jax.random.fold_in(key, step))
        if step % 100 == 0:
            report = memcurse_cli.inspect(parameters, horizon=HORIZON, learning_rate=float(rate))
            log(step, float(loss), report.scalars())
            if report.verdict == "cursed":
                break


if __name__ == "__main__":
    main()
