"""The checkpoints that the benchmarks read: `python -m benchmarks.checkpoints FOLDER`."""

from __future__ import annotations

import json
import struct
import sys
from pathlib import Path

import ml_dtypes
import numpy as np
from safetensors.numpy import save_file

LAYERS, INNER, MODEL, STATE, RANK, VOCABULARY = 64, 5120, 2560, 16, 160, 50280


def lstm(folder: Path, hidden: int = 1024) -> Path:
    """An LSTM state dict as torch names it, with an input as wide as the state."""
    path = folder / "lstm.safetensors"
    generator = np.random.default_rng(0)
    scale = hidden**-0.5
    shapes = {
        "weight_ih_l0": (4 * hidden, hidden),
        "weight_hh_l0": (4 * hidden, hidden),
        "bias_ih_l0": (4 * hidden,),
        "bias_hh_l0": (4 * hidden,),
    }
    save_file(
        {
            name: generator.uniform(-scale, scale, shape).astype(np.float32)
            for name, shape in shapes.items()
        },
        path,
    )
    return path


def dense_weights(size: int) -> dict[str, np.ndarray]:
    """A stable dense linear recurrence."""
    matrix = np.random.default_rng(0).normal(size=(size, size)) * 0.95 * size**-0.5
    return {"A": matrix, "B": np.eye(size)}


def dense(folder: Path) -> None:
    """A network as torch names it, and a linear system."""
    matrix, readin = dense_weights(1024).values()
    named = {"weight_hh_l0": matrix, "weight_ih_l0": readin}
    save_file(named, folder / "dense.safetensors")
    save_file(dense_weights(512), folder / "system.safetensors")


def lru_recurrence(size: int, seed: int = 0) -> dict[str, np.ndarray]:
    """ν, θ and γ as the paper of the LRU initialises them, with |λ| in [0.9, 0.999]."""
    generator = np.random.default_rng(seed)
    modulus = np.sqrt(generator.uniform(0.9**2, 0.999**2, size))
    parameters = {
        "nu_log": np.log(-np.log(modulus)),
        "theta_log": np.log(generator.uniform(1e-3, np.pi, size)),
        "gamma_log": 0.5 * np.log1p(-(modulus**2)),
    }
    return {name: array.astype(np.float32) for name, array in parameters.items()}


def lru_layer(size: int, channels: int = 1) -> dict[str, np.ndarray]:
    """A whole LRU layer with as many outputs as inputs."""
    generator = np.random.default_rng(1)
    shapes = {"B": (size, channels), "C": (channels, size)}
    return lru_recurrence(size) | {
        f"{matrix}_{part}": generator.standard_normal(shape, np.float32) * (2 * shape[1]) ** -0.5
        for matrix, shape in shapes.items()
        for part in ("re", "im")
    }


def lrus(folder: Path) -> None:
    """A recurrence alone, and a layer with B and C, which has a Hessian."""
    save_file(lru_recurrence(4096), folder / "diagonal.safetensors")
    save_file(lru_layer(512), folder / "hessian.safetensors")


def mamba(folder: Path) -> Path:
    """A Mamba-1 of 2.8 billion parameters in bfloat16, as Hugging Face names it.

    Only what the recurrence reads is written; the rest of the file is a hole full of zeros.
    """
    path = folder / "mamba.safetensors"
    generator = np.random.default_rng(0)
    a_log = np.log(np.tile(np.arange(1, STATE + 1), (INNER, 1)))
    shapes = {"backbone.embeddings.weight": (VOCABULARY, MODEL)}
    contents = {}
    for layer in range(LAYERS):
        prefix = f"backbone.layers.{layer}.mixer."
        step = np.exp(generator.uniform(np.log(1e-3), np.log(1e-1), INNER))
        contents[prefix + "A_log"] = a_log + 0.1 * generator.normal(size=a_log.shape)
        contents[prefix + "dt_proj.bias"] = step + np.log(-np.expm1(-step))
        shapes |= {
            prefix + "A_log": (INNER, STATE),
            prefix + "D": (INNER,),
            prefix + "conv1d.weight": (INNER, 1, 4),
            prefix + "conv1d.bias": (INNER,),
            prefix + "dt_proj.weight": (INNER, RANK),
            prefix + "dt_proj.bias": (INNER,),
            prefix + "in_proj.weight": (2 * INNER, MODEL),
            prefix + "out_proj.weight": (MODEL, INNER),
            prefix + "x_proj.weight": (RANK + 2 * STATE, INNER),
            f"backbone.layers.{layer}.norm.weight": (MODEL,),
        }
    header, end = {}, 0
    for name, shape in shapes.items():
        start, end = end, end + 2 * int(np.prod(shape))
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [start, end]}
    encoded = json.dumps(header).encode()
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(encoded)) + encoded)
        for name, array in contents.items():
            file.seek(8 + len(encoded) + header[name]["data_offsets"][0])
            file.write(array.astype(ml_dtypes.bfloat16).tobytes())
        file.truncate(8 + len(encoded) + end)
    return path


if __name__ == "__main__":
    for make in (lstm, dense, lrus, mamba):
        make(Path(sys.argv[1]))
