"""What counts as worst, which layers look alike, which findings are the same."""

from __future__ import annotations

import pytest
from reports import build

from memcurse_cli.reports.ranking import alike, told_once, worst_parameter
from memcurse_cli.schema.report import Finding, LayerReport


def sized(index: int, size: int, effect: float = 0.01) -> LayerReport:
    return build.layer(f"layers.{index}", "lru", [9.0] * size, [build.parameter("nu", effect)])


def test_a_divergent_effect_is_worse_than_any_other() -> None:
    groups = [build.parameter(name, effect) for name, effect in (("a", 50.0), ("b", None))]
    worst = worst_parameter(build.layer("rnn", "elman", [1.0, 2.0], groups))
    assert worst is not None
    assert worst.name == "b"


def test_few_layers_keep_their_order_and_many_show_the_worst() -> None:
    many = [sized(index, 8, 0.02 + 0.003 * (index * 37 % 64)) for index in range(64)]
    (group,) = alike(many[:6], all_layers=False)
    assert (group.shown, group.others) == (tuple(many[:6]), ())
    (group,) = alike(many, all_layers=False)
    effects = sorted((layer.parameters[0].step_effect or 0.0 for layer in many), reverse=True)
    assert [layer.parameters[0].step_effect for layer in group.shown] == effects[:3]
    assert len(group.others) == 61
    (group,) = alike(many, all_layers=True)
    assert group.shown == tuple(many)


def test_other_shapes_are_other_groups_until_there_are_too_many() -> None:
    groups = alike([sized(0, 64), sized(1, 64), sized(2, 128)], all_layers=False)
    assert [len(group.shown) for group in groups] == [2, 1]
    groups = alike([sized(index, 8 + index) for index in range(40)], all_layers=False)
    assert [(len(group.shown), len(group.others)) for group in groups] == [(3, 37)]


@pytest.mark.parametrize(
    ("code", "messages", "worst", "merged"),
    [
        ("MC202", ("moves it by 12 %", "moves it by 1.2e3 %"), "b", "moves it by 12 - 1.2e3 %"),
        ("MC207", ("about 0.0051: it", "about 0.0104: it"), "a", "about 0.0051 - 0.0104: it"),
        ("MC302", ("above 2e-5 (sharp)", "above 1e-5 (sharp)"), "b", "above 1e-5 - 2e-5 (sharp)"),
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
    (told,) = told_once(layers)
    assert told.layer.name == worst
    assert told.finding.message == merged
    assert told.finding.advice == "stay below 1e-3, known within 3"


def test_numbers_within_names_are_not_figures() -> None:
    advice = ("keep nu (rnn.0.nu) in float32", "keep nu (rnn.1.nu) in float32")
    layers = [
        build.layer(name, "lru", [1.0], [], (Finding("MC401", "info", f"nu by {name}", said, ""),))
        for name, said in zip("12", advice, strict=True)
    ]
    (told,) = told_once(layers)
    assert told.finding.advice == advice[1]
