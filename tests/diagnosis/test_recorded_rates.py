"""The verdict at the rates that a checkpoint records."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from diagnosis.build import codes, drawn_lru
from safetensors.torch import save_file

from memcurse_cli import inspect
from memcurse_cli.reports.answer import assumed_words, sensitivity_words
from memcurse_cli.schema.report import Report

CURSED, CALM = 0.1, 1e-5


@pytest.fixture
def lru() -> torch.nn.ParameterDict:
    """An LRU of 16 units, whose usable rate lies between `CURSED` and `CALM`."""
    drawn = drawn_lru(16, (0.001, 0.01))
    return torch.nn.ParameterDict({name: torch.tensor(value) for name, value in drawn.items()})


def trained(path: Path, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> Path:
    """A checkpoint whose optimizer has the rates that it was made with."""
    now = [group["lr"] for group in optimizer.param_groups]
    for group in optimizer.param_groups:
        group["lr"] = 0.0
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    for group, rate in zip(optimizer.param_groups, now, strict=True):
        group["lr"] = rate
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, path)
    return path


def said(report: Report) -> tuple[Any, ...]:
    taken = report.input
    return report.verdict, taken.learning_rate, taken.learning_rate_source, taken.optimizer


def test_a_recorded_rate_is_judged_and_an_option_overrides_it(
    lru: torch.nn.ParameterDict, tmp_path: Path
) -> None:
    optimizer = torch.optim.AdamW(lru.parameters(), lr=CALM)
    optimizer.param_groups[0]["initial_lr"] = CURSED
    path = trained(tmp_path / "model.pt", lru, optimizer)
    report = inspect(path)
    assert said(report) == ("cursed", CURSED, "AdamW's initial_lr", "AdamW")
    assert report.input.current_learning_rate == CALM
    assert report.sentence.startswith("One AdamW step at 0.1 on ")
    assert "yours, 0.1 (AdamW's initial_lr), is " in report.sentence
    assert assumed_words(report.input).endswith("rate 0.1 (AdamW's initial_lr), now 1e-5")
    given = inspect(path, learning_rate=CALM)
    assert said(given) == ("ok", CALM, "option", "AdamW")
    assert given.input.current_learning_rate is None
    assert f"yours, {CALM:.0e}".replace("e-0", "e-") + ", is " in given.sentence


@pytest.mark.parametrize("recurrent", [CALM, CURSED])
def test_a_group_is_judged_at_its_own_rate(
    recurrent: float, lru: torch.nn.ParameterDict, tmp_path: Path
) -> None:
    """The largest rate of all groups is 0.1; the recurrent ones may be in the other."""
    other = CURSED if recurrent == CALM else CALM
    own = {name for name in lru if name.endswith("_log")}
    groups = [
        {"params": [(name, lru[name]) for name in lru if (name in own) == inside], "lr": rate}
        for inside, rate in ((True, recurrent), (False, other))
    ]
    path = trained(tmp_path / "model.pt", lru, torch.optim.AdamW(groups))
    (layer,) = (report := inspect(path)).layers
    assert report.input.learning_rate == CURSED
    assert layer.learning_rate == recurrent
    assert {group.learning_rate for group in layer.parameters} == {recurrent}
    assert report.verdict == ("ok" if recurrent == CALM else "cursed")
    assert ("(of its group)" in report.sentence) == (recurrent == CALM)
    (layer,) = inspect(path, learning_rate=2e-5).layers
    assert {group.learning_rate for group in layer.parameters} == {2e-5}


def test_a_tied_weight_has_the_rate_of_the_one_that_is_stored(
    lru: torch.nn.ParameterDict, tmp_path: Path
) -> None:
    model = torch.nn.ModuleDict({"first": lru, "again": lru, "head": torch.nn.Linear(1, 2)})
    named = list(model.named_parameters())
    groups = [
        {"params": [one for one in named if one[0].startswith(start)], "lr": rate}
        for start, rate in (("first", CALM), ("head", CURSED))
    ]
    path = trained(tmp_path / "model.pt", model, torch.optim.Adam(groups))
    assert {layer.learning_rate for layer in inspect(path).layers} == {CALM}


def test_what_does_not_step_as_adam_does_is_not_judged_unless_it_has_no_name(
    lru: torch.nn.ParameterDict, tmp_path: Path
) -> None:
    for make in (torch.optim.SGD, torch.optim.Adagrad):
        path = trained(tmp_path / "model.pt", lru, make(lru.parameters(), lr=CURSED))
        reason = f"it is trained with {make.__name__}, and usable rates were measured with Adam"
        for rate in (None, CALM):
            report = inspect(path, learning_rate=rate)
            (layer,) = report.layers
            assert report.verdict == "not_judged"
            assert layer.not_judged == reason
            assert layer.usable_rate.rate is None
            assert sensitivity_words(report).endswith("of the state per Adam step")
        # Plain gradient descent alone has its own stable rate.
        assert ("MC302" in codes(inspect(path).layers[0])) == (make is torch.optim.SGD)
    for nameless in (torch.optim.Rprop, torch.optim.Adamax):
        report = inspect(trained(tmp_path / "a.pt", lru, nameless(lru.parameters(), lr=CURSED)))
        assert said(report) == ("cursed", CURSED, "the optimizer's lr", None)
        assert report.sentence.startswith("One Adam step at 0.1 on ")


def test_a_log_beside_the_weights_is_used(lru: torch.nn.ParameterDict, tmp_path: Path) -> None:
    save_file(lru.state_dict(), path := tmp_path / "model.safetensors")
    assert said(inspect(path))[1:] == (1e-3, "assumed", None)
    log = tmp_path / "trainer_state.json"
    log.write_text('{"log_history": [{"learning_rate": 0.1}, {"learning_rate": 1e-5}]}')
    assert said(inspect(path)) == ("cursed", CURSED, "trainer_state.json", None)
    assert said(inspect(tmp_path)) == ("cursed", CURSED, "trainer_state.json", None)
