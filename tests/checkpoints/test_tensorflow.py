"""TensorFlow's checkpoints, against what TensorFlow itself read from them."""

from __future__ import annotations

import shutil
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from checkpoints.bundles import bundle, entry, table
from checkpoints.fuzzing import FUZZ, changed, survives_at, survives_in_folder
from checkpoints.readers import same
from checkpoints.web import serving
from hypothesis import given
from hypothesis import strategies as st

from memcurse_cli.checkpoints.open import open_checkpoint
from memcurse_cli.checkpoints.tensorflow import masked_crc
from memcurse_cli.errors import CheckpointError

FILES = Path(__file__).parent / "tensorflow"
INDEXES = {
    "tf1": "model.ckpt-2000",
    "keras2_saved_model": "variables/variables",
    "keras2_legacy_adam": "ckpt",
    "keras3_export": "variables/variables",
    "keras3_train": "ckpt-2",
}


def values(folder: str) -> dict[str, Any]:
    """The values of the weights as TensorFlow read them."""
    with np.load(FILES / "values.npz") as stored:
        return {
            name.partition(":")[2]: stored[name]
            for name in stored.files
            if name.startswith(f"{folder}:")
        }


@pytest.mark.parametrize("folder", INDEXES)
def test_every_weight_is_what_tensorflow_reads(folder: str) -> None:
    expected = values(folder)
    assert len(expected) > 10
    prefix = FILES / folder / INDEXES[folder]
    with open_checkpoint(prefix) as store, open_checkpoint(f"{prefix}.index") as index:
        assert store.format == "TensorFlow checkpoint"
        assert store.tensors == index.tensors
        for name, array in expected.items():
            assert store.tensors[name].dtype == array.dtype.name
            np.testing.assert_array_equal(store.read(name), array)
        others = {name for name in store.tensors if store.tensors[name].shape not in ((), (2,))}
        assert others <= set(expected)
        assert store.bytes_read == sum(array.nbytes for array in expected.values())


def test_the_state_of_optimisers_and_averages_are_left_out() -> None:
    with open_checkpoint(FILES / "tf1") as store:
        assert "58 tensors of optimiser state" in store.notes[0]
        assert "14 tensors of an averaged (EMA) copy" in store.notes[1]
        assert "8 tensors that are stored in slices (such as parts/w): left out" in store.notes[2]
    with open_checkpoint(FILES / "keras2_legacy_adam") as store:
        assert "33 tensors of optimiser state" in store.notes[0]


def test_a_folder_gives_its_saved_model_or_the_step_that_it_names(tmp_path: Path) -> None:
    saved = shutil.copytree(FILES / "keras2_saved_model", tmp_path / "saved")
    (saved / "saved_model.pb").write_bytes(b"\x08\x01")
    with open_checkpoint(saved) as store:
        assert "lstm/lstm_cell/recurrent_kernel" in store.tensors
    training = shutil.copytree(FILES / "tf1", tmp_path / "training")
    for file in (FILES / "tf1").iterdir():
        shutil.copy(file, training / file.name.replace("2000", "1000"))
    with open_checkpoint(training) as store:
        assert store.notes[-1].startswith("of 2 checkpoints model.ckpt-2000.index was read")
    (training / "checkpoint").unlink()
    with pytest.raises(CheckpointError, match=r"has 2 checkpoints: model\.ckpt-1000\.index"):
        open_checkpoint(training)
    with pytest.raises(CheckpointError, match=r"give model\.ckpt-2000\.index beside it"):
        open_checkpoint(training / "model.ckpt-2000.data-00000-of-00002")


def test_every_type_of_number(tmp_path: Path) -> None:
    arrays = {
        1: np.arange(3, dtype=np.float32),
        2: np.arange(3.0),
        8: np.array([1 + 2j], np.complex64),
        9: np.array([-5], np.int64),
        10: np.array([True, False]),
        14: np.array([1.5, -2], ml_dtypes.bfloat16),
        19: np.array([0.25], np.float16),
    }
    content, entries = b"", {}
    for code, array in arrays.items():
        entries[f"w{code}"] = entry(list(array.shape), len(content), array.nbytes, code)
        content += array.tobytes()
    with open_checkpoint(bundle(tmp_path, entries, content)) as store:
        same(store, {f"w{code}": array for code, array in arrays.items()})


def test_a_changed_index_does_not_have_its_checksum_of_castagnoli_s(tmp_path: Path) -> None:
    # RFC 3720, B.4: 32 bytes of zeros have the CRC 0x8a9136aa.
    crc = 0x8A9136AA
    assert masked_crc(bytes(32)) == ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
    shutil.copytree(FILES / "tf1", tmp_path / "tf1")
    index = tmp_path / "tf1" / "model.ckpt-2000.index"
    content = bytearray(index.read_bytes())
    content[100] ^= 1
    index.write_bytes(content)
    with pytest.raises(CheckpointError, match="does not have its checksum"):
        open_checkpoint(index)


def test_a_remote_index_finds_its_files() -> None:
    with serving(FILES / "tf1") as web:
        for name in ("model.ckpt-2000.index", "model.ckpt-2000"):
            with open_checkpoint(web.url(name)) as store:
                for tensor, array in values("tf1").items():
                    np.testing.assert_array_equal(store.read(tensor), array)


ENTRIES = {"rnn/kernel": entry([2, 2], 0, 16), "w": entry([2], 16, 8)}


@cache
def valid() -> Path:
    return bundle(Path(mkdtemp()), ENTRIES, bytes(24))


@FUZZ
@given(data=st.data())
def test_a_changed_file(data: st.DataObject) -> None:
    survives_in_folder(valid().parent, data)


@FUZZ
@given(data=st.data())
def test_a_changed_block_with_its_checksum(data: st.DataObject) -> None:
    with TemporaryDirectory() as folder:
        index = bundle(Path(folder), ENTRIES, bytes(24))
        size = index.read_bytes().index(bytes(4) + b"\x01\0\0\0\0") + 8
        content = changed(index.read_bytes()[:size], data) + b"\0"
        index.write_bytes(table(content + masked_crc(content).to_bytes(4, "little")))
        survives_at(index)
