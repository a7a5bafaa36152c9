"""What counts as worst, which layers look alike, which findings are the same."""

from __future__ import annotations

from dataclasses import replace

import pytest
from reports import build

from memcurse_cli.reports.ranking import alike, together, told_once, worst_parameter
from memcurse_cli.schema.report import Finding


def test_a_divergent_effect_is_worse_than_any_other() -> None:
    layer = build.layer(
        "rnn",
        "elman",
        [1.0, 2.0],
        [build.parameter("a", 50.0), build.parameter("b", None), build.parameter("c", 0.01)],
    )
    worst = worst_parameter(layer)
    assert worst is not None
    assert worst.name == "b"


def test_few_layers_keep_their_order_and_many_show_the_worst() -> None:
    few = [build.mamba(index) for index in range(6)]
    (group,) = alike(few, all_layers=False)
    assert group.shown == tuple(few)
    assert group.others == ()
    many = [build.mamba(index) for index in range(64)]
    (group,) = alike(many, all_layers=False)
    effects = sorted((layer.parameters[1].step_effect or 0.0 for layer in many), reverse=True)
    assert [layer.parameters[1].step_effect for layer in group.shown] == effects[:3]
    assert len(group.others) == 61
    (group,) = alike(many, all_layers=True)
    assert group.shown == tuple(many)


def test_other_shapes_are_other_groups_until_there_are_too_many() -> None:
    def sized(index: int, size: int) -> build.LayerReport:
        made = build.spread(size, 1, 100)
        return build.layer(f"layers.{index}", "lru", made, [build.parameter("nu_log", 0.01)])

    groups = alike([sized(0, 64), sized(1, 64), sized(2, 128)], all_layers=False)
    assert [len(group.shown) for group in groups] == [2, 1]
    groups = alike([sized(index, 8 + index) for index in range(40)], all_layers=False)
    assert [(len(group.shown), len(group.others)) for group in groups] == [(3, 37)]


def test_a_shared_finding_is_told_once_where_it_is_worst() -> None:
    layers = [build.mamba(index) for index in range(64)]
    (told,) = told_once(layers)
    effects = {layer.name: layer.parameters[1].step_effect or 0.0 for layer in layers}
    assert effects[told.layer.name] == max(effects.values())
    assert told.layers == sum(bool(layer.findings) for layer in layers)


def test_the_parameter_that_a_finding_names_decides_where_it_is_worst() -> None:
    def finding(effect: float) -> Finding:
        return Finding("MC202", "warning", f"a step on theta moves it by {effect} %", "", "")

    def with_theta(name: str, theta: float, other: float) -> build.LayerReport:
        parameters = [build.parameter("theta", theta), build.parameter("other", other)]
        return build.layer(name, "lru", [1.0, 2.0], parameters, (finding(theta),))

    (told,) = told_once([with_theta("a", 0.3, 0.0), with_theta("b", 0.2, 0.9)])
    assert told.layer.name == "a"


def test_figures_of_groups_together_are_the_worst_of_each() -> None:
    large = replace(build.parameter("theta", 9.0, "decorrelating"), max_lr=0.0104)
    small = replace(build.parameter("theta", 0.3, "decorrelating"), max_lr=0.0051)
    turned = replace(build.parameter("theta", 0.2), rounding=build.parameter("", 20.0).rounding)
    one = together([small, large, turned])
    assert (one.step_effect, one.max_lr) == (9.0, 0.005)
    assert one.relative_sensitivity == large.relative_sensitivity
    assert (one.verdict, one.direction) == ("watch", "decorrelating")
    assert one.rounding == turned.rounding


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
