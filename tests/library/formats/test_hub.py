"""Modules that share weights, as huggingface_hub writes them: whole or in shards."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from checkpoints.test_rewrites import (
    test_every_name_is_read_and_each_tensor_is_counted_once as check,
)
from huggingface_hub import save_torch_model
from torch import nn


@pytest.mark.parametrize("options", [{}, {"max_shard_size": 300}])
def test_every_name_is_read(options: dict[str, Any], tmp_path: Path) -> None:
    def write(model: nn.Module, path: Path) -> Path:
        save_torch_model(model, path, **options)
        assert (len(list(path.glob("*.safetensors"))) > 2) == bool(options)
        return path

    check(write, tmp_path)
