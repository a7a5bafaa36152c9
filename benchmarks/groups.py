"""`python -m benchmarks.groups`: what the groups of `memcurse groups` are worth in training.

Every setup is trained at each of `RATES`, once with one rate for all parameters and once with the
groups that the report gives for its initial weights, where the rate is that of the rest. Results
go to groups.json here, and the table to docs/learning-rates.md; what is there is not trained again
(forty minutes on one core).
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.calibration.measure import Result, key_of, load, save
from benchmarks.calibration.outcomes import EXPLOSION, FINAL_CHUNKS, LEARNT, NEAR_BEST
from benchmarks.calibration.page import DOCS, markdown_table, put
from benchmarks.calibration.problems import DEEP, ORTHOGONAL, TAUGHT, Problem
from benchmarks.calibration.quantities import rounded
from benchmarks.calibration.sweep import RATES as SWEPT
from benchmarks.calibration.sweep import Trainer
from memcurse_cli import inspect
from memcurse_cli.reports.numbers import number, setting, span

RESULTS = Path(__file__).with_name("groups.json")
PAGE = DOCS / "learning-rates.md"
USERS = (3e-3, 3e-2)
"""Rates that a user may have chosen; no result has a part in this choice."""
RATES = tuple(sorted((*SWEPT, *USERS)))
STEPS = 3000
SHARE = 0.8
"""The claim is of this share of setups: groups end within `NEAR_BEST` of the best single rate's
loss, or below `LEARNT`, which is how the calibration counts what converges."""

SETUPS = (
    Problem("LRU", TAUGHT, 32, 300, modulus=0.99, seed=700),
    Problem("LRU", TAUGHT, 64, 300, modulus=0.999, seed=701),
    Problem("complex diagonal", TAUGHT, 32, 300, modulus=0.99, seed=702),
    Problem("complex diagonal", TAUGHT, 64, 200, modulus=0.999, seed=703),
    Problem("dense", TAUGHT, 32, 200, modulus=0.9, seed=704),
    Problem("dense", TAUGHT, 64, 300, modulus=0.99, seed=705),
    Problem("S4D", TAUGHT, 32, 200, modulus=0.97, seed=706),
    Problem("S4D", TAUGHT, 64, 300, modulus=0.999, seed=707),
    Problem("tanh", TAUGHT, 24, 150, ORTHOGONAL, modulus=0.95, seed=708),
    Problem("tanh", "copying", 48, 40, ORTHOGONAL, seed=709),
    Problem("GRU", "adding", 32, 100, seed=710),
    Problem(
        "LRU stack", "adding", 32, 200, modulus=0.99, layers=2, block=("norm", "skip"), seed=711
    ),
)
"""Fixed before any of them was trained; none is among those that the usable rate was fitted to."""


class Trial(NamedTuple):
    """Setups that were fixed together, and what they are trained with."""

    name: str  # of its table
    setups: tuple[Problem, ...]
    rates: tuple[float, ...]  # of one rate for all parameters
    grouped: tuple[float, ...]  # of the rest beside the groups
    users: tuple[float, ...]  # those of both that the table has


def _again(setups: Sequence[Problem], seed: int) -> tuple[Problem, ...]:
    """Setups under a schedule, with teachers and starts of their own."""
    return tuple(replace(one, seed=one.seed + seed, variant="schedule") for one in setups)


USUAL = 1e-2
"""The best single rate of half of the scheduled setups, and the user's in the last trial."""
DEEPER = replace(SETUPS[-1], block=DEEP)
"""Without its gate the stack learnt at no rate."""
TRIALS = (
    Trial("groups", SETUPS, RATES, RATES, USERS),
    Trial("groups schedule", _again(SETUPS, 100), RATES, USERS, USERS),
    Trial("groups usual", _again((*SETUPS[:-1], DEEPER), 300), SWEPT, (USUAL,), (USUAL,)),
)
"""Each was fixed after the one before had ended, and before any of its own was trained."""


def measure(problem: Problem, trial: Trial) -> Result:
    """The final losses of one setup at every rate, None where a run left the finite numbers.

    A final loss is the median of the last `FINAL_CHUNKS` means over 50 batches, which no run has
    seen before.
    """
    task = problem.assignment()
    network = problem.network(task)
    initial = problem.initial(network)
    report = inspect(initial, horizon=task.horizon, learning_rate=RATES[-1])
    *groups, _ = report.groups()
    usable = {name: group["lr"] for group in groups for name in group["params"]}
    loss, draw = problem.training(network, task)

    def final(rates: tuple[float, ...], **how: Any) -> list[float | None]:
        _, losses = Trainer(loss, draw, problem.optimizer, rates, **how).run(
            initial, seed=problem.seed, steps=STEPS
        )
        return [rounded(float(one)) for one in np.median(losses[:, -FINAL_CHUNKS:], axis=1)]

    single = final(trial.rates)
    # Below every usable rate both are the same run.
    apart = tuple(rate for rate in trial.grouped if rate > min(usable.values()))
    same = dict(zip(trial.rates, single, strict=True))
    grouped = [same[rate] for rate in trial.grouped if rate not in apart]
    grouped += final(apart, most=usable) if apart else []
    return {
        "usable": {name: rounded(rate) for name, rate in usable.items()},
        "silent": rounded(task.silent),
        "single": single,
        "groups": grouped,
    }


ARMS = {"one rate": "single", "groups": "groups"}


def at(one: Result, arm: str, trial: Trial, rate: float | None = None) -> float:
    """A final loss, inf where the run diverged; the best one of the arm without a rate."""
    losses = [np.inf if loss is None else loss for loss in one[ARMS[arm]]]
    exploded = [loss > EXPLOSION * one["silent"] for loss in losses]
    ended = np.where(exploded, np.inf, losses)
    rates = trial.rates if arm == "one rate" else trial.grouped
    return float(ended.min() if rate is None else ended[rates.index(rate)])


def table(trial: Trial, known: Mapping[str, Result]) -> str:
    """Every setup, final losses as multiples of that of the best single rate, and the counts."""
    results = [known[key_of(problem)] for problem in trial.setups]
    rows: list[list[str]] = []
    cases: list[tuple[str, float | None]] = [(arm, rate) for rate in trial.users for arm in ARMS]
    if trial.grouped == trial.rates:
        cases = [("groups", None), *cases]
    for one in results:
        setup, best = one["setup"], at(one, "one rate", trial)
        ends = [at(one, arm, trial, rate) for arm, rate in cases]
        usable = span([*one["usable"].values()], 2)
        best_rate = number(trial.rates[one["single"].index(best)], 2)
        cells = [
            f"{setup['kind']}, {setup['task']}, {setup['units']} units, T = {setup['horizon']}"
        ]
        cells += [usable, best_rate, number(best / one["silent"], 2)]
        cells += [_cell(end / best, end <= LEARNT * one["silent"]) for end in ends]
        rows.append(cells)
    columns = ["network", "usable rate", "best rate", "its loss"]
    columns += [
        f"{arm}, {'best rate of the rest' if rate is None else setting(rate)}"
        for arm, rate in cases
    ]
    counted = [["setups that converge"], ["setups within a factor 2"]]
    for arm, rate in [("one rate", None), *cases]:
        ends = [at(one, arm, trial, rate) for one in results]
        bests = [at(one, "one rate", trial) for one in results]
        near = [end <= NEAR_BEST * best for end, best in zip(ends, bests, strict=True)]
        learnt = [end <= LEARNT * one["silent"] for end, one in zip(ends, results, strict=True)]
        converged = [one or other for one, other in zip(near, learnt, strict=True)]
        for row, which in zip(counted, (converged, near), strict=True):
            told = f"{sum(which)} of {len(results)}"
            row.append(f"**{told}**" if np.mean(which) >= SHARE else told)
    heads = ["", "one rate, the best", *columns[4:]]
    return f"{markdown_table(columns, rows)}\n\n{markdown_table(heads, counted)}\n"


def _cell(ratio: float, learnt: bool) -> str:
    if not np.isfinite(ratio):
        return "diverges"
    return f"**{number(ratio, 2)}**" if learnt or ratio <= NEAR_BEST else number(ratio, 2)


def main() -> None:
    """Train what is missing and write everything down."""
    known = load(RESULTS)
    for trial in TRIALS:
        for problem in trial.setups:
            name, began = key_of(problem), time.perf_counter()
            if name not in known:
                known[name] = {"setup": json.loads(name), **measure(problem, trial)}
                save(known, RESULTS)
                print(f"{time.perf_counter() - began:.0f} s", name, flush=True)
    put({marks(trial): table(trial, known) for trial in TRIALS}, PAGE)


def marks(trial: Trial) -> tuple[str, str]:
    """What stands around its table."""
    return f"<!-- {trial.name} -->\n", f"<!-- /{trial.name} -->"


if __name__ == "__main__":
    main()
