"""What docs/python.md and docs/training-loop.md show runs, and `groups` is what they say."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import torch
from end_to_end.command import ROOT
from msgspec.structs import replace

from memcurse_cli import Report, inspect
from memcurse_cli.errors import UsageError

CURSED = "sample_checkpoints/dense_linear_rnn.safetensors"


def blocks(page: str) -> list[str]:
    """The Python of a page."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    return re.findall(r"```python\n(.*?)```", text, re.DOTALL)


def test_the_page_on_python_runs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ROOT)
    names: dict[str, Any] = {}
    for block in blocks("python.md"):
        exec(block, names)
    shown = capsys.readouterr().out
    assert shown.startswith("CURSED")
    assert "Training bears a rate" in shown


def test_the_page_on_training_runs_with_any_logger_and_optimizer() -> None:
    logged: list[dict[str, float]] = []
    model = torch.nn.Module()
    for name, size in (("A", (4, 4)), ("B", (4, 1)), ("C", (1, 4))):
        model.register_parameter(name, torch.nn.Parameter(0.1 * torch.ones(size)))
    logger = type("Logger", (), {"log": staticmethod(logged.append)})
    names: dict[str, Any] = {"model": model, "logger": logger, "torch": torch}
    for block in blocks("training-loop.md")[:2]:
        exec(block, names)
    (found,) = logged
    assert found["memcurse/memory"] == names["report"].memory
    assert sum(len(one["params"]) for one in names["optimizer"].param_groups) == 3


def slow(state: dict[str, Any], *layers: str) -> Report:
    """A report that finds the rate of these layers, or of all, ten times too large."""
    report = inspect(state, learning_rate=1e-3)
    usable = replace(report.usable_rate, rate=1e-4)
    return replace(
        report,
        layers=tuple(
            replace(one, usable_rate=usable if not layers or one.name in layers else None)
            for one in report.layers
        ),
    )


def lru(prefix: str) -> dict[str, Any]:
    return {prefix + name: np.zeros(3) for name in ("nu_log", "theta_log")}


def named(*names: str) -> list[tuple[str, torch.nn.Parameter]]:
    return [(name, torch.nn.Parameter(torch.zeros(3))) for name in names]


def test_a_layer_that_bears_its_rate_or_was_not_judged_keeps_it_and_does_not_decay() -> None:
    report = slow({**lru("a."), **lru("b.")}, "a")
    assert report.groups() == [
        {"params": ["a.nu_log", "a.theta_log"], "lr": 1e-4, "weight_decay": 0.0},
        {"params": ["b.nu_log", "b.theta_log"], "lr": 1e-3, "weight_decay": 0.0},
        {"params": [], "lr": 1e-3},
    ]
    fine = inspect(ROOT / CURSED, learning_rate=1e-6)
    recurrent = {"params": ["A"], "lr": 1e-6, "weight_decay": 0.0}
    assert fine.groups() == [recurrent, {"params": [], "lr": 1e-6}]


@pytest.mark.parametrize(
    ("ours", "other", "theirs"),
    [
        *(("rnn.", "head", "_orig_mod.module.rnn."), ("model.rnn.", "head", "rnn.")),
        *(("", "head", "rnn."), ("", "other.nu_log", ""), ("model.", "other.nu_log", "")),
    ],
)
def test_a_prefix_on_either_side_is_the_same_parameter_and_an_exact_name_comes_first(
    ours: str, other: str, theirs: str
) -> None:
    parameters = named(other, theirs + "nu_log", theirs + "theta_log")
    optimizer = torch.optim.AdamW(slow(lru(ours)).groups(parameters))
    recurrent, rest = optimizer.param_groups
    assert [id(one) for one in recurrent["params"]] == [id(one) for _, one in parameters[1:]]
    assert (recurrent["lr"], rest["lr"]) == (1e-4, 1e-3)
    assert [id(one) for one in rest["params"]] == [id(parameters[0][1])]


def test_what_is_no_parameter_is_passed_over_where_it_needs_no_rate_of_its_own() -> None:
    fine = inspect(lru("a."), learning_rate=1e-6)
    ((_, head),) = parameters = named("head")
    (rest,) = fine.groups(parameters)
    assert rest["params"][0] is head


def test_all_that_running_a_gated_layer_moves_is_slowed() -> None:
    network = torch.nn.GRU(2, 3)
    report = slow(network.state_dict())
    optimizer = torch.optim.AdamW(report.groups(network.named_parameters()))
    recurrent, rest = optimizer.param_groups
    assert {id(one) for one in recurrent["params"]} == {*map(id, network.parameters())}
    assert rest["params"] == []


def test_a_parameter_that_is_missing_or_may_be_several_is_refused() -> None:
    for names, words in (
        (("nu_log",), "theta_log is none of the parameters"),
        (("a.nu_log", "b.nu_log", "theta_log"), "nu_log may be a.nu_log or b.nu_log"),
    ):
        with pytest.raises(UsageError, match=words):
            slow(lru("")).groups(named(*names))
