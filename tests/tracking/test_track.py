"""A run as a whole: order, failures, what is read again and what is not."""

from __future__ import annotations

import math
import re
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from tracking.build import MODULI, state, write, write_run

from memcurse_cli.commands.track import open_cache
from memcurse_cli.errors import CheckpointError, MemcurseError, UsageError
from memcurse_cli.tracking.discovery import compile_pattern
from memcurse_cli.tracking.executors import Outcomes, inline
from memcurse_cli.tracking.track import Tracker
from memcurse_cli.tracking.work import Outcome, Reading

READING = Reading.of()


class Counting:
    """Reads here, and remembers what it read."""

    def __init__(self) -> None:
        self.read: list[str] = []

    def __call__(self, paths: Sequence[str], reading: Reading) -> Outcomes:
        for path, outcome in inline(paths, reading):
            self.read.append(Path(path).name)
            yield path, outcome


def tracker(given: Path | str, run: Counting | None = None, **others: object) -> Tracker:
    return Tracker([str(given)], READING, run=run or inline, **others)  # type: ignore[arg-type]  # by keyword


def test_checkpoints_come_in_the_order_of_their_steps(tmp_path: Path) -> None:
    for step in (1000, 20, 300):
        write(tmp_path / f"step_{step}.safetensors", 0.9)
    tracking = tracker(tmp_path).update()
    assert [one.step for one in tracking.steps] == [20, 300, 1000]
    assert tracking.notes == ("steps are told by name",)
    assert tracking.failed == 0


def test_figures_follow_the_moduli(tmp_path: Path) -> None:
    write_run(tmp_path)
    summaries = [one.snapshot.summary for one in tracker(tmp_path).update().steps if one.snapshot]
    assert [one.modulus for one in summaries] == pytest.approx(MODULI)
    longest = [-1 / math.log(modulus) for modulus in MODULI]
    assert [one.time_constant for one in summaries] == pytest.approx(longest)
    assert [one.time_constant_median for one in summaries] == pytest.approx(longest)


def test_progress_counts_to_the_end(tmp_path: Path) -> None:
    write_run(tmp_path)
    seen: list[tuple[int, int]] = []
    cache = open_cache(tmp_path / "cache")
    tracker(tmp_path / "*.safetensors", cache=cache).update(lambda *counts: seen.append(counts))
    assert seen == [(done, 5) for done in range(6)]
    seen.clear()
    tracker(tmp_path / "*.safetensors", cache=cache).update(lambda *counts: seen.append(counts))
    assert seen == [(5, 5)]


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
    from memcurse_cli.tracking import work

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


def test_a_run_of_which_nothing_can_be_read_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "step_1.safetensors").write_bytes(b"x")
    with pytest.raises(MemcurseError, match=r"step_1\.safetensors"):
        tracker(tmp_path).update()
    (tmp_path / "step_2.safetensors").write_bytes(b"x")
    with pytest.raises(MemcurseError, match="none of 2 checkpoints"):
        tracker(tmp_path).update()
    assert tracker(tmp_path, waiting=True).update().failed == 2


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


def test_a_pattern_is_matched_where_an_interrupt_ends_it(tmp_path: Path) -> None:
    threads = []

    class Matched:
        groups = 0

        def finditer(self, text: str) -> Iterator[re.Match[str]]:
            threads.append(threading.current_thread())
            return re.finditer(r"\d+$", text.removesuffix(".safetensors"))

    write_run(tmp_path)
    tracker(tmp_path, pattern=Matched()).update()
    assert set(threads) == {threading.main_thread()}


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


def test_horizons_that_differ_are_told(tmp_path: Path) -> None:
    write(tmp_path / "step_1.safetensors", 0.5, {"memcurse.horizon": "10"})
    write(tmp_path / "step_2.safetensors", 0.5)
    assert "different horizons" in tracker(tmp_path).update().notes[-1]


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

    follower = Tracker([str(path)], READING, run=racing, cache=cache, waiting=True)
    # Its step may be that of one version and its figures those of another.
    assert "changed while it was read" in str(follower.update().steps[0].error)
    follower.run = inline
    newer = follower.update().steps[0].snapshot
    assert newer is not None
    assert newer.summary.modulus == pytest.approx(0.9)
    write(path, 0.5)
    assert tracker(path, cache=cache).update().steps[0].snapshot != newer


def test_what_was_done_before_an_interrupt_is_kept(tmp_path: Path) -> None:
    write_run(tmp_path / "run")
    cache = open_cache(tmp_path / "cache")

    def interrupted(paths: Sequence[str], reading: Reading) -> Outcomes:
        yield from inline(paths[:3], reading)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Tracker([str(tmp_path / "run")], READING, run=interrupted, cache=cache).update()
    rest = Counting()
    assert tracker(tmp_path / "run", rest, cache=cache).update().failed == 0
    assert len(rest.read) == 2


def test_a_worker_of_another_version_is_refused(tmp_path: Path) -> None:
    write_run(tmp_path)

    def old(paths: Sequence[str], reading: Reading) -> Outcomes:
        for path in paths:
            yield path, Outcome(error="x", version="0.0.1")

    with pytest.raises(UsageError, match=r"a worker runs memcurse 0\.0\.1"):
        Tracker([str(tmp_path)], READING, run=old).update()


def test_nothing_to_read_is_an_error_unless_waiting(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no checkpoint matches"):
        tracker(tmp_path).update()
    empty = tracker(tmp_path, waiting=True).update()
    assert (empty.steps, empty.sentence) == ((), "no checkpoint could be read")


def test_options_are_refused_before_any_work() -> None:
    for options in (
        {"rho": 2.0},
        {"learning_rate": 0.0},
        {"watch_limit": 2.0},
        {"horizon": 0},
        {"readout": "first"},
        {"device": "tpu"},
        {"assume": {"nonsense": "1"}},
        {"rho": 0.5, "autocorrelation": "1:0"},
    ):
        with pytest.raises(UsageError):
            Reading.of(**options)  # type: ignore[arg-type]  # each is one argument


def test_layers_that_could_not_be_read_are_told_without_the_path(tmp_path: Path) -> None:
    import numpy as np
    import safetensors.numpy

    tensors = {f"{layer}.{name}": value for layer in "ab" for name, value in state(0.9).items()}
    tensors["b.nu_log"] = np.full(4, np.nan)
    path = tmp_path / "step_1.safetensors"
    safetensors.numpy.save_file(tensors, path)
    snapshot = tracker(path).update().steps[0].snapshot
    assert snapshot is not None
    (skipped,) = snapshot.skipped
    assert skipped.name == "b"
    assert str(tmp_path) not in skipped.reason
