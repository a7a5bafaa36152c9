"""The stored samples are what their README says: command, loss before and loss after."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import numpy as np
import pytest
from experiments.stored import settings_in
from safetensors import safe_open
from safetensors.numpy import load_file

from memcurse_cli.__main__ import run
from memcurse_cli.experiments import training
from memcurse_cli.experiments.settings import TrainingSettings

SAMPLES = Path(__file__).parents[2] / "sample_checkpoints"
README = (SAMPLES / "README.md").read_text(encoding="utf-8")
ROW = re.compile(r"^\| (\S+\.safetensors) \| `(.+)` \| (\S+) \| (\S+) \| \d+ \|$", re.MULTILINE)
ROWS = {row[0]: row[1:] for row in ROW.findall(README)}


def settings_of(path: Path) -> TrainingSettings:
    with safe_open(path, "numpy") as file:
        return settings_in(file.metadata())


def test_every_sample_is_in_the_table_and_small():
    sizes = {path.name: path.stat().st_size for path in SAMPLES.glob("*.safetensors")}
    assert sorted(sizes) == sorted(ROWS)
    assert max(sizes.values()) < 300_000


@pytest.mark.parametrize("name", ROWS)
def test_losses_are_those_of_the_table(name):
    _, before, after = ROWS[name]
    settings, stored = settings_of(SAMPLES / name), load_file(SAMPLES / name)
    assert f"{training.evaluate(settings, training.initialise(settings)):.4g}" == before
    assert f"{training.evaluate(settings, stored):.4g}" == after
    assert f"{training.teacher_power(settings):.2f}" in README


@pytest.mark.parametrize("name", ROWS)
def test_command_of_the_table_gives_the_settings_of_the_file(name, tmp_path, monkeypatch):
    """Everything but the training: its settings and the student that it would start from."""
    program, *arguments = shlex.split(ROWS[name][0])
    assert program == "memcurse"
    monkeypatch.chdir(tmp_path)
    seen = []

    def untrained(settings, report):
        seen.append(settings)
        return training.TrainingResult(training.initialise(settings), 1.0, 1.0, 0.0)

    monkeypatch.setattr(training, "train", untrained)
    assert run(arguments) == 0
    assert seen == [settings_of(SAMPLES / name)]
    written, stored = load_file(tmp_path / name), load_file(SAMPLES / name)
    assert {k: (v.shape, v.dtype) for k, v in written.items()} == {
        k: (v.shape, v.dtype) for k, v in stored.items()
    }


def test_the_run_is_of_the_command_of_the_readme():
    """Its settings, where it starts and where it ends; and which step each file is of."""
    command = README[README.index("    memcurse train complex-diagonal-rnn") :].partition("\n\n")[0]
    program, name, *options = shlex.split(command.replace("\\\n", " "))
    assert program == "memcurse"
    given = dict(zip(options[1::2], options[2::2], strict=True))
    files = {int(path.stem.removeprefix("step_")): path for path in (SAMPLES / "run").iterdir()}
    every = int(given["--save-every"])
    assert sorted(files) == list(range(0, int(given["--steps"]) + 1, every))
    settings = settings_of(files[0])
    for step, path in files.items():
        with safe_open(path, "numpy") as file:
            assert file.metadata()["step"] == str(step)
        assert settings_of(path) == settings
    assert (name, settings.network) == ("train", options[0])
    assert (settings.units, settings.batch) == (int(given["--units"]), int(given["--batch"]))
    assert settings.learning_rate == float(given["--learning-rate"])
    assert settings.initial_modulus == float(given["--initial-modulus"])
    first, last = load_file(files[0]), load_file(files[settings.steps])
    for tensor, values in training.initialise(settings).items():
        np.testing.assert_array_equal(first[tensor], values)
    losses = [f"{training.evaluate(settings, one):.4g}" for one in (first, last)]
    assert f"falls from {float(losses[0]):.1f} to {losses[1]}" in README
