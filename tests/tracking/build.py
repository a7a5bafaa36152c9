"""Runs of tiny LRUs, written by the safetensors library."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy

from memcurse_cli.schema.json_codec import encode
from memcurse_cli.tracking.executors import Outcome

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
    safetensors.numpy.save_file(state(modulus), path, metadata=metadata)  # type: ignore[arg-type]  # any mapping
    return path


def write_run(folder: Path, moduli: tuple[float, ...] = MODULI) -> list[Path]:
    """``step_0.safetensors``, ``step_100.safetensors``, … of growing memory."""
    return [
        write(folder / f"step_{100 * index}.safetensors", modulus)
        for index, modulus in enumerate(moduli)
    ]


def assert_alike(found: Mapping[str, Outcome], wanted: Mapping[str, Outcome]) -> None:
    """The same but for what another number of threads rounds otherwise."""
    assert set(found) == set(wanted)
    for path, outcome in wanted.items():
        pairs = zip(
            _leaves(encode(found[path].report)), _leaves(encode(outcome.report)), strict=True
        )
        assert found[path].error == outcome.error
        for one, other in pairs:
            close = pytest.approx(other, rel=1e-9) if isinstance(other, float) else other
            assert one == close


def _leaves(node: object) -> Iterator[object]:
    if isinstance(node, dict):
        node = list(node.items())
    if not isinstance(node, list | tuple):
        yield node
        return
    for part in node:
        yield from _leaves(part)
