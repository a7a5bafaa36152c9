"""What changed along a run, in one sentence."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from memcurse_cli.diagnosis.wording import number
from memcurse_cli.schema.derived import Snapshot, TrackedStep
from memcurse_cli.schema.report import Verdict

MOVED = 1.05
"""The factor from which a time constant, a sensitivity or a rate counts as changed."""

MOST_TURNS = 3

Points = Sequence[tuple[int, Snapshot]]


def sentence(steps: Sequence[TrackedStep]) -> str:
    """How far the spectrum, the sensitivity and the rate moved, and when the verdict changed."""
    points = [(one.step, one.snapshot) for one in steps if one.snapshot is not None]
    if not points:
        return "no checkpoint could be read"
    (first, before), (last, after) = points[0], points[-1]
    if len(points) == 1:
        return f"one checkpoint, at step {first}: {before.verdict}"
    said = [f"{_modulus(before, after)} between step {first} and {last}"]
    said += [words for words in (_left(points), _sensitivity(before, after)) if words]
    said += [words for words in (_rate(before, after), _turns(points)) if words]
    return "; ".join(said)


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
    if not low or not high or _same(low, high):
        return ""
    return f"the worst κ {'rose' if high > low else 'fell'} from {number(low)} to {number(high)}"


def _rate(before: Snapshot, after: Snapshot) -> str:
    low, high = before.summary.usable_rate, after.summary.usable_rate
    if not low or not high or _same(low, high):
        return ""
    way = "rose" if high > low else "fell"
    return f"the usable rate {way} from {number(low)} to {number(high)}"


def turns(points: Points) -> list[tuple[int, Verdict]]:
    """The steps at which the verdict is another one than before."""
    return [
        (step, after.verdict)
        for (_, before), (step, after) in pairwise(points)
        if before.verdict != after.verdict
    ]


def _turns(points: Points) -> str:
    found = turns(points)
    if not found:
        return f"{points[-1][1].verdict} throughout"
    if len(found) > MOST_TURNS:
        step, verdict = found[-1]
        return f"the verdict changed {len(found)} times, last to {verdict} at step {step}"
    return "became " + ", ".join(f"{verdict} at step {step}" for step, verdict in found)


def _same(low: float, high: float) -> bool:
    return max(low, high) < MOVED * min(low, high) if min(low, high) > 0 else low == high
