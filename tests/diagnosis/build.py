"""What the tests of this folder ask of a report, and a layer whose every stored number is known."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from memcurse_cli import inspect

SAMPLES = Path(__file__).resolve().parents[2] / "sample_checkpoints"


def only(state: dict[str, Any] | Path, **options: Any) -> Any:
    """The report on the one layer of a checkpoint."""
    (layer,) = inspect(state, **options).layers
    return layer


def finding(layer: Any, code: str) -> Any:
    """The one finding of a code."""
    (found,) = (one for one in layer.findings if one.code == code)
    return found


def codes(layer: Any) -> set[str]:
    return {one.code for one in layer.findings}


def drawn_lru(units: int, decays: tuple[float, float] = (0.01, 0.5)) -> dict[str, np.ndarray]:
    """An LRU with one input and one output, of decays within limits and angles from 0.1 to 2.5."""
    random = np.random.default_rng(8)
    return {
        "nu_log": np.log(random.uniform(*decays, units)),
        "theta_log": np.log(random.uniform(0.1, 2.5, units)),
        "gamma_log": random.uniform(-2, 0, units),
        **{name: random.normal(size=(units, 1)) for name in ("B_re", "B_im")},
        **{name: random.normal(size=(1, units)) for name in ("C_re", "C_im")},
        "D": np.ones(1),
    }
