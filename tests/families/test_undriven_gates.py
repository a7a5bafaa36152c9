"""Layers whose gates have no figures say why, in the report too, where it was asked for."""

from __future__ import annotations

import numpy as np
import pytest
from families.simulated_gates import gates_of

from memcurse_cli.checkpoints.memory import MemoryStore
from memcurse_cli.families.family import Family, ReadOptions
from memcurse_cli.families.gate_inputs import NoDrive
from memcurse_cli.families.selective.mamba3 import Mamba3

LAYERS: dict[str, tuple[Family, dict[str, tuple[int, ...]], str]] = {
    "Mamba-3 of other rows": (
        Mamba3(),
        {
            "dt_bias": (4,),
            "B_bias": (4, 1, 3),
            "C_bias": (4, 1, 3),
            "in_proj.weight": (40, 8),
            "out_proj.weight": (8, 8),
        },
        "rows of in_proj",
    ),
}


@pytest.mark.parametrize("name", LAYERS)
def test_the_reason_is_given(name: str) -> None:
    family, shapes, reason = LAYERS[name]
    arrays = {f"any.{role}": np.ones(shape) for role, shape in shapes.items()}
    store = MemoryStore(arrays)
    (match,) = family.find(store.tensors)
    assert isinstance(family.read(store, match, ReadOptions(gates=True)).gate, NoDrive)
    assert family.read(store, match, ReadOptions()).gate is None
    gates = gates_of(arrays)
    assert gates.spread is None
    assert gates.bands == ()
    assert reason in (gates.reason or "")
