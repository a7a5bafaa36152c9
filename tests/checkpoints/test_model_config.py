"""The config.json beside Hugging Face's weights: read where it helps, never in the way."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from attacks import config_files
from safetensors.numpy import save_file

from memcurse_cli.checkpoints.open import open_checkpoint


def write(directory: Path, name: str, config: str = '{"n_groups": 2}') -> Path:
    (directory / "config.json").write_text(config)
    save_file({"a": np.eye(2)}, directory / name)
    return directory / name


@pytest.mark.parametrize("name", ["model.safetensors", "model-00001-of-00002.safetensors"])
def test_it_is_read_beside_a_file_of_hugging_faces_name(tmp_path: Path, name: str) -> None:
    with open_checkpoint(write(tmp_path, name)) as store:
        assert store.config == {"n_groups": 2}
        assert store.notes == ()


def test_it_is_read_through_the_directory_and_through_an_index(zoo: Path) -> None:
    for folder in ("fp32", "sharded"):
        with open_checkpoint(zoo / "hf_mamba" / folder) as store:
            assert store.config["model_type"] == "mamba"


@pytest.mark.parametrize("name", ["weights.safetensors", "my_model.safetensors"])
def test_it_is_left_alone_beside_any_other_file(tmp_path: Path, name: str) -> None:
    with open_checkpoint(write(tmp_path, name)) as store:
        assert store.config == {}
        assert store.notes == ()


def test_without_one_nothing_is_said(tmp_path: Path) -> None:
    path = write(tmp_path, "model.safetensors")
    (tmp_path / "config.json").unlink()
    with open_checkpoint(path) as store:
        assert store.config == {}
        assert store.notes == ()


def test_infinity_is_understood_as_transformers_4_wrote_it(tmp_path: Path) -> None:
    config = json.dumps({"time_step_limit": [0.0, math.inf]})
    assert "Infinity" in config
    with open_checkpoint(write(tmp_path, "model.safetensors", config)) as store:
        assert store.config["time_step_limit"] == [0.0, math.inf]


@pytest.mark.parametrize(
    ("attack", "reason"),
    [
        (config_files.config_of_ten_megabytes_nested, "more than 1000000"),
        (config_files.config_nested_a_hundred_thousand_deep, "nested too deeply"),
        (config_files.config_with_a_number_of_half_a_million_digits, "not valid JSON"),
        (config_files.config_that_is_a_link_out_of_the_directory, "leads outside"),
        (config_files.config_that_is_a_fifo, "neither a regular file"),
        (lambda path: write(path, "model.safetensors", f'{{"a": {10**400}}}'), "20 digits"),
        (lambda path: write(path, "model.safetensors", "[1, 2]"), "not a JSON object"),
        (lambda path: write(path, "model.safetensors", '{"a": NaN}'), "NaN is not a number"),
        (lambda path: write(path, "model.safetensors", '{"a": 1, "a": 2}'), "stands twice"),
    ],
)
def test_what_is_wrong_with_it_is_a_note(
    tmp_path: Path, attack: Callable[[Path], Path], reason: str
) -> None:
    with open_checkpoint(attack(tmp_path)) as store:
        assert store.tensors
        assert store.config == {}
        (note,) = store.notes
        assert reason in note
        assert note.isprintable()
