"""The run as a whole: find checkpoints and steps, read what is new, say what changed."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from itertools import pairwise, takewhile

from msgspec import structs

from memcurse_cli.checkpoints.untrusted.names import is_url, shown_place
from memcurse_cli.checkpoints.untrusted.source import changed
from memcurse_cli.diagnosis.findings import accumulates, departure
from memcurse_cli.diagnosis.model import unseen_memory
from memcurse_cli.errors import MemcurseError, UsageError
from memcurse_cli.schema.derived import TrackedStep, Tracking
from memcurse_cli.schema.report import LayerReport, Report, unit_of
from memcurse_cli.tracking.cache import Cache, Signature, signature
from memcurse_cli.tracking.discovery import FoundStep, find_checkpoints, find_step
from memcurse_cli.tracking.executors import Outcome, Reading, Run, failed, inline
from memcurse_cli.version import VERSION
from memcurse_cli.wording import about, duration, number

MOVED = 1.05  # the factor from which a memory or a rate counts as changed
STILL = 1.03  # within which a spectrum stands still
FEWEST_STILL = 3  # checkpoints
MOST_TURNS = 3
THREADS = 4  # for what waits for the disk: headers and hashes
NAMES_SHOWN = 3

Progress = Callable[[int, int], None]
Points = Sequence[tuple[int, Report]]


def sentence(steps: Sequence[TrackedStep]) -> str:
    """How memory and usable rate moved, when the verdict changed, and what stands still."""
    points = [(one.step, one.report) for one in steps if one.report is not None]
    if not points:
        return "no checkpoint could be read"
    (first, before), (last, after) = points[0], points[-1]
    if len(points) == 1:
        return f"one checkpoint, at step {first}: {_word(after)}"
    since = _still_since(points)
    said = [_never(points), _accumulating(points), _rates(before, after), _turns(points)]
    if since != first:
        said.insert(0, f"{_memory(before, after)} between step {first} and {last}")
    if since is not None:
        said.append(f"the spectrum has not moved in {last - since} steps; {_remembered(after)}")
    return "; ".join(filter(None, said))


def _word(report: Report) -> str:
    return report.verdict.replace("_", " ")


def _remembered(report: Report) -> str:
    """`it remembers 1.7 of 120`, or `1.7 steps` where nobody said how long a sequence is."""
    if report.memory is None:
        return "it never forgets"
    memory, given = about(report.memory), report.input
    known = given.horizon is not None and given.horizon_source != "assumed"
    alone = any(map(unseen_memory, report.layers))
    held = "its gates alone keep" if alone else "it remembers"
    return f"{held} {memory} of {given.horizon}" if known else f"{held} {_steps(report.memory)}"


def _still_since(points: Points) -> int | None:
    """The first of three or more last checkpoints whose spectra are as good as the last one's."""
    last = points[-1][1]
    still = list(takewhile(lambda point: _unmoved(point[1], last), reversed(points)))
    return still[-1][0] if len(still) >= FEWEST_STILL else None


def _unmoved(one: Report, other: Report) -> bool:
    """Whether no layer's memory, nor any quantile of its time constants, moved by some per cent."""
    return [layer.name for layer in one.layers] == [layer.name for layer in other.layers] and all(
        _same(before, after, STILL)
        for layers in zip(one.layers, other.layers, strict=True)
        for before, after in zip(*map(_spectrum, layers), strict=True)
    )


def _spectrum(layer: LayerReport) -> tuple[float | None, ...]:
    spectrum = layer.eigenvalues
    return layer.memory, spectrum.unstable, *structs.astuple(spectrum.time_constant)


def _memory(before: Report, after: Report) -> str:
    low, high = before.memory, after.memory
    if _same(low, high):
        return "the memory never ended" if high is None else f"the memory stayed at {_steps(high)}"
    if low is None or high is None:
        return f"the memory went from {_steps(low)} to {_steps(high)}"
    return f"the memory {'rose' if high > low else 'fell'} from {about(low)} to {_steps(high)}"


def _steps(memory: float | None) -> str:
    return "one that never ends" if memory is None else duration(float(about(memory)))


def _never(points: Points) -> str:
    """Since when there are eigenvalues that never fade."""
    now = unstable(points[-1][1])
    if not now:
        return ""
    have = "eigenvalue never fades" if now == 1 else "eigenvalues never fade"
    return f"{now} {have}, the first from step {_since(points, unstable)} on"


def _since(points: Points, holds: Callable[[Report], object]) -> int:
    """The first of the last checkpoints for which something holds."""
    return list(takewhile(lambda point: holds(point[1]), reversed(points)))[-1][0]


def _accumulating(points: Points) -> str:
    """Since when states of input-dependent layers sum their inputs, MC108."""
    layers = [layer for layer in points[-1][1].layers if accumulates(layer)]
    now = sum(layer.storage.accumulating for layer in layers if layer.storage)
    if not now:
        return ""
    since = _since(points, lambda report: any(map(accumulates, report.layers)))
    sums = f"{unit_of(layers)} sums its" if now == 1 else f"{unit_of(layers)}s sum their"
    return f"{now} {sums} inputs, the first from step {since} on"


def unstable(report: Report) -> int:
    """How many eigenvalues never fade."""
    return sum(layer.eigenvalues.unstable for layer in report.layers)


def _rates(before: Report, after: Report) -> str:
    """The usable rate, from the first checkpoint to the last, beside the user's."""
    low, high = before.usable_rate.rate, after.usable_rate.rate
    if high is None:
        return ""
    said = f"the usable rate is {about(high)}"
    if low is not None and not _same(low, high):
        rose = "rose" if high > low else "fell"
        said = f"the usable rate {rose} from {about(low)} to {about(high)}"
    return f"{said}, yours is {number(after.input.learning_rate)}"


def _turns(points: Points) -> str:
    """The steps at which the verdict is another one than before."""
    found = [
        (step, _word(after))
        for (_, before), (step, after) in pairwise(points)
        if before.verdict != after.verdict
    ]
    if not found:
        return f"{_word(points[-1][1])} throughout"
    if len(found) > MOST_TURNS:
        step, verdict = found[-1]
        return f"the verdict changed {len(found)} times, last to {verdict} at step {step}"
    return "became " + ", ".join(f"{verdict} at step {step}" for step, verdict in found)


def _same(low: float | None, high: float | None, factor: float = MOVED) -> bool:
    return departure(low, high) < factor


@dataclass
class _Known:
    """A checkpoint that has been looked at."""

    signature: Signature | None
    found: FoundStep | None
    outcome: Outcome | None = None

    @property
    def was_read(self) -> bool:
        """Whether there are figures of it."""
        return self.outcome is not None and self.outcome.report is not None


@dataclass
class Tracker:
    """A training run that may go on."""

    given: Sequence[str]  # paths, globs, directories, URLs
    reading: Reading  # how each checkpoint is read
    pattern: re.Pattern[str] | None = None  # of --step-pattern, or None
    run: Run = inline  # where checkpoints are read
    cache: Cache | None = None  # where reports are kept, or None
    # whether the run is in progress: then nothing found is no error, a checkpoint without a step is
    # left for later, one that could not be read is tried again, and one that was read stays in the
    # series when its file is deleted
    waiting: bool = False
    _known: dict[str, _Known] = field(default_factory=dict)

    def update(self, progress: Progress | None = None) -> Tracking:
        """The run as it now is. What has not changed since the last time is not read again.

        Raises MemcurseError: nothing found or readable, a checkpoint without a step, or two of one.
        """
        paths = find_checkpoints(self.given, waiting=self.waiting)
        signatures = {path: () if is_url(path) else signature(path) for path in paths}
        fresh = [
            path
            for path, now in signatures.items()
            if (known := self._known.get(path)) is None
            or not known.was_read
            or known.signature != now
        ]
        for path, step in zip(fresh, self._steps(fresh), strict=True):
            self._known[path] = _Known(signatures[path], step)
        placed = {path: self._known[path].found for path in paths}
        _check_steps(placed, waiting=self.waiting)
        self._forget(paths)
        self._read([path for path in fresh if placed[path] is not None], progress)
        return self._tracking()

    def _steps(self, paths: Sequence[str]) -> list[FoundStep | None]:
        # A pattern that backtracks for ever can be interrupted on the main thread only.
        if self.pattern is not None:
            return [find_step(path, self.pattern) for path in paths]
        with ThreadPoolExecutor(THREADS) as threads:
            return list(threads.map(find_step, paths))

    def _forget(self, paths: Sequence[str]) -> None:
        """Let go of what is gone or replaced; but a run in progress may delete what it had."""
        present = {path: self._known[path] for path in paths}
        steps = {known.found.step for known in present.values() if known.found is not None}
        past = {
            path: known
            for path, known in self._known.items()
            if self.waiting and path not in present and known.was_read
            if known.found is not None and known.found.step not in steps
        }
        self._known = past | present

    def _read(self, paths: Sequence[str], progress: Progress | None) -> None:
        keys = {} if self.cache is None else self._keys(self.cache, paths)
        # Not on the threads, as msgspec crashes where several are the first to decode a class.
        for path, key in keys.items():
            if self.cache is not None and (report := self.cache.get(key)) is not None:
                self._known[path].outcome = Outcome(report)
        left = [path for path in paths if self._known[path].outcome is None]
        recalled = len(paths) - len(left)
        if progress is not None:
            progress(recalled, len(paths))
        if not left:
            return
        with closing(self.run(left, self.reading)) as outcomes:
            for done, (path, outcome) in enumerate(outcomes, recalled + 1):
                if outcome.version != VERSION:
                    raise UsageError(
                        f"a worker runs memcurse {outcome.version}, this is {VERSION}",
                        where="--executor",
                        remedy="install the same version everywhere",
                    )
                self._record(path, outcome, keys.get(path))
                if progress is not None:
                    progress(done, len(paths))

    def _record(self, path: str, outcome: Outcome, key: str | None) -> None:
        known = self._known[path]
        known.outcome = outcome
        if not is_url(path) and signature(path) != known.signature:
            known.signature = None  # it changed while it was read: half of it may be old
            if os.path.isfile(path):  # of a folder, what was read has been looked at
                known.outcome = failed(changed(shown_place(path)))
        elif self.cache is not None and outcome.report is not None and key is not None:
            self.cache.put(key, outcome.report)

    def _keys(self, cache: Cache, paths: Sequence[str]) -> dict[str, str]:
        def key(path: str) -> str | None:
            try:
                return None if is_url(path) else cache.key_of(path, self.reading)
            except UsageError:  # of the cache
                raise
            except Exception:  # reading it will say what is wrong
                return None

        with ThreadPoolExecutor(THREADS) as threads:
            keys = zip(paths, threads.map(key, paths), strict=True)
            return {path: key for path, key in keys if key is not None}

    def _tracking(self) -> Tracking:
        steps = [
            TrackedStep(
                step=known.found.step,
                step_source=known.found.source,
                path=shown_place(path),
                report=known.outcome.report,
                error=known.outcome.error,
            )
            for path, known in self._known.items()
            if known.found is not None and known.outcome is not None
        ]
        steps.sort(key=lambda one: one.step)
        failed = [one for one in steps if one.report is None]
        if steps and len(failed) == len(steps) and not self.waiting:
            all_of_them = f"none of {len(steps)} checkpoints can be read, the first because "
            raise MemcurseError(f"{all_of_them * (len(steps) > 1)}{failed[0].error}")
        return Tracking(
            version=VERSION,
            steps=tuple(steps),
            sentence=sentence(steps),
            failed=len(failed),
            notes=tuple(self._notes(steps)),
        )

    def _notes(self, steps: Sequence[TrackedStep]) -> list[str]:
        notes, sources = [], Counter(one.step_source for one in steps)
        if len(sources) > 1:
            told = ", ".join(f"{count} by {source}" for source, count in sources.items())
            notes.append(f"steps are told in several ways: {told}")
        elif sources:
            notes.append(f"steps are told by {next(iter(sources))}")
        for path, known in self._known.items():
            if known.found is not None and known.found.in_name is not None:
                notes.append(
                    f"{shown_place(path)} is called step {known.found.in_name} and holds step "
                    f"{known.found.step}, which counts"
                )
        unplaced = sum(known.found is None for known in self._known.values())
        if unplaced:
            notes.append(f"{unplaced} without a step so far")
        inputs = {one.report.input for one in steps if one.report is not None}
        if len({made.horizon for made in inputs}) > 1:
            notes.append("the checkpoints name different horizons; --horizon T holds one for all")
        return notes


def _check_steps(placed: dict[str, FoundStep | None], *, waiting: bool) -> None:
    """Raise `UsageError` where a checkpoint has no step, or two have the same."""
    unplaced = [path for path, found in placed.items() if found is None]
    if unplaced and not waiting:
        listed = ", ".join(map(shown_place, unplaced[:NAMES_SHOWN]))
        more = ", …" if len(unplaced) > NAMES_SHOWN else ""
        raise UsageError(
            f"nothing says the step of {listed}{more}",
            where="track",
            remedy="call it as step_1000, store `step` in its metadata, or give "
            r"--step-pattern with a group for the digits, as 'update(\d+)'",
        )
    seen: dict[int, str] = {}
    for path, found in placed.items():
        other = path if found is None else seen.setdefault(found.step, path)
        if found is not None and other != path:
            raise UsageError(
                f"{shown_place(other)} and {shown_place(path)} are both of step "
                f"{found.step} (by {found.source})",
                where="track",
                remedy="name only one of them, or tell steps apart with --step-pattern",
            )
