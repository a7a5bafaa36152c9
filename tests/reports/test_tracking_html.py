"""The HTML page of a run: self-contained, safe, small, and true to the run."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from end_to_end.command import SAMPLES
from hypothesis import Phase, given, settings
from reports.page_reader import Reader, assert_self_contained
from reports.strategies import instances
from tracking.build import write_run

from memcurse_cli.reports.html.tracking import STEPS_DRAWN, to_html
from memcurse_cli.reports.tracking_json import to_json
from memcurse_cli.tracking.series import TrackedStep, Tracking
from memcurse_cli.tracking.track import Tracker
from memcurse_cli.tracking.work import Reading


def track(path: Path) -> Tracking:
    return Tracker([str(path)], Reading.of()).update()


@pytest.fixture(scope="module")
def sample() -> Tracking:
    return track(SAMPLES / "run")


def charts_of(text: str) -> dict[str, object]:
    (charts,) = json.loads(Reader(text).scripts["memcurse-charts"])
    return dict(charts)


@settings(max_examples=25, phases=[Phase.explicit, Phase.reuse, Phase.generate])
@given(tracking=instances(Tracking))
def test_every_run_makes_a_page_that_loads_nothing(tracking: Tracking) -> None:
    assert_self_contained(Reader(to_html(tracking)))


def test_the_page_holds_the_run_and_its_curves(sample: Tracking) -> None:
    text = to_html(sample)
    assert json.loads(Reader(text).scripts["memcurse-report"]) == to_json(sample)
    charts = charts_of(text)
    assert charts["steps"] == list(range(0, 201, 20))
    run, layer = charts["layers"]  # type: ignore[misc]  # a list of two
    assert [panel["title"] for panel in run["panels"]][:2] == ["τ, steps", "κ of the worst group"]
    longest = run["panels"][0]["curves"][0]["values"]
    for value, step in zip(longest, sample.steps, strict=True):
        assert step.snapshot is not None
        assert value == pytest.approx(step.snapshot.summary.time_constant, rel=1e-3)
    assert layer["name"] == "complex_diagonal"
    assert [curve["name"] for curve in layer["panels"][1]["curves"]] == ["A_re", "A_im"]


def test_what_diverges_or_could_not_be_read_is_marked(tmp_path: Path) -> None:
    write_run(tmp_path, (0.5, 0.9, 0.99))[1].write_bytes(b"x")
    tracking = track(tmp_path)
    last = tracking.steps[-1]
    assert last.snapshot is not None
    summary = replace(last.snapshot.summary, time_constant=None)
    endless = replace(last, snapshot=replace(last.snapshot, summary=summary))
    text = to_html(replace(tracking, steps=(*tracking.steps[:-1], endless)))
    charts = charts_of(text)
    assert charts["verdicts"] == ["ok", "error", tracking.steps[-1].snapshot.verdict]  # type: ignore[union-attr]
    run = charts["layers"][0]  # type: ignore[index]
    values = run["panels"][0]["curves"][0]["values"]
    assert values[1:] == [None, "divergent"]
    assert '<span class="badge error">' in text


@pytest.mark.parametrize(
    "name", ["</script><script>alert(1)</script>", '"><img src=x onerror=alert(1)>', "\x1b[31mred"]
)
def test_a_name_stays_text(name: str, sample: Tracking) -> None:
    def renamed(step: TrackedStep) -> TrackedStep:
        assert step.snapshot is not None
        layers = tuple(replace(layer, name=name) for layer in step.snapshot.layers)
        return replace(step, path=name, snapshot=replace(step.snapshot, layers=layers))

    text = to_html(replace(sample, steps=tuple(map(renamed, sample.steps))))
    tags = [tag for tag, _ in Reader(to_html(sample)).elements]
    assert [tag for tag, _ in Reader(text).elements] == tags
    assert "\x1b" not in text


def test_sixty_four_layers_over_many_steps_stay_under_three_megabytes(sample: Tracking) -> None:
    first = sample.steps[-1].snapshot
    assert first is not None
    layers = tuple(replace(first.layers[0], name=f"layers.{k}.lru") for k in range(64))
    snapshot = replace(first, layers=layers)
    steps = tuple(replace(sample.steps[0], step=10 * k, snapshot=snapshot) for k in range(250))
    text = to_html(replace(sample, steps=steps))
    assert len(text.encode()) < 3_000_000
    assert len(charts_of(text)["steps"]) == STEPS_DRAWN  # type: ignore[arg-type]  # a list
    assert "200 of 250 checkpoints" in text
    assert "memcurse track --json writes them" in text
    document = json.loads(Reader(text).scripts["memcurse-report"])
    assert len(document["steps"]) == 250
    assert {len(step["snapshot"]["layers"]) for step in document["steps"]} == {0}
