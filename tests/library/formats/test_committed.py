"""The libraries' own small files that tests/checkpoints reads, and the numbers that they hold."""

from __future__ import annotations

import os
import pickle
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from memcurse_cli.checkpoints.open import MemoryStore, open_checkpoint
from memcurse_cli.checkpoints.optimizer import adam_state

os.environ.setdefault("KERAS_BACKEND", "torch")

COMMITTED = Path(__file__).parents[2] / "checkpoints" / "files"
# By what a tensor is called in the file: its elements, and Adam's second moment.
Expected = tuple[dict[str, Any], dict[str, Any]]


def keras_model() -> Any:
    import keras

    keras.utils.clear_session()
    keras.utils.set_random_seed(0)
    layers = [
        keras.layers.Input((None, 2)),
        keras.layers.GRU(2, return_sequences=True, name="first"),
        keras.layers.GRU(2, name="second"),
    ]
    model = keras.Sequential(layers)
    model.compile(optimizer=keras.optimizers.Adam(2e-3), loss="mse")
    random = np.random.default_rng(0)
    model.fit(random.normal(size=(8, 5, 2)), random.normal(size=(8, 2)), epochs=2, verbose=0)
    return model


def keras_file(path: Path) -> Expected:
    model = keras_model()
    (model.save_weights if "weights" in path.name else model.save)(path)
    moments = {one.path: np.asarray(one) for one in model.optimizer.variables}
    weights: dict[str, Any] = {}
    velocities: dict[str, Any] = {}
    for layer in model.layers:
        for index, one in enumerate(layer.weights):
            legacy = path.name == "model.h5"
            own = one.path.removeprefix(f"{model.name}/")
            name = own if legacy else f"{layer.name}/cell/vars/{index}"
            weights[name] = np.asarray(one)
            velocities[name] = moments[f"adam/{one.path.replace('/', '_')}_velocity"]
    return weights, velocities


def hdf5_latest(path: Path) -> Expected:
    """Every index of chunks, groups with a heap of links, filters and byte orders."""
    import h5py

    made = np.random.default_rng(0)
    weights: dict[str, Any] = {}
    indexes: dict[str, tuple[int | None, ...] | None] = {
        "fixed": None,
        "extensible": (None, 7),
        "tree": (None, None),
    }
    with h5py.File(path, "w", libver="latest") as file:
        for name, limits in indexes.items():
            weights[name] = made.random((9, 7)).astype(">f4" if name == "tree" else "<f8")
            filters = {"compression": "gzip", "shuffle": True, "fletcher32": True}
            file.create_dataset(name, data=weights[name], chunks=(4, 3), maxshape=limits, **filters)
        for index in range(20):
            name = f"many/w{index:02}"
            weights[name] = np.int16(index)
            file[name] = weights[name]
        weights["one"] = made.random((5, 4))
        file.create_dataset("one", data=weights["one"], chunks=(5, 4))
    return weights, {}


def onnx_file(path: Path) -> Expected:
    """A GRU whose weights are sliced out of an initializer, within a function."""
    from onnx import TensorProto, helper, numpy_helper

    made = np.random.default_rng(0)
    recurrent = made.standard_normal((1, 9, 3)).astype(np.float32)
    inputs = made.standard_normal((1, 9, 2)).astype(np.float32)
    unused = made.standard_normal((2, 2)).astype(np.float16)
    # Gates in another order than ONNX has them: the first third last.
    stored = np.concatenate([recurrent[:, 6:], recurrent[:, :6]], 1)
    cut = [("a", 3, 9), ("b", 0, 3)]
    tensors = [
        numpy_helper.from_array(stored, "stored"),
        numpy_helper.from_array(inputs, "W"),
        numpy_helper.from_array(unused, "unused"),
        numpy_helper.from_array(np.array([1]), "axes"),
    ]
    nodes = []
    for name, start, end in cut:
        tensors += [numpy_helper.from_array(np.array([at]), f"{name}{at}") for at in (start, end)]
        given = ["stored", f"{name}{start}", f"{name}{end}", "axes"]
        nodes.append(helper.make_node("Slice", given, [name]))
    nodes.append(helper.make_node("Concat", ["a", "b"], ["R"], axis=1))
    nodes.append(helper.make_node("Layer", ["X", "W", "R"], ["Y"], name="call", domain="own"))
    gru = helper.make_node("GRU", ["x", "w", "r"], ["y"], name="cell", hidden_size=3)
    opset = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    function = helper.make_function("own", "Layer", ["x", "w", "r"], ["y"], [gru], opset[:1])
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes,
        "g",
        [value("X", TensorProto.FLOAT, [None, 1, 2])],
        [value("Y", TensorProto.FLOAT, None)],
        tensors,
    )
    model = helper.make_model(graph, opset_imports=opset, functions=[function], ir_version=8)
    path.write_bytes(model.SerializeToString())
    weights = {"unused": unused, "call/cell/GRU_W": inputs[0], "call/cell/GRU_R": recurrent[0]}
    return weights, {}


def jax_tree() -> tuple[dict[str, Any], Expected]:
    import jax
    import jax.numpy as jnp
    import optax

    # `nu` is an LRU's parameter as well as Adam's second moment.
    params = {"rnn": {"nu": jnp.ones(3), "theta": jnp.ones(3)}, "head": {"kernel": jnp.ones(3)}}
    transform = optax.inject_hyperparams(optax.adamw)(learning_rate=2e-3)
    state = transform.init(params)

    def loss(tree: dict[str, Any]) -> Any:
        leaves = [leaf * (index + 1) for index, leaf in enumerate(jax.tree.leaves(tree))]
        return sum(jnp.sum(leaf * jnp.arange(1.0, 4.0)) for leaf in leaves)

    for _ in range(3):
        updates, state = transform.update(jax.grad(loss)(params), state, params)
        params = optax.apply_updates(params, updates)

    def named(tree: Any) -> dict[str, Any]:
        return {
            f"params/{layer}/{name}": np.asarray(leaf)
            for layer, leaves in tree.items()
            for name, leaf in leaves.items()
        }

    content = {"params": params, "opt_state": state, "step": 3}
    return content, (named(params), named(state.inner_state[0].nu))


def flax_file(path: Path) -> Expected:
    from flax.serialization import to_bytes

    content, expected = jax_tree()
    path.write_bytes(to_bytes(content))
    return expected


def orbax_folder(path: Path) -> Expected:
    import orbax.checkpoint

    content, expected = jax_tree()
    layout = {"use_ocdbt": "ocdbt" in path.name, "use_zarr3": "zarr3" in path.name}
    handler = orbax.checkpoint.PyTreeCheckpointHandler(**layout)
    with orbax.checkpoint.Checkpointer(handler) as checkpointer:
        checkpointer.save(path, content, force=True)
    (path / "commit_success.txt").unlink(missing_ok=True)  # names a path of this machine
    return expected


# Where each type of GGUF keeps the float16 scales of its block.
SCALES = {"Q2_K": (80, 82), "Q3_K": (108,), "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,)}
SCALES |= {"Q4_0": (0,), "Q4_1": (0, 2), "Q5_0": (0,), "Q5_1": (0, 2), "Q8_0": (0,)}


def gguf_file(path: Path) -> Expected:
    """A plain tensor, and one of each quantised type with finite scales."""
    import gguf

    made = np.random.default_rng(0)
    weights = {"blk.0.ssm_a": made.standard_normal((3, 4)).astype(np.float32)}
    writer = gguf.GGUFWriter(path, "mamba")
    writer.add_array("tokenizer.ggml.tokens", ["a", "b"])
    writer.add_tensor("blk.0.ssm_a", weights["blk.0.ssm_a"])
    for name, places in SCALES.items():
        kind = gguf.GGMLQuantizationType[name]
        length, size = gguf.GGML_QUANT_SIZES[kind]
        raw = made.integers(0, 256, (2, size), np.uint8)
        for place in places:
            raw[:, place : place + 2] = np.float16([[0.5], [-0.25]]).view(np.uint8)
        writer.add_tensor(name, raw, raw_dtype=kind)
        weights[name] = gguf.dequantize(raw, kind).reshape(2, length)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return weights, {}


FILES: dict[str, Callable[[Path], Expected]] = {
    "model.weights.h5": keras_file,
    "model.h5": keras_file,
    "latest.h5": hdf5_latest,
    "function.onnx": onnx_file,
    "quantised.gguf": gguf_file,
    "state.msgpack": flax_file,
    "orbax_ocdbt": orbax_folder,
    "orbax_ocdbt_zarr3": orbax_folder,
}


@pytest.mark.filterwarnings("ignore")  # Keras says that HDF5 is legacy
@pytest.mark.parametrize("name", FILES)
def test_what_the_library_writes_now_is_read(name: str, tmp_path: Path) -> None:
    from checkpoints.test_committed import check

    check(tmp_path / name, *FILES[name](tmp_path / name))


@pytest.mark.parametrize("pickled", [False, True])
def test_the_moments_of_a_training_state_repeat_its_weights(pickled: bool, tmp_path: Path) -> None:
    content, (_, moments) = jax_tree()
    if pickled:  # (params, opt_state), as many save it
        path = tmp_path / "training.pkl"
        path.write_bytes(pickle.dumps((content["params"], content["opt_state"])))
    with open_checkpoint(path) if pickled else MemoryStore(content) as store:
        state = adam_state(store)
        assert state.refused == {}
        assert len(state.slots) == len(moments)
        for name, moment in moments.items():
            slot = state.slots[name.replace("params/", "0/") if pickled else name]
            np.testing.assert_allclose(slot.second_moment.load(), moment)
            assert (slot.step, slot.learning_rate) == (3, pytest.approx(2e-3))
    content["params"] = {"rnn": {"nu": np.ones(4), "theta": np.ones(4)}}  # of other shapes
    state = adam_state(MemoryStore(content))
    assert state.slots == {}
    assert "no tree of weights" in state.refused["params/rnn/nu"]


def write() -> None:
    """Write every file, and what it holds: ``python tests/library/formats/test_committed.py``."""
    arrays = {}
    for name in sys.argv[1:] or FILES:
        for kind, tensors in zip("wv", FILES[name](COMMITTED / name), strict=True):
            arrays |= {f"{name}|{kind}|{key}": value for key, value in tensors.items()}
    np.savez_compressed(COMMITTED / "expected.npz", **arrays)


if __name__ == "__main__":
    write()
