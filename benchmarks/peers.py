"""What a user would write by hand, run as `python -m benchmarks.peers NAME PATH`."""

from __future__ import annotations

import sys
from typing import Any, NamedTuple

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


def lstm_weightwatcher(path: str) -> Any:
    """WeightWatcher's analysis of an LSTM and its readout: a table of the layers that it knows."""
    import torch
    import weightwatcher
    from safetensors.torch import load_file

    state = load_file(path)
    size = state["weight_hh_l0"].shape[1]
    layer = torch.nn.LSTM(state["weight_ih_l0"].shape[1], size)
    layer.load_state_dict(state)
    model = torch.nn.ModuleDict({"lstm": layer, "head": torch.nn.Linear(size, size)})
    return weightwatcher.WeightWatcher(model=model).analyze()


def dense_control(path: str) -> tuple[np.ndarray, float]:
    """python-control's poles of a dense system with C = 1, and its squared H2 norm.

    `control.system_norm` takes a clearly stable system of this size for unstable, and says inf; so
    the norm is the trace of the Gramian that it starts from.
    """
    import control
    from safetensors.numpy import load_file

    weights = load_file(path)
    a, b = weights["A"], weights["B"]
    system = control.ss(a, b, np.eye(len(a)), np.zeros_like(b), True)
    return control.poles(system), float(np.trace(control.dlyap(a, b @ b.T)))


def diagonal_tangents(path: str, steps: int = 1024, sequences: int = 16) -> np.ndarray:
    """JAX's dh/dλ of a diagonal layer without γ after some steps of drawn inputs, (S, n)."""
    import jax
    import jax.numpy as jnp
    from safetensors.numpy import load_file

    nu, theta = (load_file(path)[name].astype(np.float64) for name in ("nu_log", "theta_log"))
    drawn = np.random.default_rng(0).standard_normal((steps, sequences, 1))
    with jax.enable_x64(True):
        inputs, values = jnp.asarray(drawn), jnp.asarray(np.exp(-np.exp(nu) + 1j * np.exp(theta)))

        def last(eigenvalues: jax.Array) -> jax.Array:
            zero = jnp.zeros((sequences, eigenvalues.size), eigenvalues.dtype)
            return jax.lax.scan(lambda h, x: (eigenvalues * h + x, None), zero, inputs)[0]

        derivative = jax.jit(lambda one: jax.jvp(last, (one,), (jnp.ones_like(one),))[1])
        return np.asarray(derivative(values))


class PowerAndTrace(NamedTuple):
    """What PyHessian found of a Hessian."""

    sharpness: float  # its largest eigenvalue
    traces: list[float]  # vᵀ H v of random signs


def hessian_autodiff(
    path: str, iterations: int = 100, steps: int = 300, sequences: int = 16, seed: int = 0
) -> PowerAndTrace:
    """PyHessian of an LRU over ν, θ and γ, from its mean loss on drawn inputs at a perfect fit."""
    import pyhessian
    import torch
    from safetensors.torch import load_file

    torch.manual_seed(seed)
    weights = load_file(path)
    readin = torch.complex(weights["B_re"], weights["B_im"])
    readout = torch.complex(weights["C_re"], weights["C_im"])
    lags = torch.arange(steps)

    class Layer(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            for name in ("nu_log", "theta_log", "gamma_log"):
                self.register_parameter(name, torch.nn.Parameter(weights[name].clone()))

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            """(S, T, outputs) by convolution with the impulse response, as one trains it."""
            logs = torch.complex(-torch.exp(self.nu_log), torch.exp(self.theta_log))
            gained = torch.exp(self.gamma_log)[:, None] * readin
            powers = torch.exp(logs[:, None] * lags)
            response = torch.einsum("on,nt,ni->toi", readout, powers, gained).real
            kernel = torch.fft.rfft(response, 2 * steps, dim=0)
            seen = torch.fft.rfft(inputs, 2 * steps, dim=1)
            mixed = torch.einsum("foi,sfi->sfo", kernel, seen)
            return torch.fft.irfft(mixed, 2 * steps, dim=1)[:, :steps]

    layer = Layer()
    inputs = torch.randn(sequences, steps, readin.shape[1])
    target = layer(inputs).detach()

    def loss(outputs: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return 0.5 * ((outputs - target) ** 2).sum(dim=2).mean()

    found = pyhessian.hessian(layer, loss, data=(inputs, target), cuda=False)
    (sharpness,), _ = found.eigenvalues(maxIter=iterations)
    return PowerAndTrace(float(sharpness), found.trace(maxIter=iterations))


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
