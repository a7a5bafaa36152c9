"""What every callback does: the scalars of a report, and a warning when the verdict gets worse."""

from __future__ import annotations

import logging
import math
from typing import Any

import numpy as np
import pytest

from memcurse_cli import MemcurseError, inspect
from memcurse_cli.integrations import Monitor


def dense(modulus: float) -> dict[str, Any]:
    return {"A": modulus * np.eye(2), "B": np.eye(2), "C": np.eye(2)}


def test_scalars_are_the_reports_figures_without_what_diverges() -> None:
    report = inspect(dense(0.99), horizon=200, learning_rate=1e-3)
    found = report.scalars()
    (layer,) = report.layers
    assert found["memcurse/verdict"] == 0
    assert found["memcurse/memory"] == report.memory
    assert found["memcurse/usable_rate"] == report.usable_rate.rate
    assert found["memcurse/learning_rate"] == 1e-3
    assert found[f"memcurse/{layer.name}/step_effect/A"] == layer.parameters[0].step_effect
    assert found[f"memcurse/{layer.name}/diagonality"] == layer.hessian.diagonality
    unstable = inspect(dense(1.5), horizon=np.inf).scalars("")
    assert (unstable["unstable"], unstable["verdict"]) == (2, 1)
    assert not {"memory", "step_effect"} & set(unstable)
    assert all(type(number) is float and math.isfinite(number) for number in found.values())


def test_a_verdict_that_gets_worse_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    monitor = Monitor(2, prefix="", horizon=1000)
    with caplog.at_level(logging.WARNING, "memcurse"):
        for step, rate in enumerate((2e-4, 2e-3, 2e-2, 2e-2)):
            monitor.measure(dense(0.999), 2 * step, learning_rate=rate)
    assert [record.message.split(". ")[0] for record in caplog.records] == [
        "step 2: watch",
        "step 4: cursed",
    ]
    assert caplog.records[1].message.endswith(monitor.report.sentence)
    assert [step for step in range(5) if monitor.due(step)] == [0, 2, 4]
    assert not monitor.due(6)


def test_what_was_not_judged_or_is_not_recurrent_is_told_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    gates = {f"linear_{gate}.weight": np.ones((4, 2)) for gate in "zh"}
    gates |= {f"linear_{gate}.bias": np.zeros(4) for gate in "zh"}
    monitor, still = Monitor(1, prefix=""), Monitor(1, prefix="")
    with caplog.at_level(logging.INFO, "memcurse"):
        for step in range(3):
            monitor.measure(gates, step, learning_rate=1e-3)
        assert still.measure({"weight": np.zeros((3, 3))}, 1, 1e-3) == {}
    assert monitor.report.verdict == "not_judged"
    judged, recurrent = caplog.records
    assert (judged.levelname, judged.message[:20]) == ("INFO", "step 0: not judged. ")
    assert recurrent.levelname == "WARNING"
    assert not still.due(2)
    with pytest.raises(MemcurseError, match="every"):
        Monitor(0, prefix="")


def test_the_optimizers_rate_is_used_unless_one_is_given() -> None:
    weights = dense(0.9)
    slow, fast = (
        Monitor(1, prefix="", horizon=9).measure(weights, 1, learning_rate=rate)["step_effect"]
        for rate in (1e-4, 1e-2)
    )
    assert fast == pytest.approx(100 * slow)
    fixed = Monitor(1, prefix="", horizon=9, learning_rate=1e-4)
    assert fixed.measure(weights, 1, learning_rate=1e-2)["step_effect"] == pytest.approx(slow)
