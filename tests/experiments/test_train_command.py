"""`memcurse train`: the file that it writes, and that it writes all of it or nothing."""

from __future__ import annotations

import os
import sys

import numpy as np
import pytest
from experiments.stored import settings_in
from safetensors import safe_open
from safetensors.numpy import load_file

from memcurse_cli.__main__ import run
from memcurse_cli.experiments import training
from memcurse_cli.experiments.settings import NetworkName

TINY = ["--units", "4", "--teacher-units", "2", "--horizon", "8", "--steps", "3", "--batch", "2"]


def train(network, path, *more):
    return run(["train", network, "--output", str(path), *TINY, *more])


def metadata_of(path):
    with safe_open(path, "numpy") as file:
        return file.metadata()


def test_writes_tensors_and_how_they_were_trained(tmp_path, capsys):
    path = tmp_path / "lru.safetensors"
    assert train("lru", path, "--modulus", "0.9", "--learning-rate", "0.02", "--seed", "5") == 0
    shapes = {name: (values.shape, values.dtype.name) for name, values in load_file(path).items()}
    sizes = dict.fromkeys(("nu_log", "theta_log", "gamma_log"), (4,)) | {"D": (1,)}
    sizes |= {"B_re": (4, 1), "B_im": (4, 1), "C_re": (1, 4), "C_im": (1, 4)}
    assert shapes == {name: (size, "float32") for name, size in sizes.items()}
    metadata = metadata_of(path)
    told = {"horizon": "8", "learning_rate": "0.02", "seed": "5", "task": "linear teacher-student"}
    assert {name: metadata[f"memcurse.{name}"] for name in told} == told
    settings = settings_in(metadata)
    assert settings.network is NetworkName.LRU
    assert settings.initial_modulus == settings.modulus == 0.9

    captured = capsys.readouterr()
    assert captured.err == ""  # no terminal, no progress
    before = training.evaluate(settings, training.initialise(settings))
    after = training.evaluate(settings, load_file(path))
    assert f"loss {before:.4g} before, {after:.4g} after 3 steps" in captured.out
    assert metadata["memcurse.loss_after"] == str(after)


def test_without_jax_one_line_says_what_to_install(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "memcurse_cli.experiments.training", None)
    assert train("lru", tmp_path / "lru.safetensors") == 2
    assert "pip install 'memcurse-cli[jax]'" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("place", "reason"),
    [("absent/lru.safetensors", "folder does not exist"), ("folder", "is a directory")],
)
def test_hopeless_output_is_refused_before_training(tmp_path, capsys, monkeypatch, place, reason):
    (tmp_path / "folder").mkdir()
    monkeypatch.setattr(training, "train", lambda *_: pytest.fail("it trained first"))
    assert train("lru", tmp_path / place) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert reason in error
    assert place in error
    assert os.listdir(tmp_path) == ["folder"]


@pytest.mark.parametrize(
    ("interruption", "code"), [(KeyboardInterrupt(), 130), (OSError(28, "No space left"), 2)]
)
def test_interrupted_write_leaves_the_old_file(tmp_path, monkeypatch, interruption, code):
    path = tmp_path / "lru.safetensors"
    path.write_bytes(b"what was there")

    def interrupt(*_):
        raise interruption

    monkeypatch.setattr(os, "replace", interrupt)
    assert train("lru", path) == code
    assert path.read_bytes() == b"what was there"
    assert os.listdir(tmp_path) == [path.name]


def test_a_file_for_every_so_many_steps(tmp_path, capsys):
    pattern = tmp_path / "step_{step}.safetensors"
    assert train("lru", pattern, "--save-every", "2") == 0
    files = {f"step_{step}.safetensors": str(step) for step in (0, 2, 3)}
    assert {path.name: metadata_of(path)["step"] for path in tmp_path.iterdir()} == files
    once, again = tmp_path / "once.safetensors", tmp_path / "again.safetensors"
    assert train("lru", once) == train("lru", again) == 0
    assert once.read_bytes() == again.read_bytes()
    last = load_file(tmp_path / "step_3.safetensors")
    for name, values in load_file(once).items():
        np.testing.assert_array_equal(last[name], values)
