"""What every callback does: the scalars of a report, and a warning when the verdict gets worse."""

from __future__ import annotations

import logging
import math
from typing import Any

import numpy as np
import pytest
import torch

from memcurse_cli import MemcurseError, inspect
from memcurse_cli.integrations import Monitor
from memcurse_cli.schema.report import scalars


def complex_diagonal(modulus: float) -> dict[str, Any]:
    return {"A_re": np.array([modulus]), "A_im": np.zeros(1), "B_re": np.ones((1, 1))}


def test_scalars_are_the_reports_figures_without_what_diverges() -> None:
    torch.manual_seed(0)
    report = inspect(torch.nn.GRU(2, 4).state_dict(), horizon=20)
    found = scalars(report)
    (layer,) = report.layers
    assert found["memcurse/verdict"] == 0
    assert found["memcurse/time_constant"] == layer.eigenvalues.time_constant.max
    bias = f"memcurse/{layer.name}/step_effect/{layer.parameters[0].name}"
    assert found[bias] == layer.parameters[0].step_effect
    unstable = scalars(inspect(complex_diagonal(1.5)), prefix="")
    assert (unstable["unstable"], unstable["verdict"]) == (1, 2)
    assert not {"time_constant", "step_effect"} & set(unstable)
    assert all(type(number) is float and math.isfinite(number) for number in found.values())


def test_a_verdict_that_gets_worse_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    monitor = Monitor(2, "", {"horizon": 1000})
    with caplog.at_level(logging.WARNING, "memcurse"):
        for step, modulus in enumerate((0.5, 0.999, 1.01, 1.01)):
            monitor.measure(complex_diagonal(modulus), 2 * step, learning_rate=2e-3)
    assert [record.message.split(". ")[0] for record in caplog.records] == [
        "step 2: watch",
        "step 4: cursed",
    ]
    assert [step for step in range(5) if monitor.due(step)] == [0, 2, 4]
    assert not monitor.due(6)


def test_the_optimizers_rate_is_used_unless_one_is_given() -> None:
    weights = complex_diagonal(0.9)
    slow, fast = (
        Monitor(1, "", {"horizon": 9}).measure(weights, 1, learning_rate=rate)["step_effect"]
        for rate in (1e-4, 1e-2)
    )
    assert fast == pytest.approx(100 * slow)
    fixed = Monitor(1, "", {"horizon": 9, "learning_rate": 1e-4})
    assert fixed.measure(weights, 1, learning_rate=1e-2)["step_effect"] == pytest.approx(slow)


def test_a_network_without_a_recurrence_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    monitor = Monitor(1, "", {})
    with caplog.at_level(logging.WARNING, "memcurse"):
        assert monitor.measure({"weight": np.zeros((3, 3))}, 1, 1e-3) == {}
    assert len(caplog.records) == 1
    assert not monitor.due(2)
    with pytest.raises(MemcurseError, match="every"):
        Monitor(0, "", {})
