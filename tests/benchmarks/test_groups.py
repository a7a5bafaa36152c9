"""What groups are worth in training: the page says what was measured, of the setups as fixed."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.calibration.measure import key_of, load
from benchmarks.calibration.problems import Problem
from benchmarks.calibration.sweep import CHUNK, Trainer
from benchmarks.groups import PAGE, RATES, RESULTS, SETUPS, TRIALS, Trial, table
from memcurse_cli import inspect

KNOWN = load(RESULTS)


@pytest.mark.parametrize("trial", TRIALS, ids=lambda one: one.name)
def test_the_page_has_the_table_of_every_setup(trial: Trial) -> None:
    assert table(trial, KNOWN) in PAGE.read_text(encoding="utf-8")


@pytest.mark.parametrize("problem", SETUPS[:5], ids=lambda one: one.kind)
def test_the_groups_that_were_trained_are_those_of_the_report(problem: Problem) -> None:
    network = problem.network(problem.assignment())
    report = inspect(problem.initial(network), horizon=problem.horizon, learning_rate=RATES[-1])
    *groups, _ = report.groups()
    found = {name: one["lr"] for one in groups for name in one["params"]}
    assert KNOWN[key_of(problem)]["usable"] == pytest.approx(found, rel=1e-4)


def test_a_tensor_has_no_rate_above_its_most() -> None:
    trainer = Trainer(
        lambda parameters, _: sum(one.sum() for one in parameters.values()),
        lambda _: 0,
        rates=[1e-3, 1e-1],
        most={"slow": 1e-2},
    )
    ends, _ = trainer.run({name: np.zeros(1) for name in ("slow", "rest")}, seed=0, steps=CHUNK)
    assert ends["slow"][:, 0] == pytest.approx([-CHUNK * 1e-3, -CHUNK * 1e-2], rel=1e-3)
    assert ends["rest"][:, 0] == pytest.approx([-CHUNK * 1e-3, -CHUNK * 1e-1], rel=1e-3)
