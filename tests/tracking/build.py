"""Runs of tiny LRUs, written by the safetensors library."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import safetensors.numpy

MODULI = (0.5, 0.8, 0.9, 0.95, 0.99)


def state(modulus: float, units: int = 4) -> dict[str, np.ndarray]:
    """An LRU whose eigenvalues all have one modulus, at angles of 0.1, 0.2, …"""
    return {
        "nu_log": np.full(units, np.log(-np.log(modulus))),
        "theta_log": np.log(0.1 * np.arange(1, units + 1)),
    }


def write(path: Path, modulus: float, metadata: Mapping[str, str] | None = None) -> Path:
    """A checkpoint file; its folder is made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    safetensors.numpy.save_file(state(modulus), path, metadata=metadata)
    return path


def write_run(folder: Path, moduli: tuple[float, ...] = MODULI) -> list[Path]:
    """``step_0.safetensors``, ``step_100.safetensors``, … of growing memory."""
    return [
        write(folder / f"step_{100 * index}.safetensors", modulus)
        for index, modulus in enumerate(moduli)
    ]
