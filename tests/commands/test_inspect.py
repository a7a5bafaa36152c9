"""`memcurse inspect`: what a user types, and what comes back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from end_to_end.command import SAMPLES
from reports.page_reader import Reader

from memcurse_cli.__main__ import run
from memcurse_cli.diagnosis import inspection

GRU, LRU = (str(SAMPLES / f"{name}.safetensors") for name in ("gru", "lru"))


def layer(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict:
    assert run(["inspect", GRU, *arguments, "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)["layers"]
    return found


def test_spectra_are_in_the_json_only_where_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    assert layer(capsys)["hidden_spectra"] == []
    asked = layer(capsys, "--spectra")
    assert {spectrum["name"]: spectrum["order"] for spectrum in asked["hidden_spectra"]} == {
        "reset": 64,
        "update": 64,
        "new": 64,
        "jacobian": 64,
    }
    jacobian = asked["hidden_spectra"][-1]
    assert jacobian["spectral_radius"] > 1
    assert jacobian["time_constant"] is None
    assert asked["hidden_feedback"] is True
    assert asked["hidden_spectra_reason"] is None


def test_a_page_takes_its_hessians_while_it_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    opened = []
    open_once = inspection.open_checkpoint

    def counted(path: Any) -> Any:
        opened.append(path)
        return open_once(path)

    monkeypatch.setattr(inspection, "open_checkpoint", counted)
    assert run(["inspect", LRU, "--format", "html"]) == 0
    assert opened == [LRU]
    (charts,) = json.loads(Reader(capsys.readouterr().out).scripts["memcurse-charts"])
    assert [layer["hessian"] is not None for layer in charts["layers"]] == [True]


GRU = str(SAMPLES / "gru.safetensors")


def table(page: str) -> list[str]:
    return page.split("What if\n")[1].split("\n\n")[0].splitlines()


LRU = str(SAMPLES / "lru.safetensors")


def section(page: str, title: str) -> str:
    return " ".join(page.split(f"\n{title}\n")[1].split("\n\n")[0].split())


@pytest.fixture
def trained(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    model = {
        "rnn.nu_log": torch.nn.Parameter(torch.linspace(-4, -1, 10)),
        "rnn.theta_log": torch.nn.Parameter(torch.linspace(-3, 1, 10)),
    }
    optimizer = torch.optim.AdamW(model.values(), lr=2e-3)
    for _ in range(5):
        optimizer.zero_grad()
        gradient = torch.randn(10)
        sum((value * gradient).sum() for value in model.values()).backward()  # type: ignore[union-attr]
        optimizer.step()
    state = {name: value.detach() for name, value in model.items()}
    torch.save({"model": state, "optimizer": optimizer.state_dict()}, tmp_path / "step.pt")
    torch.save(optimizer.state_dict(), tmp_path / "optimizer.pt")
    torch.save(state, tmp_path / "model.pt")
    return tmp_path


def test_adam_is_read_where_the_checkpoint_holds_it(
    trained: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["inspect", str(trained / "step.pt")]) == 0
    page = capsys.readouterr().out
    assert max(map(len, page.splitlines())) <= 80
    table = section(page, "Adam's effective steps")
    assert "nu_log" in table
    assert "State of torch.optim for 2 weights after 5 steps" in table
    assert "lr = 0.002" in table

    beside = ["inspect", str(trained / "model.pt"), "--optimizer", str(trained / "optimizer.pt")]
    assert run(beside) == 0
    assert section(capsys.readouterr().out, "Adam's effective steps") == table


def test_sgd_is_told_apart(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = {"nu_log": torch.nn.Parameter(torch.zeros(4)), "theta_log": torch.zeros(4)}
    optimizer = torch.optim.SGD([model["nu_log"]], lr=0.1, momentum=0.9)
    model["nu_log"].sum().backward()
    optimizer.step()
    torch.save({"model": model, "optimizer": optimizer.state_dict()}, tmp_path / "sgd.pt")
    assert run(["inspect", str(tmp_path / "sgd.pt")]) == 0
    table = section(capsys.readouterr().out, "Adam's effective steps")
    assert "None: the optimiser's state has no exp_avg_sq: it keeps momentum_buffer" in table


def test_an_ambiguous_state_says_why(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = {
        name: torch.nn.Parameter(torch.tensor(np.linspace(-3, -1, 9)))
        for name in ("nu_log", "theta_log")
    }
    optimizer = torch.optim.Adam([{"params": [value]} for value in reversed(model.values())])
    sum(value.sum() for value in model.values()).backward()  # type: ignore[union-attr]
    optimizer.step()
    torch.save({"model": model, "optimizer": optimizer.state_dict()}, tmp_path / "groups.pt")
    assert run(["inspect", str(tmp_path / "groups.pt")]) == 0
    table = section(capsys.readouterr().out, "Adam's effective steps")
    assert "nu_log, theta_log left out: 2 weights have its shape, in several groups" in table
