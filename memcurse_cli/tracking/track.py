"""The run as a whole: find checkpoints and steps, read what is new, say what changed."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from itertools import pairwise

from memcurse_cli.checkpoints.untrusted.names import is_url, shown_place
from memcurse_cli.checkpoints.untrusted.source import changed
from memcurse_cli.diagnosis.wording import number
from memcurse_cli.errors import MemcurseError, UsageError
from memcurse_cli.schema.derived import Snapshot, TrackedStep, Tracking
from memcurse_cli.tracking.cache import Cache, Signature, signature
from memcurse_cli.tracking.discovery import FoundStep, find_checkpoints, find_step
from memcurse_cli.tracking.executors import Run, inline
from memcurse_cli.tracking.work import Outcome, Reading, failed
from memcurse_cli.version import VERSION

MOVED = 1.05  # the factor from which a time constant, a sensitivity or a rate counts as changed
MOST_TURNS = 3
THREADS = 4  # for what waits for the disk: headers and hashes
NAMES_SHOWN = 3

Progress = Callable[[int, int], None]
Points = Sequence[tuple[int, Snapshot]]


def sentence(steps: Sequence[TrackedStep]) -> str:
    """How far the spectrum, the sensitivity and the rate moved, and when the verdict changed."""
    points = [(one.step, one.snapshot) for one in steps if one.snapshot is not None]
    if not points:
        return "no checkpoint could be read"
    (first, before), (last, after) = points[0], points[-1]
    if len(points) == 1:
        return f"one checkpoint, at step {first}: {before.verdict}"
    said = [f"{_modulus(before, after)} between step {first} and {last}", _left(points)]
    said.append(_sensitivity(before, after))
    said.append(_moved("the usable rate", before.summary.usable_rate, after.summary.usable_rate))
    return "; ".join(words for words in (*said, _turns(points)) if words)


def modulus_text(modulus: float) -> str:
    """|λ| with two digits of its distance from 1: `0.95`, `0.9987`, `1.0012`."""
    distance = abs(1 - modulus)
    if distance >= 0.5 or distance < 1e-15:
        return f"{modulus:.3g}"
    exponent = int(f"{distance:.1e}".partition("e")[2])  # after rounding to the two digits
    return f"{modulus:.{max(1 - exponent, 2)}f}"


def _modulus(before: Snapshot, after: Snapshot) -> str:
    low, high = before.summary.modulus, after.summary.modulus
    texts = modulus_text(low), modulus_text(high)
    if texts[0] == texts[1] or (_same(abs(1 - low), abs(1 - high)) and (low < 1) == (high < 1)):
        return f"max |λ| stayed at {texts[1]}"
    return f"max |λ| {'rose' if high > low else 'fell'} from {texts[0]} to {texts[1]}"


def _left(points: Points) -> str:
    """When eigenvalues came to stand outside the unit disk, or came back."""
    counts = [snapshot.summary.unstable for _, snapshot in points]
    if not any(counts):
        return ""
    if counts[0]:
        return f"eigenvalues with |λ| ≥ 1: {counts[0]} at the start, {counts[-1]} at the end"
    step = next(step for step, snapshot in points if snapshot.summary.unstable)
    if not counts[-1]:
        return f"eigenvalues left the unit disk at step {step} and came back"
    have = "eigenvalue has" if counts[-1] == 1 else "eigenvalues have"
    return f"{counts[-1]} {have} |λ| ≥ 1, the first from step {step} on"


def _sensitivity(before: Snapshot, after: Snapshot) -> str:
    ours, theirs = before.summary.worst, after.summary.worst
    if ours is None or theirs is None:
        return ""
    low, high = ours.relative_sensitivity, theirs.relative_sensitivity
    if low is not None and high is None:
        return "the worst relative sensitivity came to diverge"
    return _moved("the worst κ", low, high)


def _moved(noun: str, low: float | None, high: float | None) -> str:
    if not low or not high or _same(low, high):
        return ""
    return f"{noun} {'rose' if high > low else 'fell'} from {number(low)} to {number(high)}"


def _turns(points: Points) -> str:
    """The steps at which the verdict is another one than before."""
    found = [
        (step, after.verdict)
        for (_, before), (step, after) in pairwise(points)
        if before.verdict != after.verdict
    ]
    if not found:
        return f"{points[-1][1].verdict} throughout"
    if len(found) > MOST_TURNS:
        step, verdict = found[-1]
        return f"the verdict changed {len(found)} times, last to {verdict} at step {step}"
    return "became " + ", ".join(f"{verdict} at step {step}" for step, verdict in found)


def _same(low: float, high: float) -> bool:
    return max(low, high) < MOVED * min(low, high) if min(low, high) > 0 else low == high


@dataclass
class _Known:
    """A checkpoint that has been looked at."""

    signature: Signature | None
    found: FoundStep | None
    outcome: Outcome | None = None

    @property
    def was_read(self) -> bool:
        """Whether there are figures of it."""
        return self.outcome is not None and self.outcome.snapshot is not None


@dataclass
class Tracker:
    """A training run that may go on."""

    given: Sequence[str]  # paths, globs, directories, URLs
    reading: Reading  # how each checkpoint is read
    pattern: re.Pattern[str] | None = None  # of --step-pattern, or None
    run: Run = inline  # where checkpoints are read
    cache: Cache | None = None  # where snapshots are kept, or None
    # whether the run is in progress: then nothing found is no error, a checkpoint without a step is
    # left for later, one that could not be read is tried again, and one that was read stays in the
    # series when its file is deleted
    waiting: bool = False
    _known: dict[str, _Known] = field(default_factory=dict)

    def update(self, progress: Progress | None = None) -> Tracking:
        """The run as it now is. What has not changed since the last time is not read again.

        Raises:
            MemcurseError: nothing is found or can be read, a checkpoint has no step, or two one.
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
        for path, key in keys.items():
            snapshot = None if self.cache is None else self.cache.get(key)
            if snapshot is not None:
                self._known[path].outcome = Outcome(snapshot)
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
        elif self.cache is not None and outcome.snapshot is not None and key is not None:
            self.cache.put(key, outcome.snapshot)

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
                snapshot=known.outcome.snapshot,
                error=known.outcome.error,
            )
            for path, known in self._known.items()
            if known.found is not None and known.outcome is not None
        ]
        steps.sort(key=lambda one: one.step)
        failed = [one for one in steps if one.snapshot is None]
        if steps and len(failed) == len(steps) and not self.waiting:
            raise MemcurseError(
                f"none of {len(steps)} checkpoints can be read, the first because {failed[0].error}"
                if len(steps) > 1
                else f"{failed[0].error}"
            )
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
        inputs = {one.snapshot.input for one in steps if one.snapshot is not None}
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
        if found is None:
            continue
        if found.step in seen:
            raise UsageError(
                f"{shown_place(seen[found.step])} and {shown_place(path)} are both of step "
                f"{found.step} (by {found.source})",
                where="track",
                remedy="name only one of them, or tell steps apart with --step-pattern",
            )
        seen[found.step] = path
