"""docs/rewrite.md and docs/tutorial.md: their commands and their Python run, one after another."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from end_to_end.command import ROOT, SAMPLES, memcurse
from safetensors.numpy import load_file

DOCS = ROOT / "docs"
BLOCK = re.compile(r"```(sh|python)\n(.*?)```", re.DOTALL)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """What each block of a page prints, or the names that its Python leaves."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sample_checkpoints").symlink_to(SAMPLES)

    def of_page(page: str) -> list[Any]:
        done: list[Any] = []
        for kind, text in BLOCK.findall((DOCS / page).read_text("utf-8")):
            if kind == "python":
                names: dict[str, Any] = {}
                exec(text, names)
                done.append(names)
            else:
                result = memcurse(*shlex.split(text)[1:], folder=tmp_path)
                assert result.returncode == 0, result.stderr
                done.append(result.stdout)
        return done

    return of_page


def test_the_files_load_and_run_in_pytorch_and_flax(run: Any) -> None:
    dense = load_file(SAMPLES / "dense_linear_rnn.safetensors")
    x = np.random.default_rng(0).standard_normal((200, 1)).astype(np.float32)
    state, wanted = np.zeros(64), []
    for step in x:
        state = dense["A"].astype(np.float64) @ state + dense["B"] @ step
        wanted.append(dense["C"] @ state + dense["D"] @ step)
    written, in_torch, _, in_flax = run("rewrite.md")
    (shown,) = re.findall(r"```text\n(.*?)```", (DOCS / "rewrite.md").read_text("utf-8"), re.DOTALL)
    assert [*map(str.rstrip, written.splitlines())] == shown.splitlines()
    for found in (
        in_torch["model"](torch.tensor(x[None]))[0].detach().numpy(),
        np.asarray(in_flax["model"].apply(in_flax["variables"], x)),
    ):
        assert np.abs(found - wanted).max() < 1e-3 * np.std(wanted)


def test_the_cure_of_the_tutorial_works(run: Any) -> None:
    """Rounding sends training another way on another machine, to about the same loss."""
    written, trained, moved = run("tutorial.md")
    assert "usable rate  5.3e-5 (1.8e-5 to 1.6e-4)  0.0045" in written
    assert trained["before"] == pytest.approx(0.47, rel=0.05)
    assert trained["after"] < trained["before"] / 1000
    assert re.search(r"never fade +5 +0\n", moved)
