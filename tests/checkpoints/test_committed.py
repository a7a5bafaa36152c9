"""Small files of other libraries, against what these say that they hold.

tests/library/formats/test_committed.py has written them, and compares more of each library live.
"""

from __future__ import annotations

import sys
import zipfile
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkpoints.fuzzing import FUZZ, changed, survives, survives_in_folder
from checkpoints.test_fuzzing import KINDS, valid
from end_to_end.command import program
from hypothesis import given
from hypothesis import strategies as st

from memcurse_cli.checkpoints.open import open_checkpoint
from memcurse_cli.checkpoints.optimizer import adam_state

FILES = Path(__file__).parent / "files"
NAMES = sorted(path.name for path in FILES.iterdir() if path.name != "expected.npz")
FORMATS = {
    "function.onnx": "ONNX",
    "latest.h5": "Keras HDF5",
    "model.h5": "Keras HDF5",
    "model.weights.h5": "Keras HDF5",
    "orbax_ocdbt": "Orbax",
    "orbax_ocdbt_zarr3": "Orbax",
    "quantised.gguf": "GGUF",
    "state.msgpack": "Flax msgpack",
}


@cache
def expected() -> dict[str, Any]:
    return dict(np.load(FILES / "expected.npz"))


def check(path: Path, weights: dict[str, Any], moments: dict[str, Any]) -> None:
    """A checkpoint holds these weights and no other of more than one element, and these moments."""
    with open_checkpoint(path) as store:
        assert store.format == FORMATS[path.name]
        found = {name: spec for name, spec in store.tensors.items() if name in weights}
        assert set(found) == set(weights)
        assert all(
            np.prod(spec.shape) == 1 for name, spec in store.tensors.items() if name not in weights
        )
        for name, array in weights.items():
            assert found[name].shape == array.shape
            assert found[name].bytes <= array.nbytes
            np.testing.assert_array_equal(store.read(name), array.astype(float))
        state = adam_state(store)
        slots = {} if state is None else state.slots
        assert set(slots) == set(moments)
        for name, array in moments.items():
            np.testing.assert_array_equal(slots[name].second_moment.load(), array.astype(float))
            assert slots[name].learning_rate == pytest.approx(2e-3)
            assert slots[name].step in (2, 3)


@pytest.mark.parametrize("name", NAMES)
def test_a_file_holds_what_its_library_says(name: str) -> None:
    kinds = (
        {
            key.rpartition("|")[2]: array
            for key, array in expected().items()
            if key.startswith(f"{name}|{kind}|")
        }
        for kind in "wv"
    )
    check(FILES / name, *kinds)


@pytest.mark.parametrize("compression", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_an_archive_of_keras_holds_what_its_member_holds(tmp_path: Path, compression: int) -> None:
    path = tmp_path / "a.keras"
    with zipfile.ZipFile(path, "w", compression) as archive:
        archive.writestr("config.json", '{"class_name": "Sequential"}')
        archive.writestr("metadata.json", '{"keras_version": "3.8.0"}')
        archive.write(FILES / "model.weights.h5", "model.weights.h5")
    with open_checkpoint(path) as store, open_checkpoint(FILES / "model.weights.h5") as member:
        assert store.format == "Keras archive"
        assert store.tensors == member.tensors
        assert store.metadata["keras_version"] == "3.8.0"
        assert store.metadata["model_config"] == '{"class_name": "Sequential"}'
        for name in store.tensors:
            np.testing.assert_array_equal(store.read(name), member.read(name))
        assert store.bytes == path.stat().st_size


@FUZZ
@given(st.sampled_from([name for name in NAMES if "orbax" not in name]), st.data())
def test_a_changed_file(name: str, data: st.DataObject) -> None:
    survives(changed((FILES / name).read_bytes(), data))


@FUZZ
@given(st.sampled_from([name for name in NAMES if "orbax" in name]), st.data())
def test_a_changed_folder(name: str, data: st.DataObject) -> None:
    survives_in_folder(FILES / name, data)


def test_no_framework_is_imported(tmp_path: Path) -> None:
    paths = [str(FILES / name) for name in NAMES]
    for kind in set(KINDS) - {"index", "float8"}:  # ml_dtypes has the types of 8 bits
        (tmp_path / kind).write_bytes(valid(kind))
        paths.append(str(tmp_path / kind))
    code = (
        "import sys, numpy\n"
        "from memcurse_cli.checkpoints.open import open_checkpoint\n"
        "from memcurse_cli.checkpoints.open import MemoryStore\n"
        "MemoryStore({'w': numpy.eye(2)}).read('w')\n"
        f"for path in {paths!r}:\n"
        "    with open_checkpoint(path) as store:\n"
        "        assert store.tensors\n"
        "        for name in store.tensors: store.read(name)\n"
        "print({'h5py', 'keras', 'onnx', 'gguf', 'flax', 'orbax', 'jax', 'torch', 'tensorstore',"
        " 'scipy', 'ml_dtypes', 'safetensors', 'rich', 'typer', 'fsspec', 'aiohttp', 'asyncio',"
        " 'ssl'} & set(sys.modules))"
    )
    done = program(sys.executable, "-c", code)
    assert done.stdout.strip() == "set()"
