"""Orbax directories, against the msgpack file of the same values and against Orbax itself."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import flax.nnx
import numpy as np
import orbax.checkpoint as orbax
import pytest
from checkpoints.readers import same

from memcurse_cli.checkpoints.open import open_checkpoint
from memcurse_cli.errors import CheckpointError

LAYOUTS = {
    "ocdbt": {"use_ocdbt": True, "use_zarr3": False},
    "ocdbt zarr3": {"use_ocdbt": True, "use_zarr3": True},
    "folders": {"use_ocdbt": False, "use_zarr3": False},
    "folders zarr3": {"use_ocdbt": False, "use_zarr3": True},
}


def tree() -> dict[str, Any]:
    rng = np.random.default_rng(0)
    return {
        "params": {
            "cell": {"kernel": rng.standard_normal((5, 7)).astype(np.float32), "a.b": np.ones(2)},
            "layers": [np.arange(3.0), np.zeros(4, np.complex64)],
            "large": rng.standard_normal((60, 50)),
            "none": None,
            "empty": {},
            "name": "run",
        },
        "opt_state": {"mu": {"cell": {"kernel": np.ones((5, 7), np.float32)}}},
        "step": 3,
    }


def saved(directory: Path, content: Any, layout: str = "ocdbt") -> Path:
    handler = orbax.PyTreeCheckpointHandler(**LAYOUTS[layout])
    with orbax.Checkpointer(handler) as checkpointer:
        checkpointer.save(directory / "saved", content)
    return directory / "saved"


LINEN = ("ocdbt", "zarr3", "zarr_plain", "standard", "manager", "manager/3", "manager/3/default")
LINEN += ("ocdbt/_METADATA", "ocdbt/manifest.ocdbt")
SHARED = {f"flax_linen/orbax_{folder}": "flax_linen/params" for folder in LINEN}
SHARED |= {"s5_jax/s5_conj_orbax": "s5_jax/s5_conj"}
SHARED |= {"minimal_lru/lru_stack_orbax": "minimal_lru/lru_stack"}


@pytest.mark.parametrize("folder", SHARED)
def test_every_shared_directory_holds_what_its_msgpack_file_holds(zoo: Path, folder: str) -> None:
    file = zoo / f"{SHARED[folder]}.msgpack"
    with open_checkpoint(zoo / folder) as store, open_checkpoint(file) as other:
        assert store.format == "Orbax"
        assert store.path == str(zoo / folder)
        assert set(store.tensors) - {"step"} == set(other.tensors)
        for name, spec in other.tensors.items():
            assert store.tensors[name] == spec
            np.testing.assert_array_equal(store.read(name), other.read(name), strict=True)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_is_read_as_orbax_reads_it(tmp_path: Path, layout: str) -> None:
    path = saved(tmp_path, tree(), layout)
    with open_checkpoint(path) as store:
        held = tree()["params"]
        expected = {f"params/cell/{name}": array for name, array in held["cell"].items()}
        expected |= {f"params/layers/{at}": array for at, array in enumerate(held["layers"])}
        expected |= {"params/large": held["large"], "step": np.array(3)}
        assert "opt_state.mu.cell.kernel" in store.notes[0]
        same(store, expected)
        assert store.bytes == sum(file.stat().st_size for file in path.rglob("*") if file.is_file())


def test_the_variables_of_nnx_lose_their_value(tmp_path: Path) -> None:
    cell = flax.nnx.GRUCell(3, 4, rngs=flax.nnx.Rngs(0))
    with orbax.StandardCheckpointer() as checkpointer:
        checkpointer.save(tmp_path / "saved", flax.nnx.state(cell))
    with open_checkpoint(tmp_path / "saved") as store:
        assert set(store.tensors) == {"dense_h/kernel", "dense_i/kernel", "dense_i/bias"}
        expected = np.asarray(cell.dense_h.kernel[...], np.float64)
        np.testing.assert_array_equal(store.read("dense_h/kernel"), expected)


def test_the_steps_of_a_manager(tmp_path: Path) -> None:
    with orbax.CheckpointManager(tmp_path) as manager:
        items = {
            "state": orbax.args.StandardSave({"w": np.ones(3)}),
            "config": orbax.args.JsonSave({"units": 3}),
        }
        manager.save(7, args=orbax.args.Composite(**items))
        manager.wait_until_finished()
        for path in (tmp_path, tmp_path / "7", tmp_path / "7" / "state"):
            with open_checkpoint(path) as store:
                assert list(store.tensors) == ["w"]
        manager.save(8, args=orbax.args.Composite(**items))
    with pytest.raises(CheckpointError, match=r"2 checkpoints: 7/.*; name the one to read"):
        open_checkpoint(tmp_path)


@pytest.mark.parametrize("layout", ["ocdbt", "folders"])
def test_metadata_without_arrays_is_refused(tmp_path: Path, layout: str) -> None:
    path = saved(tmp_path, tree(), layout)
    for child in path.iterdir():
        if child.is_dir():
            shutil.rmtree(child)
    (path / "manifest.ocdbt").unlink(missing_ok=True)
    with pytest.raises(CheckpointError, match="metadata is there and none of its arrays is"):
        open_checkpoint(path)
    (path / "_METADATA").unlink()
    with pytest.raises(CheckpointError, match="metadata without its arrays"):
        open_checkpoint(path)


def test_a_missing_chunk_is_filled_and_a_missing_array_or_package_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = saved(tmp_path / "small", {"w": np.ones((3, 3))}, "folders")
    (path / "w" / "0.0").unlink()
    with open_checkpoint(path) as store:
        np.testing.assert_array_equal(store.read("w"), np.zeros((3, 3)))
    path = saved(tmp_path, tree(), "folders")
    shutil.rmtree(path / "params.large")
    with pytest.raises(CheckpointError, match=r"the array params\.large is missing"):
        open_checkpoint(path)
    path = saved(tmp_path / "other", tree())
    shutil.rmtree(path / "d")
    with pytest.raises(CheckpointError, match=r"d/[0-9a-f]+: no such file"):
        open_checkpoint(path)
    monkeypatch.setitem(sys.modules, "zstandard", None)
    with pytest.raises(CheckpointError, match=r"pip install 'memcurse-cli\[orbax\]'"):
        open_checkpoint(path)


def test_a_store_without_metadata_has_the_names_of_its_keys(tmp_path: Path) -> None:
    path = saved(tmp_path, {"params": {"cell": {"kernel": np.eye(3)}}})
    for name in ("_METADATA", "_CHECKPOINT_METADATA"):
        (path / name).unlink()
    with open_checkpoint(path) as store:
        assert list(store.tensors) == ["params/cell/kernel"]


def described(*keys: str) -> dict[str, Any]:
    return {
        "key_metadata": [{"key": key, "key_type": 2} for key in keys],
        "value_metadata": {"value_type": "jax.Array", "skip_deserialize": False},
    }


@pytest.mark.parametrize(
    ("leaves", "expected"),
    [
        (["w"], "not an object that names arrays"),
        ({"w": None}, "describes an array wrongly"),
        ({"w": {"key_metadata": [], "value_metadata": {}}}, "describes an array wrongly"),
        ({"w": {"key_metadata": [3], "value_metadata": {}}}, "names an array wrongly"),
        ({"w": described(*["a"] * 65)}, "names an array wrongly"),
        ({"v": described("w"), "w": described("w")}, "the array w stands twice"),
        ({"v": described("w"), "w": described("w", "value")}, "is missing"),
        ({"w": described("/etc/passwd")}, "outside the checkpoint's directory"),
    ],
    ids=range(8),
)
def test_metadata_that_lies_is_named(tmp_path: Path, leaves: Any, expected: str) -> None:
    path = saved(tmp_path, {"w": np.eye(3)}, "folders")
    (path / "_METADATA").write_text(json.dumps({"tree_metadata": leaves}))
    with pytest.raises(CheckpointError, match=expected):
        open_checkpoint(path)
