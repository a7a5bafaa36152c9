"""The HTML page of a run: self-contained, safe, small, and true to the run."""

from __future__ import annotations

import json

import pytest
from end_to_end.command import SAMPLES
from msgspec.structs import replace
from reports.page_reader import Reader

from memcurse_cli.reports.html.tracking import STEPS_DRAWN, to_html
from memcurse_cli.schema.derived import Tracking
from memcurse_cli.schema.json_codec import to_json
from memcurse_cli.tracking.executors import Reading
from memcurse_cli.tracking.track import Tracker


@pytest.fixture(scope="module")
def sample() -> Tracking:
    return Tracker([str(SAMPLES / "run")], Reading.of()).update()


def charts_of(text: str) -> dict[str, object]:
    (charts,) = json.loads(Reader(text).scripts["memcurse-charts"])
    return dict(charts)


def test_the_page_holds_the_run_and_its_curves(sample: Tracking) -> None:
    text = to_html(sample)
    assert json.loads(Reader(text).scripts["memcurse-report"]) == to_json(sample)
    charts = charts_of(text)
    assert charts["steps"] == list(range(0, 201, 20))
    run, layer = charts["layers"]
    assert [panel["title"] for panel in run["panels"]][:2] == ["memory in steps", "learning rates"]
    longest = run["panels"][0]["curves"][0]["values"]
    for value, step in zip(longest, sample.steps, strict=True):
        assert value == pytest.approx(step.report.memory, rel=1e-3)
    usable, yours = run["panels"][1]["curves"]
    assert (usable["name"], yours["name"]) == ("usable rate", "your rate")
    assert yours["values"] == [1e-3] * 11
    assert usable["values"][0] == pytest.approx(sample.steps[0].report.usable_rate.rate, rel=1e-3)
    assert layer["name"] == "complex_diagonal"
    assert [curve["name"] for curve in layer["panels"][2]["curves"]] == ["A_re", "A_im"]


def long_run(sample: Tracking, layers: int, steps: int) -> Tracking:
    """As many layers, over as many checkpoints, every figure with all its digits."""
    state = sample.steps[-1].report
    names = [f"backbone.layers.{k}.mixer.lru" for k in range(layers)]
    state = replace(state, layers=tuple(replace(state.layers[0], name=name) for name in names))
    made = (replace(sample.steps[0], step=10 * k, report=state) for k in range(steps))
    return replace(sample, steps=tuple(made))


@pytest.mark.parametrize(("layers", "steps", "drawn"), [(64, 250, STEPS_DRAWN), (64, 5, 5)])
def test_sixty_four_layers_stay_under_three_megabytes(
    sample: Tracking, layers: int, steps: int, drawn: int
) -> None:
    text = to_html(long_run(sample, layers, steps))
    assert len(text.encode()) < 3_000_000
    assert len(charts_of(text)["steps"]) == drawn
    assert (f"{drawn} of {steps} checkpoints" in text) == (drawn < steps)
    document = json.loads(Reader(text).scripts["memcurse-report"])
    assert len(document["steps"]) == steps
    left_out = {len(step["report"]["layers"]) for step in document["steps"]} == {0}
    assert left_out == (steps > 12)
    assert ("memcurse track --json writes them" in text) == left_out
