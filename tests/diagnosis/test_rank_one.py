"""What is said of transitions that are a diagonal and a rank-one term."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from diagnosis.build import finding

from memcurse_cli import inspect

SHAPES = {"q_proj": (6, 8), "k_proj": (6, 8), "v_proj": (8, 8), "b_proj": (2, 8), "o_norm": (4,)}
DELTA_NET = {f"attn.{name}.weight": np.ones(shape) for name, shape in SHAPES.items()}


@pytest.mark.parametrize(
    ("folder", "lowest"),
    [("delta_net", "0"), ("rwkv7", "-0.455")],
)
def test_the_term_and_its_bound_are_told(zoo: Path, folder: str, lowest: str) -> None:
    for layer in inspect(zoo / "fla" / folder).layers:
        told = finding(layer, "MC504")
        assert told.severity == "info"
        assert f"can come down to {lowest}," in told.message


def test_a_write_strength_of_two_reaches_minus_one() -> None:
    (layer,) = inspect(DELTA_NET, assume={"negative_eigenvalues": "true"}).layers
    assert "can come down to -1," in finding(layer, "MC504").message


@pytest.mark.parametrize("horizon", [None, 100])
def test_an_eigenvalue_of_one_by_design_is_no_fault(horizon: int | None) -> None:
    report = inspect(DELTA_NET, horizon=horizon)
    (layer,) = report.layers
    assert report.verdict == "ok"
    assert layer.eigenvalues.unstable == 2
    told = finding(layer, "MC101")
    assert told.severity == "info"
    assert "by design" in told.message
    assert "parametrisation" not in told.advice
    assert ("--horizon" in told.advice) is (horizon is None)
