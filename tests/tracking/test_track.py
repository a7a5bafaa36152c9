"""The run as a whole: what is read, in which order, what is kept and what is said of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from end_to_end.command import SAMPLES
from tracking.build import state, write, write_run

from memcurse_cli.commands.track import open_cache
from memcurse_cli.diagnosis.inspection import inspect
from memcurse_cli.errors import UsageError
from memcurse_cli.schema.derived import Snapshot, Summary, TrackedStep, WorstGroup
from memcurse_cli.schema.figures import Verdict
from memcurse_cli.schema.report import InputAssumption
from memcurse_cli.tracking import work
from memcurse_cli.tracking.discovery import compile_pattern
from memcurse_cli.tracking.executors import Outcomes, inline
from memcurse_cli.tracking.track import Tracker, modulus_text, sentence
from memcurse_cli.tracking.work import Outcome, Reading, take_snapshot

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


def test_a_checkpoint_that_cannot_be_read_is_an_entry(tmp_path: Path) -> None:
    paths = write_run(tmp_path)
    paths[1].write_bytes(paths[1].read_bytes()[:-9])
    paths[3].write_bytes(b"")
    tracking = tracker(tmp_path).update()
    assert [one.step for one in tracking.steps] == [0, 100, 200, 300, 400]
    errors = [one.error for one in tracking.steps]
    assert [error is None for error in errors] == [True, False, True, False, True]
    assert all("\n" not in error for error in errors if error)
    assert tracking.failed == 2


def test_an_internal_error_costs_one_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_run(tmp_path)
    inspect = work.inspect

    def broken(path: str, **options: object) -> object:
        if "step_200" in path:
            raise ZeroDivisionError("a defect\nof ours")
        return inspect(path, **options)  # type: ignore[arg-type]  # passed through

    monkeypatch.setattr(work, "inspect", broken)
    tracking = tracker(tmp_path).update()
    assert tracking.failed == 1
    assert "internal error, ZeroDivisionError: a defect of ours" in str(tracking.steps[2].error)


def test_two_of_a_step_and_one_without_are_refused_by_name(tmp_path: Path) -> None:
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
    cache = open_cache(tmp_path / "cache")
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
    cache = open_cache(tmp_path / "cache")

    def racing(paths: Sequence[str], reading: Reading) -> Outcomes:
        for one, outcome in inline(paths, reading):
            write(path, 0.9, {"now": "longer"})
            yield one, outcome

    follower = tracker(path, racing, cache=cache, waiting=True)
    # Its step may be that of one version and its figures those of another.
    assert "changed while it was read" in str(follower.update().steps[0].error)
    follower.run = inline
    newer = follower.update().steps[0].snapshot
    assert newer.summary.modulus == pytest.approx(0.9)
    write(path, 0.5)
    assert tracker(path, cache=cache).update().steps[0].snapshot != newer


def test_a_worker_of_another_version_is_refused(tmp_path: Path) -> None:
    write_run(tmp_path)

    def old(paths: Sequence[str], reading: Reading) -> Outcomes:
        for path in paths:
            yield path, Outcome(error="x", version="0.0.1")

    with pytest.raises(UsageError, match=r"a worker runs memcurse 0\.0\.1"):
        tracker(tmp_path, old).update()


def test_layers_that_could_not_be_read_are_told_without_the_path(tmp_path: Path) -> None:
    tensors = {f"{layer}.{name}": value for layer in "ab" for name, value in state(0.9).items()}
    tensors["b.nu_log"] = np.full(4, np.nan)
    path = tmp_path / "step_1.safetensors"
    safetensors.numpy.save_file(tensors, path)
    (skipped,) = tracker(path).update().steps[0].snapshot.skipped
    assert skipped.name == "b"
    assert str(tmp_path) not in skipped.reason


SUMMARY = Summary(0, 0.95, 5.0, 20.0, WorstGroup("layer", "nu", 100.0, 0.01), 0.01)


def step(number: int, verdict: Verdict = "ok", kappa: float | None = 100.0, **others: Any) -> Any:
    summary = replace(SUMMARY, worst=WorstGroup("layer", "nu", kappa, 0.01), **others)
    assumed = InputAssumption(((1.0, 0.0),), None, None, 1e-3)
    return TrackedStep(number, "name", "path", Snapshot(verdict, "", assumed, summary, ()))


def test_what_rose_and_when_it_became_cursed() -> None:
    steps = [
        TrackedStep(0, "name", "path", None, "damaged"),
        step(10),
        step(3000, "cursed", modulus=0.99),
        step(5000, "cursed", modulus=0.999, kappa=4e4, usable_rate=0.001),
        TrackedStep(6000, "name", "path", None, "damaged"),
    ]
    assert sentence(steps) == (
        "max |λ| rose from 0.950 to 0.9990 between step 10 and 5000; the worst κ rose from 100 to "
        "40000; the usable rate fell from 0.01 to 0.001; became cursed at step 3000"
    )


@pytest.mark.parametrize(
    ("name", "values", "words"),
    [
        ("unstable", (0, 1, 1), "1 eigenvalue has |λ| ≥ 1, the first from step 1 on"),
        ("unstable", (0, 1, 3), "3 eigenvalues have |λ| ≥ 1, the first from step 1 on"),
        ("unstable", (0, 2, 0), "eigenvalues left the unit disk at step 1 and came back"),
        ("unstable", (4, 2, 1), "eigenvalues with |λ| ≥ 1: 4 at the start, 1 at the end"),
        ("verdict", ("ok", "cursed", "ok"), "became cursed at step 1, ok at step 2"),
        ("verdict", ("ok", "watch") * 4, "verdict changed 7 times, last to watch at step 7"),
        ("kappa", (100.0, None), "the worst relative sensitivity came to diverge"),
    ],
)
def test_turns_of_a_run(name: str, values: tuple[Any, ...], words: str) -> None:
    found = sentence([step(at, **{name: value}) for at, value in enumerate(values)])
    assert words in found
    assert "rate" not in sentence([step(1, usable_rate=None), step(2)])


def test_a_modulus_shows_its_distance_from_one() -> None:
    moduli = (0.0, 0.5, 0.95, 0.9987, 0.99999, 1.0012, 1.0, 2.5)
    texts = ["0", "0.5", "0.950", "0.9987", "0.999990", "1.0012", "1", "2.5"]
    assert [modulus_text(one) for one in moduli] == texts


@pytest.mark.parametrize("name", ["lru", "complex_diagonal_rnn", "dense_linear_rnn", "gru"])
def test_figures_are_the_reports(name: str) -> None:
    report = inspect(SAMPLES / f"{name}.safetensors", values=True)
    snapshot = take_snapshot(report)
    assert (snapshot.verdict, snapshot.sentence) == (report.verdict, report.sentence)
    ((kept, layer),) = zip(snapshot.layers, report.layers, strict=True)
    for spread, known in (
        (kept.modulus, layer.eigenvalues.modulus),
        (kept.time_constant, layer.eigenvalues.time_constant),
    ):
        for level in ("min", "p50", "p90", "p99", "max", "divergent"):
            assert getattr(spread, level) == getattr(known, level)
    assert kept.second_moment == layer.state.second_moment
    assert (kept.hessian, kept.usable_rate) == (layer.hessian, layer.usable_rate)
    assert kept.findings == tuple(one.code for one in layer.findings)
    for group, parameter in zip(kept.groups, layer.parameters, strict=True):
        assert group.relative_sensitivity == parameter.relative_sensitivity
        assert group.step_effect == parameter.step_effect
    # Of what the report has no figure, by numpy.
    modulus = np.abs([complex(*value) for value in layer.eigenvalues.values])
    assert kept.modulus.p10 == pytest.approx(np.quantile(modulus, 0.1), rel=1e-13)
    stable = modulus < 1
    if kept.unstable == 0:
        low = np.quantile(-1 / np.log(modulus[stable]), 0.1)
        assert kept.time_constant.p10 == pytest.approx(low, rel=1e-11)
    time_constants = np.full(modulus.shape, np.inf)
    time_constants[stable] = -1 / np.log(modulus[stable])
    median = snapshot.summary.time_constant_median
    assert median == pytest.approx(np.median(time_constants), rel=1e-11)


def test_the_worst_group_decides_the_verdict() -> None:
    def worst(given: Path | dict[str, np.ndarray]) -> WorstGroup:
        return take_snapshot(inspect(given, values=True)).summary.worst

    dense = worst(SAMPLES / "dense_linear_rnn.safetensors")
    (layer,) = inspect(SAMPLES / "dense_linear_rnn.safetensors").layers
    assert dense.relative_sensitivity == layer.dense.relative_sensitivity
    assert dense.step_effect == pytest.approx(1e-3 * dense.relative_sensitivity**0.5)
    lru = worst(SAMPLES / "lru.safetensors")
    assert (lru.layer, lru.name) == ("lru", "theta_log")
    unit = {name: np.ones((1, 1)) for name in ("B_re", "B_im", "C_re", "C_im")}
    endless = worst({"A_re": np.array([1.0]), "A_im": np.zeros(1), **unit})
    assert endless.step_effect is None  # diverges
