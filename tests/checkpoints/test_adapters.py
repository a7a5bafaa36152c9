"""Weights that an adapter has wrapped are read under their own names."""

from __future__ import annotations

import numpy as np

from memcurse_cli import inspect
from memcurse_cli.checkpoints.memory import MemoryStore

RANDOM = np.random.default_rng(3)
HEADS, WIDTH = 2, 4


def mixer(wrapped: str) -> dict[str, np.ndarray]:
    """A Mamba-2 mixer of two heads, one group and two states."""
    rows = 2 * WIDTH + 2 * 2 + HEADS
    return {
        "mixer.A_log": np.zeros(HEADS),
        "mixer.D": np.ones(HEADS),
        "mixer.dt_bias": np.array([-1.0, -3.0]),
        "mixer.conv1d.weight": np.ones((WIDTH + 4, 1, 4)),
        f"mixer.in_proj.{wrapped}weight": np.ones((rows, WIDTH)),
    }


def test_a_mixer_with_an_adapter_is_read_as_without() -> None:
    update = {
        "mixer.in_proj.lora_A.default.weight": RANDOM.normal(size=(2, WIDTH)),
        "mixer.in_proj.lora_B.default.weight": RANDOM.normal(size=(14, 2)),
    }
    alone = inspect(mixer(""), values=True)
    adapted = inspect(mixer("base_layer.") | update, values=True)
    (layer,) = adapted.layers
    assert (layer.name, layer.family) == ("mixer", "mamba2")
    assert layer.eigenvalues == alone.layers[0].eigenvalues
    (note,) = adapted.checkpoint.notes
    assert note.startswith("an adapter's update is not added to mixer.in_proj.weight, since")
    assert alone.checkpoint.notes == ()


def test_a_name_that_is_taken_is_left() -> None:
    arrays = {"a.base_layer.weight": np.ones(2), "a.weight": np.ones(3)}
    store = MemoryStore(arrays)
    assert {name: spec.shape for name, spec in store.tensors.items()} == {
        "a.base_layer.weight": (2,),
        "a.weight": (3,),
    }
    assert store.notes == ()
