"""A tracked run on the terminal and as CSV."""

from __future__ import annotations

import csv
import io
import math
import re
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from end_to_end.command import SAMPLES
from msgspec.structs import replace
from reports.streams import Stream

from memcurse_cli.reports.console import BARS, Screen, text_of
from memcurse_cli.reports.terminal.tracking import (
    CSV,
    STEP_COLUMNS,
    choose,
    lines,
    sparkline,
    to_csv,
)
from memcurse_cli.schema.derived import TrackedStep, Tracking
from memcurse_cli.tracking.executors import Reading
from memcurse_cli.tracking.track import Tracker


def page_of(tracking: Tracking, **how: Any) -> str:
    return text_of(partial(lines, tracking, **how), None)


def track(path: Path, **options: object) -> Tracking:
    return Tracker([str(path)], Reading.of(**options)).update()


@pytest.fixture(scope="module")
def sample() -> Tracking:
    return track(SAMPLES / "run", learning_rate=0.01)


def rows_of(page: str) -> list[list[str]]:
    """The table's rows, as their cells."""
    return [
        line.split()
        for line in page.splitlines()
        if re.match(r" +\d+ +(ok|watch|cursed|error) ", line)
    ]


def test_a_long_run_is_shown_in_a_choice(tmp_path: Path) -> None:
    run = track(SAMPLES / "run", learning_rate=0.03)
    many = [
        TrackedStep(step, one.step_source, one.path, one.report)
        for step, one in enumerate(one for one in run.steps for _ in range(30))
    ]
    tracking = Tracking("0", tuple(many), "long", 0)
    rows = rows_of(page_of(tracking))
    assert len(rows) == 24
    steps = [int(row[0]) for row in rows]
    turn = next(one.step for one in many if one.report.verdict == "cursed")
    assert {0, turn, 329} <= set(steps)  # the ends, and where it became cursed
    assert steps == sorted(steps)
    assert "24 of 330 checkpoints; --all shows every one." in " ".join(page_of(tracking).split())
    assert len(rows_of(page_of(tracking, every=True))) == 330
    assert len(choose(many, 3)) == 3


def read_csv(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text, newline="")))


def test_csv_has_a_row_for_each_step_and_layer(sample: Tracking) -> None:
    text = to_csv(sample)
    assert text.endswith("\r\n")
    assert text.count("\r\n") == text.count("\n") == 12
    rows = read_csv(text)
    assert [int(row["step"]) for row in rows] == list(range(0, 201, 20))
    for row, step in zip(rows, sample.steps, strict=True):
        (layer,) = step.report.layers
        assert row["checkpoint_verdict"] == step.report.verdict
        assert row["verdict"] == layer.verdict
        assert float(row["modulus_p90"]) == layer.eigenvalues.modulus.p90
        assert float(row["memory"]) == layer.memory == float(row["time_constant_max"])
        assert float(row["learning_rate"]) == 0.01
        assert float(row["usable_rate"]) == layer.usable_rate.rate
        for group in layer.parameters:
            kappa = row[f"relative_sensitivity:{group.name}"]
            assert float(kappa) == group.relative_sensitivity.p99


def test_csv_columns_are_those_of_the_documentation() -> None:
    page = (Path(__file__).parents[2] / "docs" / "track.md").read_text()
    table = page[page.index("| column | meaning |") :]
    for column in (*STEP_COLUMNS, *CSV):
        level = "_" + column.rpartition("_")[2]
        assert f"`{column}`" in table or f"`{level}`" in table or "time_constant" in column, column


def test_csv_leaves_what_diverges_empty(tmp_path: Path) -> None:
    import safetensors.numpy

    state = {"A_re": np.array([1.1, 0.5]), "A_im": np.zeros(2)}
    state |= {name: np.ones((2, 1)) for name in ("B_re", "B_im")}
    state |= {name: np.ones((1, 2)) for name in ("C_re", "C_im")}
    path = tmp_path / "step_1.safetensors"
    safetensors.numpy.save_file(state, path)
    endless = track(path, horizon=math.inf)
    (row,) = read_csv(to_csv(endless))
    assert (row["unstable"], row["time_constant_max"], row["step_effect"]) == ("1", "", "")
    assert row["worst_parameter"] == "A_re"
    assert float(row["modulus_max"]) == pytest.approx(1.1)
    page = page_of(endless)
    assert "never" in page
    assert "A_re divergent" in page


@pytest.mark.parametrize(
    ("marks", "drawn"),
    [
        ((1.73, 1.74, 1.73), "▅▅▅"),
        ((1.0, 1.05, 1.1), "▄▅▅"),
        ((1.0, 10.0, 100.0), "▁▅█"),
        ((1.0, None, "!", 2.0), "▁·!█"),
    ],
)
def test_a_small_change_is_no_cliff(marks: tuple[Any, ...], drawn: str) -> None:
    assert sparkline(Screen(80), marks, 40, marks) == drawn


def test_both_rates_stand_on_one_scale_and_in_the_table(sample: Tracking) -> None:
    page = page_of(sample)
    assert "CURSED" in page.splitlines()[0] or "WATCH" in page.splitlines()[0]
    (usable,) = re.findall(r"usable rate  (\S+)$", page, re.MULTILINE)
    (yours,) = re.findall(r"your rate    (\S+)$", page, re.MULTILINE)
    assert len(set(yours)) == 1
    crossed = [BARS.index(one) > BARS.index(yours[0]) for one in usable]
    rates = [one.report.usable_rate.rate for one in sample.steps if one.report]
    assert crossed == [rate > 0.01 for rate in rates]
    assert [row[4] for row in rows_of(page)][:2] == ["0.024", "0.050"]
    assert {row[3] for row in rows_of(page)} == {"0.01"}


@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_no_cell_is_a_formula(
    sample: Tracking, encoding: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ["=1+1", "+1", "-1", "@A1", "\t=1", "\r=1", " =1", "\uff1d1", "\u22121", "rnn-0=1"]
    names.append("a\uff0cb\uff02")  # a comma and a quote in ASCII
    report = sample.steps[0].report
    (layer,) = report.layers
    groups = (replace(layer.parameters[0], name="=2", step_effect=-0.5),)
    layers = tuple(replace(layer, name=name, parameters=groups) for name in names)
    step = TrackedStep(1, "name", "-run/step_1", replace(report, layers=layers))
    failed = TrackedStep(2, "name", "@run/step_2", None, "=3: damaged")
    monkeypatch.setattr("sys.stdout", Stream(terminal=False, encoding=encoding))
    rows = read_csv(to_csv(Tracking("", (step, failed), "", 1)))
    cells = [cell for row in rows for cell in row.values()]
    assert not [cell for cell in cells if re.match(r"\s*[=+@\uff1d\u2212]|\s*-\D", cell)]
    assert [row["layer"][:2] for row in rows[:4]] == ["'=", "'+", "'-", "'@"]
    assert (rows[4]["layer"], rows[9]["layer"]) == (r"\t=1", "rnn-0=1")
    assert {row["family"] for row in rows} == {layer.family, ""}
    assert (rows[0]["path"], rows[11]["error"]) == ("'-run/step_1", "'=3: damaged")
    assert (rows[0]["worst_parameter"], rows[0]["step_effect"]) == ("'=2", "-0.5")
    assert float(rows[0]["relative_sensitivity:=2"]) > 0
