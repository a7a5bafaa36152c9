"""The run as a whole: what is read, in which order, what is kept and what is said of it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from msgspec.structs import replace
from tracking.build import state, write, write_run

from memcurse_cli.diagnosis.inspection import inspect
from memcurse_cli.errors import UsageError
from memcurse_cli.schema.derived import TrackedStep
from memcurse_cli.schema.figures import Quantiles, Verdict
from memcurse_cli.schema.report import known_rate
from memcurse_cli.tracking import executors
from memcurse_cli.tracking.cache import Cache
from memcurse_cli.tracking.discovery import compile_pattern
from memcurse_cli.tracking.executors import Outcome, Outcomes, Reading, inline
from memcurse_cli.tracking.track import Tracker, sentence

READING = Reading.of()


class Counting:
    """Reads here, and remembers what it read."""

    def __init__(self) -> None:
        self.read: list[str] = []

    def __call__(self, paths: Sequence[str], reading: Reading) -> Outcomes:
        self.read += [Path(path).name for path in paths]
        return inline(paths, reading)


def tracker(given: Path | str, run: Any = inline, **others: Any) -> Tracker:
    return Tracker([str(given)], READING, run=run, **others)


def test_a_checkpoint_that_cannot_be_read_is_an_entry_as_is_an_internal_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = write_run(tmp_path)
    paths[1].write_bytes(paths[1].read_bytes()[:-9])
    paths[3].write_bytes(b"")
    inspect = executors.inspect

    def broken(path: str, **options: object) -> object:
        if "step_200" in path:
            raise ZeroDivisionError("a defect\nof ours")
        return inspect(path, **options)

    monkeypatch.setattr(executors, "inspect", broken)
    tracking = tracker(tmp_path).update()
    assert [one.step for one in tracking.steps] == [0, 100, 200, 300, 400]
    errors = [one.error for one in tracking.steps]
    assert [error is None for error in errors] == [True, False, False, False, True]
    assert all("\n" not in error for error in errors if error)
    assert "internal error, ZeroDivisionError: a defect of ours" in str(errors[2])
    assert tracking.failed == 3


def test_two_of_a_step_one_without_and_workers_of_another_version_are_refused(
    tmp_path: Path,
) -> None:
    write(tmp_path / "step_7.safetensors", 0.5)
    write(tmp_path / "model.safetensors", 0.5)
    with pytest.raises(UsageError, match=r"the step of .*model\.safetensors; .*--step-pattern"):
        tracker(tmp_path / "*").update()
    assert tracker(tmp_path / "*", waiting=True).update().notes[-1] == "1 without a step so far"
    write(tmp_path / "last.safetensors", 0.5, {"step": "7"})
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(UsageError, match=r"last\.safetensors and .*step_7.* both of step 7"):
        tracker(tmp_path / "*").update()
    with pytest.raises(UsageError, match="nothing says the step"):
        tracker(tmp_path / "*", pattern=compile_pattern(r"x(\d+)")).update()

    def old(paths: Sequence[str], reading: Reading) -> Outcomes:
        for path in paths:
            yield path, Outcome(error="x", version="0.0.1")

    with pytest.raises(UsageError, match=r"a worker runs memcurse 0\.0\.1"):
        tracker(tmp_path / "step_7.safetensors", old).update()


def test_notes_say_where_steps_were_told_differently(tmp_path: Path) -> None:
    write(tmp_path / "step_5.safetensors", 0.5, {"step": "50"})
    write(tmp_path / "step_7.safetensors", 0.5)
    tracking = tracker(tmp_path).update()
    assert [(one.step, one.step_source) for one in tracking.steps] == [
        (7, "name"),
        (50, "metadata"),
    ]
    several, renamed = tracking.notes
    assert several == "steps are told in several ways: 1 by name, 1 by metadata"
    assert "is called step 5 and holds step 50" in renamed


def test_only_what_is_new_is_read_again(tmp_path: Path) -> None:
    paths = write_run(tmp_path, (0.5, 0.9))
    run = Counting()
    follower = tracker(tmp_path, run, waiting=True)
    first = follower.update()
    assert follower.update() == first
    assert len(run.read) == 2
    write(paths[1], 0.99, {"longer": "now"})
    write(tmp_path / "step_200.safetensors", 0.9)
    (tmp_path / "step_300.safetensors").write_bytes(b"still being written")
    run.read.clear()
    assert follower.update().failed == 1
    assert sorted(run.read) == [f"step_{step}.safetensors" for step in (100, 200, 300)]
    write(tmp_path / "step_300.safetensors", 0.9)
    run.read.clear()
    assert follower.update().failed == 0
    assert run.read == ["step_300.safetensors"]
    run.read.clear()
    paths[0].unlink()  # by a trainer that keeps its last few
    assert [one.step for one in follower.update().steps] == [0, 100, 200, 300]
    paths[1].rename(tmp_path / "best_step_100.safetensors")
    assert [one.step for one in follower.update().steps] == [0, 100, 200, 300]
    assert run.read == ["best_step_100.safetensors"]
    follower.waiting = False
    assert [one.step for one in follower.update().steps] == [100, 200, 300]


def test_a_cache_spares_reading(tmp_path: Path) -> None:
    write_run(tmp_path / "run")
    cache = Cache(tmp_path / "cache")
    first, second, other = Counting(), Counting(), Counting()
    fresh = tracker(tmp_path / "run", first, cache=cache).update()
    assert len(first.read) == 5
    assert tracker(tmp_path / "run", second, cache=cache).update() == fresh
    assert second.read == []
    changed = Tracker([str(tmp_path / "run")], Reading.of(rho=0.5), run=other, cache=cache)
    assert changed.update() != fresh
    assert len(other.read) == 5


def test_a_checkpoint_that_changes_while_it_is_read_is_not_kept(tmp_path: Path) -> None:
    path = write(tmp_path / "run" / "step_1.safetensors", 0.5)
    cache = Cache(tmp_path / "cache")

    def racing(paths: Sequence[str], reading: Reading) -> Outcomes:
        for one, outcome in inline(paths, reading):
            write(path, 0.9, {"now": "longer"})
            yield one, outcome

    follower = tracker(path, racing, cache=cache, waiting=True)
    # Its step may be that of one version and its figures those of another.
    assert "changed while it was read" in str(follower.update().steps[0].error)
    follower.run = inline
    newer = follower.update().steps[0].report
    assert newer.memory == pytest.approx(-1 / np.log(0.9))
    write(path, 0.5)
    assert tracker(path, cache=cache).update().steps[0].report != newer


MADE = inspect(state(0.9), horizon=120)


def step(
    number: int,
    verdict: Verdict = "ok",
    *,
    memory: float | None = 20.0,
    shortest: float = 1.0,
    unstable: int = 0,
    usable: float = 0.01,
    horizon: str = "assumed",
    gates_alone: bool = False,
) -> TrackedStep:
    """A checkpoint of one layer."""
    (layer,) = MADE.layers
    spectrum = replace(
        layer.eigenvalues,
        unstable=unstable,
        time_constant=Quantiles(shortest, 5.0, 10.0, 15.0, memory, unstable),
    )
    layer = replace(layer, memory=memory, hidden_feedback=gates_alone, eigenvalues=spectrum)
    report = replace(
        MADE,
        verdict=verdict,
        memory=memory,
        usable_rate=known_rate(usable, "stall"),
        input=replace(MADE.input, horizon_source=horizon),
        layers=(layer,),
    )
    return TrackedStep(number, "name", "path", report)


def test_what_rose_and_when_it_became_cursed() -> None:
    steps = [
        TrackedStep(0, "name", "path", None, "damaged"),
        step(10),
        step(3000, "cursed", memory=100.0),
        step(5000, "cursed", memory=999.0, usable=1e-3),
        TrackedStep(6000, "name", "path", None, "damaged"),
    ]
    assert sentence(steps) == (
        "the memory rose from 20 to 1000 steps between step 10 and 5000; the usable rate fell from "
        "0.01 to 0.001, yours is 0.001; became cursed at step 3000"
    )


@pytest.mark.parametrize(
    ("name", "values", "words"),
    [
        ("unstable", (0, 1, 1), "1 eigenvalue never fades, the first from step 1 on"),
        ("unstable", (1, 0, 3), "3 eigenvalues never fade, the first from step 2 on"),
        ("verdict", ("ok", "cursed", "ok"), "became cursed at step 1, ok at step 2"),
        ("verdict", ("ok", "watch") * 4, "verdict changed 7 times, last to watch at step 7"),
        ("verdict", ("not_judged",) * 2, "not judged throughout"),
        ("memory", (5.0, None), "the memory went from 5 steps to one that never ends"),
        ("memory", (5.0, 5.1), "the memory stayed at 5.1 steps"),
    ],
)
def test_turns_of_a_run(name: str, values: tuple[Any, ...], words: str) -> None:
    assert words in sentence([step(at, **{name: value}) for at, value in enumerate(values)])


def test_a_plateau_is_said_from_the_last_checkpoint_back() -> None:
    moved = [step(0, memory=9.0), step(400, memory=1.73), step(1200, memory=1.75)]
    end = [step(2000, memory=1.74, horizon="option")]
    said = sentence(moved + end)
    assert said.startswith("the memory fell from 9 to 1.7 steps")
    assert said.endswith("the spectrum has not moved in 1600 steps; it remembers 1.7 of 120")
    whole = sentence([*moved[1:], step(2000, memory=1.74, gates_alone=True)])
    assert "between" not in whole
    assert whole.endswith("not moved in 1600 steps; its gates alone keep 1.7 steps")
    assert "has not moved" not in sentence(moved[1:])  # two tell nothing
    # Nor where the longest memory stands still and another quantile does not.
    other = step(1200, memory=1.74, shortest=1.1)
    assert "has not moved" not in sentence([moved[1], other, *end])


def test_a_report_is_kept_but_for_where_it_lies(tmp_path: Path) -> None:
    tensors = {f"{layer}.{name}": value for layer in "ab" for name, value in state(0.9).items()}
    tensors["b.nu_log"] = np.full(4, np.nan)
    path = tmp_path / "step_1.safetensors"
    safetensors.numpy.save_file(tensors, path)
    (found,) = tracker(path).update().steps
    report = inspect(path)
    assert found.report == replace(
        report,
        checkpoint=replace(report.checkpoint, path=""),
        actions=(),
        skipped=found.report.skipped,
    )
    (skipped,) = found.report.skipped
    assert skipped.name == "b"
    assert str(tmp_path) not in skipped.reason
    copied = path.rename(tmp_path / "step_7.safetensors")
    assert tracker(copied).update().steps[0].report == found.report
