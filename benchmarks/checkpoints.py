"""The checkpoints that the benchmarks read: `python -m benchmarks.checkpoints FOLDER`."""

from __future__ import annotations

import json
import struct
import sys
from pathlib import Path

import ml_dtypes
import numpy as np
from safetensors.numpy import save_file

LAYERS, INNER, MODEL, STATE, RANK, VOCABULARY = 48, 4096, 2048, 16, 128, 50280


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


def dense(folder: Path, size: int = 1024) -> Path:
    """A stable dense linear recurrence."""
    path = folder / "dense.safetensors"
    matrix = np.random.default_rng(0).normal(size=(size, size)) * 0.95 * size**-0.5
    save_file({"weight_hh_l0": matrix, "weight_ih_l0": np.eye(size)}, path)
    return path


def mamba(folder: Path) -> Path:
    """A Mamba-1 of 1.4 billion parameters in bfloat16, as Hugging Face names it.

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
    for make in (lstm, dense, mamba):
        make(Path(sys.argv[1]))
