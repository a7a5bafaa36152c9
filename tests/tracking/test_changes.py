"""The sentence about a run says what its numbers say."""

from __future__ import annotations

from dataclasses import replace

import pytest

from memcurse_cli.schema.derived import Snapshot, Summary, TrackedStep, WorstGroup
from memcurse_cli.schema.figures import Verdict
from memcurse_cli.schema.report import InputAssumption
from memcurse_cli.tracking.track import modulus_text, sentence

SUMMARY = Summary(
    unstable=0,
    modulus=0.95,
    time_constant_median=5.0,
    time_constant=20.0,
    worst=WorstGroup("layer", "nu", 100.0, 0.01),
    usable_rate=0.01,
)


def step(number: int, verdict: Verdict = "ok", **others: object) -> TrackedStep:
    worst = WorstGroup("layer", "nu", others.pop("kappa", 100.0), 0.01)  # type: ignore[arg-type]  # a number or None
    summary = replace(SUMMARY, worst=worst, **others)  # type: ignore[arg-type]  # fields by name
    assumed = InputAssumption(((1.0, 0.0),), None, None, 1e-3)
    return TrackedStep(number, "name", "path", Snapshot(verdict, "", assumed, summary, ()))


def failed(number: int) -> TrackedStep:
    return TrackedStep(number, "name", "path", None, "damaged")


def test_what_rose_and_when_it_became_cursed() -> None:
    steps = [
        failed(0),
        step(10),
        step(3000, "cursed", modulus=0.99),
        step(5000, "cursed", modulus=0.999, kappa=4e4, usable_rate=0.001),
        failed(6000),
    ]
    assert sentence(steps) == (
        "max |λ| rose from 0.950 to 0.9990 between step 10 and 5000; the worst κ rose from 100 to "
        "40000; the usable rate fell from 0.01 to 0.001; became cursed at step 3000"
    )


def test_what_stayed() -> None:
    assert sentence([step(1), step(2, modulus=0.9501, kappa=101.0)]) == (
        "max |λ| stayed at 0.950 between step 1 and 2; ok throughout"
    )


def test_one_and_none() -> None:
    assert sentence([]) == sentence([failed(1)]) == "no checkpoint could be read"
    assert sentence([step(7, "watch")]) == "one checkpoint, at step 7: watch"


@pytest.mark.parametrize(
    ("counts", "words"),
    [
        ((0, 1, 1), "1 eigenvalue has |λ| ≥ 1, the first from step 1 on"),
        ((0, 1, 3), "3 eigenvalues have |λ| ≥ 1, the first from step 1 on"),
        ((0, 2, 0), "eigenvalues left the unit disk at step 1 and came back"),
        ((4, 2, 1), "eigenvalues with |λ| ≥ 1: 4 at the start, 1 at the end"),
    ],
)
def test_eigenvalues_outside_the_disk(counts: tuple[int, ...], words: str) -> None:
    assert words in sentence([step(at, unstable=count) for at, count in enumerate(counts)])


def test_turns_of_the_verdict() -> None:
    there: list[Verdict] = ["ok", "cursed", "ok"]
    assert "became cursed at step 1, ok at step 2" in sentence(
        [step(at, verdict) for at, verdict in enumerate(there)]
    )
    many: list[Verdict] = ["ok", "watch"] * 4
    assert "the verdict changed 7 times, last to watch at step 7" in sentence(
        [step(at, verdict) for at, verdict in enumerate(many)]
    )


def test_what_comes_to_diverge_and_what_is_not_known() -> None:
    assert "the worst relative sensitivity came to diverge" in sentence(
        [step(1), step(2, kappa=None)]
    )
    unknown = sentence([step(1, usable_rate=None), step(2)])
    assert "rate" not in unknown


@pytest.mark.parametrize(
    ("modulus", "text"),
    [
        (0.0, "0"),
        (0.5, "0.5"),
        (0.95, "0.950"),
        (0.9987, "0.9987"),
        (0.99999, "0.999990"),
        (1.0012, "1.0012"),
        (1.0, "1"),
        (2.5, "2.5"),
    ],
)
def test_a_modulus_shows_its_distance_from_one(modulus: float, text: str) -> None:
    assert modulus_text(modulus) == text
