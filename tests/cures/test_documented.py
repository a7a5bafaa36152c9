"""docs/rewrite.md: what it shows loads the files that its commands write, and runs them."""

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

BLOCK = re.compile(r"```(console|sh|python)\n(.*?)```", re.DOTALL)


def test_the_files_load_and_run_in_pytorch_and_flax(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sample_checkpoints").symlink_to(SAMPLES)
    dense = load_file(SAMPLES / "dense_linear_rnn.safetensors")
    x = np.random.default_rng(0).standard_normal((200, 1)).astype(np.float32)
    state, wanted = np.zeros(64), []
    for step in x:
        state = dense["A"].astype(np.float64) @ state + dense["B"] @ step
        wanted.append(dense["C"] @ state + dense["D"] @ step)
    puts_out = []
    for kind, text in BLOCK.findall((ROOT / "docs" / "rewrite.md").read_text(encoding="utf-8")):
        if kind == "python":
            names: dict[str, Any] = {}
            exec(text, names)
            if "variables" in names:
                puts_out.append(np.asarray(names["model"].apply(names["variables"], x)))
            else:
                puts_out.append(names["model"](torch.tensor(x[None]))[0].detach().numpy())
        else:
            line = text.splitlines()[0].removeprefix("$ ")
            assert memcurse(*shlex.split(line)[1:], folder=tmp_path).returncode == 0
    assert len(puts_out) == 2
    for found in puts_out:
        assert np.abs(found - wanted).max() < 1e-3 * np.std(wanted)
