"""Flax's recurrent cells, linen and nnx, against Flax's own step."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import flax.linen
import flax.nnx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from families.derivatives import check_derivatives
from families.oracles import ZooFile, oracle_eigenvalues, zoo_files
from numpy.testing import assert_allclose

from memcurse_cli.checkpoints.memory import MemoryStore
from memcurse_cli.checkpoints.open import open_checkpoint
from memcurse_cli.errors import TensorError
from memcurse_cli.families.cells.flax import FLAX_GRU, FLAX_LSTM, FLAX_MGU, FLAX_SIMPLE
from memcurse_cli.families.detect import detect
from memcurse_cli.families.family import Family, ReadOptions
from memcurse_cli.families.recurrence import Recurrence

FAMILIES: dict[str, Family] = {
    "lstm": FLAX_LSTM,
    "gru": FLAX_GRU,
    "mgu": FLAX_MGU,
    "rnn_tanh": FLAX_SIMPLE,
}
SIZE, INPUTS = 5, 3


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


def linen(kind: str) -> tuple[Any, dict[str, np.ndarray[Any, Any]], Any]:
    """A cell of Flax with random biases, its tensors in double precision, and its step."""
    names = {"lstm": "OptimizedLSTMCell", "gru": "GRUCell", "mgu": "MGUCell", "rnn": "SimpleCell"}
    cell = getattr(flax.linen, names[kind])(SIZE, param_dtype=jnp.float32)
    carry = cell.initialize_carry(jax.random.key(0), (INPUTS,))
    variables = cell.init(jax.random.key(1), carry, jnp.zeros(INPUTS))
    rng = np.random.default_rng(2)
    variables = jax.tree.map(lambda a: jnp.asarray(rng.standard_normal(a.shape)), variables)
    store = MemoryStore({"cell": variables["params"]})
    arrays = {name: store.read(name) for name in store.tensors}
    return cell, arrays, lambda state: cell.apply(variables, state, jnp.zeros(INPUTS))[0]


def nnx(kind: str) -> tuple[Any, dict[str, np.ndarray[Any, Any]], Any]:
    names = {
        "lstm": "OptimizedLSTMCell",
        "lstm_": "LSTMCell",
        "gru": "GRUCell",
        "rnn": "SimpleCell",
    }
    cell = getattr(flax.nnx, names[kind])(INPUTS, SIZE, rngs=flax.nnx.Rngs(0))
    rng = np.random.default_rng(3)
    graph, state = flax.nnx.split(cell, ...)[:2]
    state = jax.tree.map(
        lambda a: (
            jnp.asarray(rng.standard_normal(a.shape), jnp.float32) if a.dtype == jnp.float32 else a
        ),
        state,
    )
    cell = flax.nnx.merge(graph, state)
    pure = {
        name: child
        for name, child in flax.nnx.to_pure_dict(flax.nnx.state(cell, flax.nnx.Param)).items()
        if name != "rngs"
    }
    store = MemoryStore({"cell": pure})
    arrays = {name: store.read(name) for name in store.tensors}
    return cell, arrays, lambda state: cell(state, jnp.zeros(INPUTS))[0]


CELLS = [(linen, kind) for kind in ("lstm", "gru", "mgu", "rnn")]
CELLS += [(nnx, kind) for kind in ("lstm", "lstm_", "gru", "rnn")]


@pytest.mark.parametrize(("make", "kind"), CELLS, ids=[f"{m.__name__}-{k}" for m, k in CELLS])
def test_the_step_of_flax_at_zero_input(make: Any, kind: str) -> None:
    _, arrays, step = make(kind)
    store = MemoryStore(arrays)
    ((family, match),) = detect(store.tensors)
    assert match.layer == "cell"
    recurrence = family.read(store, match, ReadOptions(spectra=True))
    zero = jnp.zeros(SIZE)
    if kind.startswith("lstm"):  # the state is c; its carry is (c, h)
        direct = jax.jacobian(lambda c: step((c, zero))[0])(zero)
        whole = np.asarray(
            jax.jacobian(lambda s: jnp.concatenate(step((s[:SIZE], s[SIZE:]))))(jnp.zeros(2 * SIZE))
        )
        assert_allclose(np.diag(direct), np.exp(recurrence.log_eigenvalues.real), rtol=1e-5)
    else:
        whole = np.asarray(jax.jacobian(step)(zero))
    if kind == "rnn":
        # tanh has its slope at the bias; with zero biases the Jacobian is A itself.
        slope = 1 - np.asarray(step(zero), np.float64) ** 2
        assert recurrence.dense is not None
        assert_allclose(slope[:, None] * recurrence.dense.matrix, whole, rtol=1e-4, atol=1e-5)
        return
    assert recurrence.hidden is not None
    ours, theirs = recurrence.hidden.jacobian, np.linalg.eigvals(whole.astype(np.float64))
    for value in theirs:
        assert np.abs(ours - value).min() < 1e-4


@pytest.mark.parametrize("kind", ["lstm", "gru", "mgu"])
def test_the_gate_alone_multiplies_the_state(kind: str) -> None:
    _, arrays, step = linen(kind)
    # Without hidden kernels the step is diagonal, and its factor is λ.
    for name, array in arrays.items():
        if name.split("/")[1].startswith("h") and name.endswith("kernel"):
            array[:] = 0
    store = MemoryStore(arrays)
    ((family, match),) = detect(store.tensors)
    recurrence = family.read(store, match, ReadOptions())
    assert recurrence.input_dependent
    assert recurrence.stable_by_construction
    assert recurrence.hidden is None
    gate = {"lstm": "hf", "gru": "iz", "mgu": "if"}[kind]
    expected = 1 / (1 + np.exp(-arrays[f"cell/{gate}/bias"]))
    assert_allclose(np.exp(recurrence.log_eigenvalues.real), expected, rtol=1e-14)
    assert step is not None


@pytest.mark.parametrize(("make", "kind"), CELLS[:3], ids=["lstm", "gru", "mgu"])
def test_derivatives(make: Any, kind: str) -> None:
    check_derivatives(make(kind)[1], FAMILIES[kind])


@pytest.mark.parametrize(("kind", "gates"), [("lstm", "ifgo"), ("gru", "rzn")])
def test_derivatives_of_fused_biases(kind: str, gates: str) -> None:
    side = "h" if kind == "lstm" else "i"
    names = {"i": "input", "f": "forget", "z": "update"}
    elements = {
        f"dense_{side}.bias[{names[g]}]": slice(i * SIZE, (i + 1) * SIZE)
        for i, g in enumerate(gates)
        if g in names
    }
    check_derivatives(nnx(kind)[1], FAMILIES[kind], elements=elements)


def test_the_layers_of_a_scan_are_told_apart() -> None:
    _, arrays, _ = linen("gru")
    stacked = {name: np.stack([array, array + 1]) for name, array in arrays.items()}
    store = MemoryStore(stacked)
    found = detect(store.tensors)
    assert [match.layer for _, match in found] == ["cell[0]", "cell[1]"]
    for index, (family, match) in enumerate(found):
        recurrence = family.read(store, match, ReadOptions())
        expected = 1 / (1 + np.exp(-arrays["cell/iz/bias"] - index))
        assert_allclose(np.exp(recurrence.log_eigenvalues.real), expected, rtol=1e-14)


def test_bad_tensors_are_named() -> None:
    _, arrays, _ = linen("gru")
    for name, values, message in (
        ("cell/iz/bias", np.full(SIZE, np.nan), "cell/iz/bias: 5 NaN"),
        ("cell/iz/bias", np.ones(SIZE + 1), r"cell/iz/bias: its shape \(6\)"),
    ):
        store = MemoryStore({**arrays, name: values})
        ((family, match),) = detect(store.tensors)
        with pytest.raises(TensorError, match=message):
            family.read(store, match, ReadOptions())


def test_what_is_no_cell_is_not_found() -> None:
    _, arrays, _ = linen("gru")
    del arrays["cell/hz/kernel"]
    assert FLAX_GRU.find(MemoryStore(arrays).tensors) == []
    attention = {"dense_h.kernel": np.ones((4, 7)), "dense_i.kernel": np.ones((4, 7))}
    for family in FAMILIES.values():
        assert family.find(MemoryStore(attention).tensors) == []
