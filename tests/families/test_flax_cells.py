"""Files of Flax's cells against the oracles, and what is no cell of Flax's."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from families.cell_steps import CASES
from families.oracles import ZooFile, oracle_eigenvalues, zoo_files
from numpy.testing import assert_allclose

from memcurse_cli.checkpoints.memory import MemoryStore
from memcurse_cli.checkpoints.open import open_checkpoint
from memcurse_cli.families.cells.jax import FLAX_GRU, FLAX_LSTM, FLAX_MGU, FLAX_SIMPLE
from memcurse_cli.families.detect import detect
from memcurse_cli.families.family import Family, ReadOptions
from memcurse_cli.families.recurrence import Recurrence

FAMILIES: dict[str, Family] = {
    "lstm": FLAX_LSTM,
    "gru": FLAX_GRU,
    "mgu": FLAX_MGU,
    "rnn_tanh": FLAX_SIMPLE,
}


def layers(path: Path, **assume: str) -> dict[str, Recurrence]:
    options = ReadOptions(assume=assume)
    with open_checkpoint(path) as store:
        return {m.layer: family.read(store, m, options) for family, m in detect(store.tensors)}


@pytest.mark.parametrize(
    "file",
    zoo_files("flax_linen", ".msgpack", ".npz", "checkpoint_7", "_METADATA"),
)
def test_zoo(file: ZooFile) -> None:
    if file.path.name == "_CHECKPOINT_METADATA":
        pytest.skip("the same directory under the name of another of its files")
    read = {name.removeprefix("params/"): each for name, each in layers(file.path).items()}
    residual = layers(file.path, residual="yes")
    assert set(read) == {each["name"].removeprefix("params/") for each in file.layers}
    for each in file.layers:
        name = each["name"].removeprefix("params/")
        recurrence, ours = read[name], read[name]
        assert recurrence.family == FAMILIES[each["kind"]].name
        theirs = oracle_eigenvalues(each)
        if "residual=True" in each["equation"]:
            ours = next(r for key, r in residual.items() if key.removeprefix("params/") == name)
        eigenvalues = np.exp(ours.log_eigenvalues)
        if each["kind"] == "rnn_tanh":
            for value in theirs:
                assert np.abs(eigenvalues - value).min() < 1e-12
        else:
            assert_allclose(eigenvalues, theirs, rtol=1e-12)


def test_trained_agents(trained: Path) -> None:
    folder = trained / "jaxmarl_flax_gru_safetensors"
    oracle = json.loads((folder / "oracle.json").read_text())["layers"]
    for file in ("mpe_tag_iql_ns.safetensors", "smax_vdn_ps.safetensors"):
        expected = {k.partition(":")[2] for k in oracle if k.startswith(f"{file}:")}
        read = layers(folder / file)
        assert set(read) == expected
        longest = max((-1 / r.log_eigenvalues.real).max() for r in read.values())
        assert 0 < longest < 5


def test_what_is_no_cell_is_not_found() -> None:
    arrays = CASES["flax_gru"].arrays()
    del arrays["cell/hz/kernel"]
    assert FLAX_GRU.find(MemoryStore(arrays).tensors) == []
    attention = {"dense_h.kernel": np.ones((4, 7)), "dense_i.kernel": np.ones((4, 7))}
    for family in FAMILIES.values():
        assert family.find(MemoryStore(attention).tensors) == []
