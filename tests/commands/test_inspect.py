"""`memcurse inspect`: what a user types, and what comes back."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from end_to_end.command import SAMPLES, memcurse
from reports.page_reader import Reader

from memcurse_cli.__main__ import run
from memcurse_cli.diagnosis import inspection

LRU, GRU = (str(SAMPLES / f"{name}.safetensors") for name in ("lru", "gru"))


def test_a_page_is_written_with_its_hessians_while_a_checkpoint_is_read_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    opened: list[Any] = []
    open_once = inspection.open_checkpoint
    monkeypatch.setattr(
        inspection, "open_checkpoint", lambda path: opened.append(path) or open_once(path)
    )
    assert run(["inspect", LRU, "--format", "html"]) == 0
    (charts,) = json.loads(Reader(capsys.readouterr().out).scripts["memcurse-charts"])
    assert [layer["hessian"] is not None for layer in charts["layers"]] == [True]
    beside = tmp_path / "page.html"
    assert run(["inspect", LRU, "--html", str(beside)]) == 0
    assert capsys.readouterr().out.startswith("OK  ")
    assert [*Reader(beside.read_text()).scripts]
    assert opened == [LRU, LRU]


def test_several_processes_print_what_one_does(tmp_path: Path) -> None:
    one, two = (memcurse("inspect", LRU, GRU, *jobs) for jobs in ((), ("--jobs", "2")))
    assert one.stdout == two.stdout
    (tmp_path / "empty").touch()
    done = memcurse("inspect", LRU, tmp_path / "empty", "--jobs", "2")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert "empty" in done.stderr


def titles(*options: str) -> list[str]:
    """What stands above tables and lists."""
    lines = ["", *memcurse("inspect", GRU, *options).stdout.splitlines()]
    return [now for before, now in pairwise(lines) if not before and now[:1].isalpha()]


ANSWER = ["NOT JUDGED", "What to do", "Spectrum", "Assumed"]
TOLD = [ANSWER[0], *ANSWER[2:]]  # where nothing is left to look at


@pytest.mark.parametrize(
    ("options", "sections"),
    [
        ((), ANSWER),
        (("--gates",), [*TOLD, "Moving gates"]),
        (("--input-scale", "2"), [*TOLD, "Moving gates"]),
        (("--spectra",), [*ANSWER[:2], "Why", *ANSWER[2:], "Hidden weights", "State at work"]),
        (("--simulate",), [*ANSWER, "Simulated"]),
        (("--learning-rates",), [*ANSWER, "Learning rates"]),
        (("--as", "lru"), [*ANSWER, "What if"]),
        (("--section", "gates"), ["Moving gates"]),
        (("--section", "hidden", "--section", "layers"), ["Hidden weights", "Layers"]),
        (("--section", "layers", "--explain"), ["Layers", "What it means"]),
    ],
)
def test_what_is_asked_for_stands_below_the_answer(
    options: tuple[str, ...], sections: list[str]
) -> None:
    found = titles(*options)
    assert len(found) == len(sections)
    assert all(title.startswith(name) for title, name in zip(found, sections, strict=True))


def test_full_has_one_legend_at_its_end_and_only_where_it_is_asked_for() -> None:
    full = titles("--full")
    assert "What it means" not in full
    assert titles("--explain") == titles("--full", "--explain") == [*full, "What it means"]


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
    page = memcurse("inspect", step, "--full").stdout
    table = section(page, "Adam's effective steps")
    assert "nu_log" in table
    assert "State of torch.optim for 2 weights after 5 steps" in table
    assert "lr = 0.002" in table
    assert "Adam's effective steps" not in memcurse("inspect", step).stdout
    beside = memcurse("inspect", tmp_path / "model.pt", "--optimizer", tmp_path / "optimizer.pt")
    assert section(beside.stdout, "Adam's effective steps") == table
