"""What counts as worst, which groups share a row, which findings are the same."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from reports import build

from memcurse_cli.reports.ranking import shared, told_once
from memcurse_cli.schema.figures import effect_rank
from memcurse_cli.schema.report import Finding, LayerReport


def sized(index: int, size: int, effect: float | None = 0.01) -> LayerReport:
    return build.layer(f"layers.{index}", "lru", [9.0] * size, [build.parameter("nu", effect)])


def test_a_divergent_effect_is_worse_than_any_other() -> None:
    groups = [build.parameter(name, effect) for name, effect in (("a", 50.0), ("b", None))]
    assert max(groups, key=effect_rank).name == "b"


def test_groups_of_one_family_and_name_share_a_row_under_the_worst_of_them() -> None:
    layers = [sized(0, 8, 0.1), sized(1, 8, None), replace(sized(2, 8, 0.2), family="s5")]
    found = shared(layers, lambda layer: layer.parameters, effect_rank)
    told = [([group.step_effect for group in groups], layer) for groups, layer in found]
    assert told == [([None, 0.1], "layers.1"), ([0.2], "layers.2")]
    every = shared(layers, lambda layer: layer.parameters, effect_rank, every=True)
    assert [layer for _, layer in every] == ["layers.1", "layers.2", "layers.0"]


@pytest.mark.parametrize(
    ("code", "messages", "worst", "merged"),
    [
        ("MC202", ("moves it by 12 %", "moves it by 1.2e3 %"), "b", "moves it by 12 - 1.2e3 %"),
        ("MC207", ("about 0.0051: it", "about 0.0104: it"), "a", "about 0.0051 - 0.0104: it"),
        ("MC302", ("above 2e-5 (sharp)", "above 1e-5 (sharp)"), "b", "above 1e-5 - 2e-5 (sharp)"),
        (
            "MC101",
            ("1 of 9 eigenvalues never decays", "3 of 9 eigenvalues never decay"),
            "b",
            "1 - 3 of 9 eigenvalues never decay",
        ),
        ("MC401", ("nu_1 in bf16 20 %", "nu_1 in bf16 3 %"), "a", "nu_1 in bf16 3 - 20 %"),
    ],
)
def test_a_shared_finding_spans_the_figures_of_its_layers(
    code: str, messages: tuple[str, str], worst: str, merged: str
) -> None:
    advice = ("stay below 3e-3, known within 3", "stay below 1e-3, known within 3")
    layers = [
        build.layer(name, "lru", [1.0], [], (Finding(code, "warning", message, said, ""),))
        for name, message, said in zip("ab", messages, advice, strict=True)
    ]
    (told,) = told_once(build.report(*layers))
    assert told.layer.name == worst
    assert told.finding.message == merged
    assert told.finding.advice == "stay below 1e-3, known within 3"


def test_numbers_within_names_are_not_figures() -> None:
    advice = ("keep nu (rnn.0.nu) in float32", "keep nu (rnn.1.nu) in float32")
    layers = [
        build.layer(name, "lru", [1.0], [], (Finding("MC401", "info", f"nu by {name}", said, ""),))
        for name, said in zip("12", advice, strict=True)
    ]
    (told,) = told_once(build.report(*layers))
    assert told.finding.advice == advice[1]
