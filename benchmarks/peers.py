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
