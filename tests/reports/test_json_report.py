"""The report as JSON: nothing lost on the way there and back, nothing wrong let in."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from msgspec.structs import replace
from reports import build
from reports.strategies import instances

from memcurse_cli import inspect
from memcurse_cli.commands.request import load_reports
from memcurse_cli.errors import MemcurseError, UsageError
from memcurse_cli.schema.json_codec import from_json, to_json, to_text
from memcurse_cli.schema.report import Report

FIRST = Path(__file__).parent / "first"


def loads(text: str) -> list[Report]:
    return load_reports(text.encode("latin-1"), "report.json")


MADE = build.report(
    build.layer("a", "lru", [9.0], [build.parameter("nu", 0.5)]),
    build.layer("b", "lru", [9.0], [build.parameter("nu", None)]),
)


def document() -> dict:
    return json.loads(to_text(MADE))


def refusal(wrong: dict, path: tuple, value: object) -> str:
    """The line of a document that has this value in that place."""
    inner = wrong
    for step in path[:-1]:
        inner = inner[step]
    inner[path[-1]] = value
    with pytest.raises(MemcurseError) as caught:
        from_json(wrong, where="report.json")
    line = str(caught.value)
    assert line.startswith("report.json: ")
    assert "\n" not in line
    return line


@given(instances(Report))
@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])
def test_round_trip_is_exact(report: Report) -> None:
    text = to_text(report)
    assert loads(text) == [report]
    assert text.isascii()


def test_field_names_and_their_order_are_those_of_the_schema() -> None:
    report = document()
    assert " ".join(report) == (
        "schema version checkpoint input device verdict sentence usable_rate memory findings "
        "actions layers skipped not_recurrent curves optimizer state_type"
    )
    assert report["schema"] == "memcurse.report/2"
    assert report["input"]["autocorrelation"] == [{"weight": 1.0, "rho": 0.0}]
    assert report["input"]["horizon"] is None
    layer = report["layers"][0]
    fields = "name family tensors eigenvalues state parameters hessian verdict findings"
    assert set(fields.split()) <= set(layer)
    assert " ".join(layer["eigenvalues"]["modulus"]) == "min p50 p90 p99 max divergent"
    assert " ".join(layer["parameters"][0]["rounding"]) == (
        "bfloat16 float16 float32 int8 float8_e4m3fn float8_e5m2"
    )


def test_eigenvalues_are_written_only_where_asked_for() -> None:
    layer = MADE.layers[0]
    assert "values" not in document()["layers"][0]["eigenvalues"]
    valued = replace(layer, eigenvalues=replace(layer.eigenvalues, values=((0.5, -0.25),)))
    report = build.report(valued)
    assert to_json(report)["layers"][0]["eigenvalues"]["values"] == [[0.5, -0.25]]
    assert loads(to_text(report)) == [report]


def test_several_reports_are_an_array() -> None:
    reports = [MADE, build.report()]
    assert isinstance(json.loads(to_text(*reports)), list)
    assert loads(to_text(*reports)) == reports


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_what_is_not_a_number_is_never_written(value: float) -> None:
    report = replace(build.report(), input=replace(build.report().input, learning_rate=value))
    with pytest.raises(ValueError, match="JSON compliant"):
        to_text(report)


def test_fields_of_a_later_version_are_passed_over() -> None:
    later = document() | {"schema": "memcurse.report/2.4", "mood": "sunny"}
    assert from_json(later) == MADE


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        *((f"memcurse.report/{n}", "this version reads memcurse.report/2") for n in (3, 11, "")),
        *((schema, "not a memcurse report") for schema in ("sarif", 1, None)),
    ],
)
def test_another_major_schema_and_what_is_no_report_are_refused(schema: Any, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        from_json(document() | {"schema": schema})


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("version",), 3, "version: expected `str`, got `int`"),
        (("verdict",), "fine", "verdict: invalid enum value 'fine'"),
        (("verdict",), [], "verdict: expected `str`"),
        (("layers",), {}, "layers: expected `array`"),
        (("layers", 1), "rnn", r"layers\[1\]: expected `object`"),
        (("layers", 0, "eigenvalues", "count"), 1.5, r"layers\[0\]\.eigenvalues\.count: "),
        (("layers", 0, "eigenvalues", "count"), True, "count: expected `int`"),
        (("layers", 0, "eigenvalues", "values"), [[1.0]], r"\[0\]: expected `array` of length"),
        (("layers", 0, "input_dependent"), 1, "expected `bool`"),
        (("layers", 0, "state", "second_moment", "max"), "1", "max: expected `float"),
        (("layers", 0, "state", "second_moment", "max"), 10**400, "out of range"),
        (("layers", 0, "state", "second_moment", "max"), float("nan"), "not finite"),
        (("input", "autocorrelation", 0), [1, 0], "expected `object`"),
        (("input", "autocorrelation", 0, "rho"), None, r"\[0\]\.rho: expected `float`"),
    ],
)
def test_a_wrong_field_is_named(path: tuple, value: object, message: str) -> None:
    assert re.search(message, refusal(document(), path, value))


def test_a_missing_field_is_named() -> None:
    wrong = document()
    del wrong["layers"][0]["eigenvalues"]["count"]
    with pytest.raises(MemcurseError, match=r"layers\[0\]\.eigenvalues: .* field `count`"):
        from_json(wrong)


@pytest.mark.parametrize("text", ["", "{", "[1, 2", "[" * 100_000, "\xff\xfe\0", "1" * 5000])
def test_what_is_not_json_is_one_line(text: str) -> None:
    with pytest.raises(MemcurseError, match="not JSON") as caught:
        loads(text)
    assert "\n" not in str(caught.value)


def test_json_that_is_no_object_is_refused() -> None:
    with pytest.raises(MemcurseError, match="not a JSON object"):
        loads("3")


def first(name: str) -> dict[str, Any]:
    """What version 0.1 wrote of a sample: of the GRU with ``--spectra``."""
    return json.loads((FIRST / f"{name}.json").read_text())


@pytest.mark.parametrize(
    ("name", "verdict", "memory"),
    [("dense_linear_rnn", "cursed", None), ("lru", "ok", 339.3566568930473)],
)
def test_a_report_of_version_0_1_is_judged_by_its_usable_rate(
    name: str, verdict: str, memory: float | None
) -> None:
    report, now = from_json(first(name)), inspect(build.SAMPLES / f"{name}.safetensors")
    (layer,), (expected,) = report.layers, now.layers
    assert (report.verdict, layer.verdict, expected.verdict) == (verdict, verdict, verdict)
    assert report.memory == layer.memory == memory
    assert expected.memory == (memory and pytest.approx(memory))
    assert report.usable_rate == layer.usable_rate
    rate, known = layer.usable_rate, expected.usable_rate
    assert (rate.low, rate.rate, rate.high) == pytest.approx((known.low, known.rate, known.high))
    assert rate.limited_by == known.limited_by
    assert [one.learning_rate for one in layer.parameters] == [1e-3] * len(layer.parameters)
    # What 0.1 said of its own verdict, and of a rate to stay below, is left behind.
    assert "0.1.0" in report.sentence
    assert not {"MC201", "MC202", "MC203", "MC204", "MC207"} & {f.code for f in layer.findings}
    assert loads(to_text(report)) == [report]


def test_gates_that_version_0_1_called_ok_were_not_judged() -> None:
    document = first("gru")
    assert document["verdict"] == "ok"
    report = from_json(document)
    assert report.verdict == report.layers[0].verdict == "not_judged"
    assert report.layers[0].not_judged == report.usable_rate.reason
    assert report.memory is None  # one eigenvalue of its whole step never decays
    del document["layers"][0]["hidden_spectra"]
    assert from_json(document).memory == pytest.approx(4.343, rel=1e-3)


def test_renamed_fields_of_version_0_1_are_found() -> None:
    document = first("lru")
    group = {"name": "nu_log", "tensor": "nu_log", "stable_lr": 0.5, "learning_rate": 0.5}
    rates = {"rest": 1e-3, "limit": 0.1, "groups": [group | {"relative": 1.0}], "sharpness": None}
    document["layers"][0]["learning_rates"] = rates | {"sharpness_reason": "none"}
    document["not_recurrent"] = [{"kind": "attention", "count": 9, "examples": ["a", "b"]}]
    report = from_json(document)
    assert report.layers[0].learning_rates.groups[0].effect_rate == 0.5
    assert report.not_recurrent[0].names == ("a", "b")
    still = document["layers"][0] | {"parameters": [], "usable_rate": None}
    assert from_json(document | {"layers": [still]}).verdict == "ok"


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("input",), 3, "input: expected `object`"),
        (("input", "learning_rate"), "fast", "input.learning_rate: expected `float`"),
        (("layers",), None, "layers: expected `array`"),
        (("layers", 0), "rnn", r"layers\[0\]: expected `object`"),
        (("layers", 0, "parameters"), {}, "parameters: expected `array`"),
        (("layers", 0, "parameters", 0), 1, r"parameters\[0\]: expected `object`"),
        (("layers", 0, "usable_rate", "rate"), "1", "usable_rate.rate: expected `float"),
        (("layers", 0, "usable_rate"), [], "usable_rate: expected `object"),
        (("layers", 0, "eigenvalues", "time_constant"), 7, "time_constant: expected `object`"),
        (("layers", 0, "hidden_spectra"), [{}], "missing required field `name`"),
        (("layers", 0, "what_if"), 1, "what_if: expected `array`"),
        (("layers", 0, "learning_rates"), {"groups": 1}, "learning_rates.groups: expected"),
        (("not_recurrent",), ["a"], r"not_recurrent\[0\]: expected `object`"),
    ],
)
def test_a_broken_report_of_version_0_1_is_one_line(
    path: tuple, value: object, message: str
) -> None:
    assert re.search(message, refusal(first("lru"), path, value))
