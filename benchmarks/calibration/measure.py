"""`python -m benchmarks.calibration.measure`: ask both questions of every setup of `problems`.

Results go to networks.json here, a line for each setup, written after every one; what is there is
not measured again. Weights go to weights/, which git ignores, so that ``--quantities`` can take
what rules are made of anew without training.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import NDArray

from benchmarks.calibration.networks import Stack
from benchmarks.calibration.outcomes import FINAL_CHUNKS, kept_rate, outcomes
from benchmarks.calibration.problems import PROBLEMS, Problem
from benchmarks.calibration.quantities import quantities, rounded
from benchmarks.calibration.sweep import CHUNK, RATES, Sweep, Trainer, Values
from benchmarks.calibration.tasks import Task
from memcurse_cli.files import write_whole

HERE = Path(__file__).parent
RESULTS = HERE / "networks.json"
LINEAR_RESULTS = HERE / "results.json"
WEIGHTS = HERE / "weights"
KEPT_STEPS = 500
FRESH_BATCHES = 64
"""So many batches that training never saw are the loss of the trained network."""
FRESH_SEED, KEPT_SEED = 10_000, 20_000

Result = dict[str, Any]


def main() -> None:
    """Run what is missing and write everything down."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--first", type=int, help="stop after so many setups of the list")
    parser.add_argument("--quantities", action="store_true", help="take them anew, train nothing")
    arguments = parser.parse_args()
    known = load(RESULTS)
    for index, problem in enumerate(PROBLEMS[: arguments.first]):
        name, began = key_of(problem), time.perf_counter()
        if (name in known) != arguments.quantities:
            continue
        try:
            if arguments.quantities:
                known[name] |= {"quantities": retake(problem)}
            else:
                known[name] = measure(problem)
        except Exception:  # one of hundreds must not end a run of hours; the next run tries it
            print(f"{index + 1}/{len(PROBLEMS)} failed", name, flush=True)
            traceback.print_exc()
            continue
        save(known, RESULTS)
        jax.clear_caches()
        seconds = time.perf_counter() - began
        print(f"{index + 1}/{len(PROBLEMS)} {seconds:.0f} s", name, flush=True)


def key_of(problem: Problem) -> str:
    """What tells a setup from all others."""
    return json.dumps(asdict(problem))


def load(path: Path) -> dict[str, Result]:
    """The results that are there, by `key_of`."""
    if not path.exists():
        return {}
    document = json.loads(path.read_text(encoding="utf-8"))
    return {json.dumps(one["setup"]): one for one in document["setups"]}


def save(results: Mapping[str, Result], path: Path) -> None:
    """Whole or not at all, whenever a run is stopped."""
    lines = ",\n".join(json.dumps(one, allow_nan=False) for one in results.values())
    write_whole(path, f'{{"setups": [\n{lines}\n]}}\n'.encode())


def measure(problem: Problem) -> Result:
    """Both questions of one setup, and what could have been known before each."""
    task = problem.assignment()
    network = problem.network(task)
    initial = problem.initial(network)
    loss, draw = problem.training(network, task)
    trainer = Trainer(loss, draw, problem.optimizer, problem.rates)
    if problem.linear:
        start = _seen_before(problem)
        learnt = [at for at, end in enumerate(start["outcomes"]) if end == "converges"]
        rate = RATES[learnt[len(learnt) // 2]]
        alone = Trainer(loss, draw, problem.optimizer, [rate])
        ends, _ = alone.run(initial, seed=problem.seed, steps=problem.steps)
        trained = {name: value[0] for name, value in ends.items()}
    else:
        ends, losses = trainer.run(initial, seed=problem.seed, steps=problem.steps)
        found, lowest = outcomes(Sweep(initial, ends, losses, task.silent))
        final = losses[:, -FINAL_CHUNKS:].mean(axis=1)
        survived = np.isfinite(final) & [one != "diverges" for one in found]
        best = int(np.argmin(np.where(survived, final, np.inf)))
        rate = problem.rates[best]
        trained = {name: value[best] for name, value in ends.items()}
        start = {"outcomes": found, "lowest_loss": rounded(lowest), **_summary(losses)}
    fresh = _fresh_loss(loss, draw, trained, problem.seed + FRESH_SEED)
    _, kept = trainer.run(trained, seed=problem.seed + KEPT_SEED, steps=KEPT_STEPS)
    _save_weights(problem, initial, trained)
    return {
        "setup": json.loads(key_of(problem)),
        "rates": [rounded(one) for one in problem.rates],
        "silent_loss": rounded(task.silent),
        "start": start,
        "trained": {
            "rate": rate,
            "loss": rounded(fresh),
            "kept": kept_rate(kept, problem.rates, fresh, task.silent),
            "apart": _apart(problem, network, task, trained, rate, fresh),
            **_summary(kept),
        },
        # What an optimizer changes is read from the rates alone.
        "quantities": {} if problem.variant else _quantities(network, task, initial, trained),
    }


def _apart(
    problem: Problem, network: Stack, task: Task, trained: Values, rate: float, fresh: float
) -> dict[str, float | None] | None:
    """As ``kept``, of a stack whose recurrent tensors alone have the rates, the rest its own."""
    if network.layers == 1:
        return None
    recurrent = network.recurrent(trained)
    loss, draw = problem.training(network, task)
    trainer = Trainer(loss, draw, problem.optimizer, problem.rates, apart=recurrent, rest=rate)
    _, losses = trainer.run(trained, seed=problem.seed + KEPT_SEED, steps=KEPT_STEPS)
    return kept_rate(losses, problem.rates, fresh, task.silent)


def _seen_before(problem: Problem) -> Result:
    """What the linear sweep saw of a student from its start."""
    fields = {"network": problem.kind}
    fields |= {name: getattr(problem, name) for name in ("units", "modulus", "horizon", "seed")}
    for one in json.loads(LINEAR_RESULTS.read_text(encoding="utf-8"))["setups"]:
        if all(one[name] == value for name, value in fields.items()):
            return {name: one[name] for name in ("outcomes", "lowest_loss")}
    raise LookupError("the linear sweep comes first")


def retake(problem: Problem) -> Result:
    """The quantities of saved weights."""
    task = problem.assignment()
    with np.load(_weights(problem)) as saved:
        begin, end = (
            {name.removeprefix(when): saved[name] for name in saved.files if name.startswith(when)}
            for when in ("start/", "trained/")
        )
    return _quantities(problem.network(task), task, begin, end)


def _quantities(network: Stack, task: Task, start: Values, trained: Values) -> Result:
    return {
        when: quantities(network, task, weights)
        for when, weights in (("start", start), ("trained", trained))
    }


def _fresh_loss(
    loss: Callable[..., Array], draw: Callable[[Array], Any], weights: Values, seed: int
) -> float:
    parameters = {name: jnp.asarray(value, jnp.float32) for name, value in weights.items()}
    keys = jax.random.split(jax.random.key(seed), FRESH_BATCHES)
    each = jax.jit(lambda keys: jax.lax.map(lambda key: loss(parameters, draw(key)), keys))
    return float(np.mean(np.asarray(each(keys), np.float64)))


def _summary(losses: NDArray[np.float64]) -> Result:
    """Of every rate the loss at first, half-way, in the end and at its highest; None where it left
    the finite numbers."""
    half = losses.shape[1] // 2
    parts = {
        "first": losses[:, 0],
        "halfway": losses[:, half : half + FINAL_CHUNKS].mean(axis=1),
        "final": losses[:, -FINAL_CHUNKS:].mean(axis=1),
        "last": losses[:, -1],
        "peak": losses.max(axis=1),
    }
    return {
        "steps": losses.shape[1] * CHUNK,
        **{name: [rounded(value) for value in values] for name, values in parts.items()},
    }


def _weights(problem: Problem) -> Path:
    return WEIGHTS / f"{hashlib.sha256(key_of(problem).encode()).hexdigest()[:16]}.npz"


def _save_weights(problem: Problem, start: Values, trained: Values) -> None:
    WEIGHTS.mkdir(exist_ok=True)
    named = {f"start/{name}": value for name, value in start.items()}
    named |= {f"trained/{name}": value for name, value in trained.items()}
    single: dict[str, Any] = {name: value.astype(np.float32) for name, value in named.items()}
    np.savez_compressed(_weights(problem), **single)


if __name__ == "__main__":
    main()
