"""What is said of transitions that are a diagonal and a rank-one term."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from diagnosis.build import finding

from memcurse_cli import inspect

SHAPES = {"q_proj": (6, 8), "k_proj": (6, 8), "v_proj": (8, 8), "b_proj": (2, 8), "o_norm": (4,)}
DELTA_NET = {f"attn.{name}.weight": np.ones(shape) for name, shape in SHAPES.items()}


def test_the_term_and_its_bound_are_told(zoo: Path) -> None:
    twice = inspect(DELTA_NET, assume={"negative_eigenvalues": "true"})
    reports = (twice, *(inspect(zoo / "fla" / name) for name in ("delta_net", "rwkv7")))
    for report, lowest in zip(reports, ("-1", "0", "-0.455"), strict=True):
        for layer in report.layers:
            told = finding(layer, "MC504")
            assert told.severity == "info"
            assert told.message.endswith(f"can come down to {lowest}")


@pytest.mark.parametrize("horizon", [math.inf, 100])
def test_an_eigenvalue_of_one_by_design_is_no_fault(horizon: float) -> None:
    report = inspect(DELTA_NET, horizon=horizon)
    (layer,) = report.layers
    assert (report.verdict, report.memory) == ("not_judged", None)
    assert "inputs move its gates" in layer.not_judged
    assert layer.eigenvalues.unstable == 2
    told = finding(layer, "MC101")
    assert told.severity == "info"
    assert "by design" in told.message
    assert told.advice == ""
