"""Modules that share weights, as huggingface_hub writes them: whole or in shards."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from checkpoints.test_rewrites import (
    test_every_name_is_read_and_each_tensor_is_counted_once as check,
)
from huggingface_hub import save_torch_model
from torch import nn


def hub(model: nn.Module, path: Path) -> Path:
    (path / "whole").mkdir()
    save_torch_model(model, path / "whole")
    return path / "whole"


def hub_shards(model: nn.Module, path: Path) -> Path:
    (path / "shards").mkdir()
    save_torch_model(model, path / "shards", max_shard_size=300)
    assert len(list((path / "shards").glob("*.safetensors"))) > 2
    return path / "shards"


@pytest.mark.parametrize("write", [hub, hub_shards])
def test_every_name_is_read(write: Callable[[nn.Module, Path], Path], tmp_path: Path) -> None:
    check(write, tmp_path)
