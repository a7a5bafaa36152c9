"""What a user would write by hand, run as `python -m benchmarks.peers NAME PATH`."""

from __future__ import annotations

import sys

import numpy as np


def empty_command() -> None:
    """A command line that does nothing, with what ours cannot do without."""
    import rich.console
    import rich.table  # noqa: F401
    import typer

    app = typer.Typer()
    app.command()(lambda: None)
    app([])


def lstm_gates(path: str) -> None:
    """The eigenvalues of the four hidden gate matrices of an LSTM."""
    from safetensors.numpy import load_file

    for gate in np.split(load_file(path)["weight_hh_l0"].astype(np.float64), 4):
        np.linalg.eigvals(gate)


def lstm_forward(path: str) -> None:
    """PyTorch's own forward pass of an LSTM, in double precision: 16 sequences of 100 steps."""
    import torch
    from safetensors.torch import load_file

    state = load_file(path)
    layer = torch.nn.LSTM(state["weight_ih_l0"].shape[1], state["weight_hh_l0"].shape[1]).double()
    layer.load_state_dict(state)
    with torch.no_grad():
        layer(torch.randn(100, 16, layer.input_size, dtype=torch.float64))


def lstm_tangents(path: str) -> None:
    """JAX's tangents of the same, along one direction of each of its four tensors."""
    import jax
    import jax.numpy as jnp
    from safetensors.numpy import load_file

    jax.config.update("jax_enable_x64", True)
    names = ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0")
    weights = [jnp.asarray(load_file(path)[name], jnp.float64) for name in names]
    size = weights[1].shape[1]
    xs = jnp.asarray(np.random.default_rng(0).standard_normal((100, 16, weights[0].shape[1])))

    def last(*weights: jax.Array) -> jax.Array:
        def step(state: tuple[jax.Array, jax.Array], x: jax.Array) -> tuple[object, None]:
            h, c = state
            seen = x @ weights[0].T + h @ weights[1].T + weights[2] + weights[3]
            i, f, g, o = jnp.split(seen, 4, axis=1)
            c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
            return (jax.nn.sigmoid(o) * jnp.tanh(c), c), None

        zero = jnp.zeros((16, size))
        return jax.lax.scan(step, (zero, zero), xs)[0][0]

    for place in range(4):
        along = tuple(jnp.ones_like(one) * (at == place) for at, one in enumerate(weights))
        jax.jit(lambda *w, along=along: jax.jvp(last, w, along)[1])(*weights).block_until_ready()


def dense_eig(path: str) -> None:
    """`numpy.linalg.eig` of one dense matrix, and nothing else."""
    from safetensors.numpy import load_file

    np.linalg.eig(load_file(path)["weight_hh_l0"])


def mamba_spectrum(path: str) -> None:
    """λ of every layer of a Mamba-1 through safetensors' own lazy reader."""
    import ml_dtypes  # noqa: F401  (registers bfloat16 with NumPy)
    from safetensors import safe_open

    with safe_open(path, framework="numpy") as file:
        for name in file.keys():  # noqa: SIM118  (a safe_open is no mapping)
            if name.endswith("A_log"):
                a = np.exp(file.get_tensor(name).astype(np.float64))
                bias = file.get_tensor(name.replace("A_log", "dt_proj.bias")).astype(np.float64)
                np.exp(-np.logaddexp(0, bias)[:, None] * a)


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
