"""`memcurse inspect`: what a user types, and what comes back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from end_to_end.command import SAMPLES, memcurse
from reports.page_reader import Reader

from memcurse_cli.__main__ import run
from memcurse_cli.diagnosis import inspection

LRU = str(SAMPLES / "lru.safetensors")


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


def section(page: str, title: str) -> str:
    return " ".join(page.split(f"\n{title}\n")[1].split("\n\n")[0].split())


def test_adam_is_read_where_the_checkpoint_holds_it(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = {
        f"rnn.{name}": torch.nn.Parameter(torch.linspace(-4, 1, 10))
        for name in ("nu_log", "theta_log")
    }
    optimizer = torch.optim.AdamW(model.values(), lr=2e-3)
    for _ in range(5):
        optimizer.zero_grad()
        torch.stack([(value * torch.randn(10)).sum() for value in model.values()]).sum().backward()
        optimizer.step()
    adam, step = optimizer.state_dict(), tmp_path / "step.pt"
    torch.save({"model": model, "optimizer": adam}, step)
    torch.save(adam, tmp_path / "optimizer.pt")
    torch.save(model, tmp_path / "model.pt")
    page = memcurse("inspect", step).stdout
    table = section(page, "Adam's effective steps")
    assert "nu_log" in table
    assert "State of torch.optim for 2 weights after 5 steps" in table
    assert "lr = 0.002" in table
    beside = memcurse("inspect", tmp_path / "model.pt", "--optimizer", tmp_path / "optimizer.pt")
    assert section(beside.stdout, "Adam's effective steps") == table
