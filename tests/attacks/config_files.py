"""A config.json beside harmless weights that is not what it should be."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
from attacks.build import MARKER, attack
from safetensors.numpy import save_file


def weights_with(directory: Path, config: bytes) -> Path:
    (directory / "config.json").write_bytes(config)
    return weights(directory)


def weights(directory: Path) -> Path:
    path = directory / "model.safetensors"
    save_file({"rnn.weight_hh_l0": np.eye(3), "rnn.bias_hh_l0": np.zeros(3)}, path)
    return path


@attack("opens")
def config_of_ten_megabytes_nested(directory: Path) -> Path:
    return weights_with(directory, b'{"a":' * 2_000_000 + b"1" + b"}" * 2_000_000)


@attack("opens")
def config_nested_a_hundred_thousand_deep(directory: Path) -> Path:
    return weights_with(directory, b'{"a":' * 100_000 + b"1" + b"}" * 100_000)


@attack("opens")
def config_of_wrong_types(directory: Path) -> Path:
    return weights_with(directory, b'{"n_groups": {"a": []}, "time_step_limit": "\\u001b[31m"}')


@attack("opens")
def config_with_a_number_of_half_a_million_digits(directory: Path) -> Path:
    return weights_with(directory, b'{"n_groups": ' + b"9" * 500_000 + b"}")


@attack("opens")
def config_that_is_a_link_out_of_the_directory(directory: Path) -> Path:
    inside = directory / "inside"
    inside.mkdir()
    (directory / "secret.json").write_text(f'{{"secret": "{MARKER}"}}')
    (inside / "config.json").symlink_to(directory / "secret.json")
    return weights(inside)


@attack("opens")
def config_that_is_a_fifo(directory: Path) -> Path:
    os.mkfifo(directory / "config.json")
    return weights(directory)
