"""Which checkpoints a run consists of, and what says their steps."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from checkpoints.web import unused_port
from safetensors.numpy import save_file
from tracking.build import state, write, write_run

from memcurse_cli.errors import CheckpointError, UsageError
from memcurse_cli.tracking.discovery import (
    FoundStep,
    compile_pattern,
    find_checkpoints,
    find_step,
    step_in_directory,
    step_in_name,
)


def names(given: list[str | Path], root: Path) -> list[str]:
    """What is found, relative to a folder."""
    found = find_checkpoints([str(one) for one in given])
    return [Path(path).relative_to(root).as_posix() for path in found]


def test_a_directory_stands_for_its_numbered_files(tmp_path: Path) -> None:
    write_run(tmp_path, (0.5, 0.9))
    for other in ("last.safetensors", "optimizer.pt", "notes_3.txt", ".step_4.safetensors"):
        (tmp_path / other).write_bytes(b"")
    assert names([tmp_path], tmp_path) == ["step_0.safetensors", "step_100.safetensors"]


def test_directories_of_checkpoints_are_the_run(tmp_path: Path) -> None:
    for step in (500, 1000):
        write(tmp_path / f"checkpoint-{step}" / "model.safetensors", 0.9)
        (tmp_path / f"checkpoint-{step}" / "optimizer.pt").write_bytes(b"")
    write(tmp_path / "tmp-checkpoint-1500" / "model.safetensors", 0.9)
    write(tmp_path / "logs" / "model.safetensors", 0.9)
    write(tmp_path / "model.safetensors", 0.9)  # what the trainer writes at its end
    (tmp_path / "checkpoint-9").mkdir()
    assert names([tmp_path], tmp_path) == ["checkpoint-1000", "checkpoint-500"]
    for one in ("checkpoint-1000", "checkpoint-1*"):
        assert names([tmp_path / one], tmp_path) == ["checkpoint-1000"]


def test_what_is_not_there_is_an_error_unless_it_is_waited_for(tmp_path: Path) -> None:
    for missing in (tmp_path / "absent", tmp_path / "*.safetensors", tmp_path):
        with pytest.raises(CheckpointError, match=r"check the path|no checkpoint matches"):
            find_checkpoints([str(missing)])
        assert find_checkpoints([str(missing)], waiting=True) == []


@pytest.mark.parametrize(
    ("name", "step"),
    [
        *(("step_1000.safetensors", 1000), ("STEP-7.ckpt", 7), ("checkpoint-500/", 500)),
        *(("epoch=3-step=1200-v1.ckpt", 1200), ("step=5-of-10.ckpt", 5)),
        *(("epoch=3-val_loss=0.31.ckpt", 3), ("checkpoint_500_step_20.pt", 20)),
        *(("global_step1000", 1000), ("iter_0000100", 100), ("10000steps.pt", 10000)),
        *(("lru-20k-300-steps.pt", 300), ("step_1000.weights.h5", 1000), ("model_0005.pt", 5)),
        *(("5000.pt", 5000), ("ckpt.1000.pt", 1000), ("last.ckpt", None), ("loss=0.31.pt", None)),
        *(("model.safetensors.index.json", None), ("model-00001-of-00002.safetensors", None)),
        *(("footstep12a.pt", None), (".step_5.pt", None), (f"step_{10**30}.pt", None)),
    ],
)
def test_a_name_says_its_step(name: str, step: int | None) -> None:
    assert step_in_name(name) == step


def test_what_the_file_holds_comes_before_its_name(tmp_path: Path) -> None:
    path = write(tmp_path / "step_5.safetensors", 0.9, {"global_step": "7", "step": "6"})
    assert find_step(str(path)) == FoundStep(7, "metadata", in_name=5)
    same = write(tmp_path / "step_8.safetensors", 0.9, {"step": "8"})
    assert find_step(str(same)) == FoundStep(8, "metadata")
    useless = write(tmp_path / "step_9.safetensors", 0.9, {"step": "nine"})
    assert find_step(str(useless)) == FoundStep(9, "name")
    path = tmp_path / "weights.safetensors"
    save_file({**state(0.9), "step": np.array([17.0])}, path)  # a scalar among the weights
    assert find_step(str(path)) == FoundStep(17, "metadata")
    # A directory needs a word or nothing but digits.
    assert [step_in_directory(name) for name in ("1000", "checkpoint-500")] == [1000, 500]
    assert step_in_directory("experiment_42") is None


def test_torch_dicts_say_their_step(tmp_path: Path) -> None:
    weights = {name: torch.tensor(values) for name, values in state(0.9).items()}
    path = tmp_path / "last.pt"
    for key in ("step", "global_step", "iteration", "iter_num"):
        for step in (12, torch.tensor(12), torch.tensor([12.0])):
            torch.save({"model": weights, key: step, "epoch": 3}, path)
            assert find_step(str(path)) == FoundStep(12, "metadata")
    torch.save({"model": weights, "step": 1.5}, path)
    assert find_step(str(path)) is None


def test_a_trainer_says_its_step_beside_the_weights(tmp_path: Path) -> None:
    path = write(tmp_path / "out" / "model.safetensors", 0.9)
    assert find_step(str(path)) is None
    beside = path.with_name("trainer_state.json")
    beside.write_text(json.dumps({"global_step": 500, "log_history": [{"grad_norm": math.nan}]}))
    assert find_step(str(path)) == FoundStep(500, "trainer state")
    assert find_step(str(path.parent)) == FoundStep(500, "trainer state")
    for damaged in ("[1]", "{", '{"global_step": "x"}', '{"global_step": -1}'):
        beside.write_text(damaged)
        assert find_step(str(path)) is None
    within = write(tmp_path / "2024" / "experiment" / "model.safetensors", 0.9)
    assert find_step(str(within)) is None
    moved = path.parent.rename(tmp_path / "checkpoint-20") / "model.safetensors"
    assert find_step(str(moved)) == FoundStep(20, "directory")


def test_a_pattern_overrides_everything(tmp_path: Path) -> None:
    path = str(write(tmp_path / "u12_step_5.safetensors", 0.9, {"step": "7"}))
    for pattern in (r"u(\d+)_", r"u\d+"):
        assert find_step(path, compile_pattern(pattern)) == FoundStep(12, "pattern")
    assert find_step(path, compile_pattern("absent")) is None
    with pytest.raises(UsageError, match="not a number"):
        find_step(path, compile_pattern("(step)"))
    for none in ("(", r"(\d)(\d)", "*", "(" * 10_000, "a{" + "9" * 30 + "}"):
        with pytest.raises(UsageError, match="--step-pattern"):
            compile_pattern(none)


def test_the_signature_of_a_url_says_no_step() -> None:
    for name, step in (("model.pt", None), ("step_7/model.pt", FoundStep(7, "directory"))):
        url = f"http://127.0.0.1:{unused_port()}/{name}?dir=step_9/0&sig=secret_12"
        assert find_step(url) == step
        by_pattern = find_step(url, compile_pattern(r"step_(\d+)"))
        assert (by_pattern is None) == (step is None)
        assert find_step(url, compile_pattern(r"(secret_\d+)")) is None
