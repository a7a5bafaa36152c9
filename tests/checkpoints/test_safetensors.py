"""safetensors: every type, metadata, and the limits of the format's description."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from checkpoints import readers
from hypothesis import given
from hypothesis import strategies as st
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file

from memcurse_cli.checkpoints.open import MemoryStore, open_checkpoint
from memcurse_cli.checkpoints.safetensors import ELEMENT_NAMES
from memcurse_cli.errors import CheckpointError

TYPES = {code: getattr(torch, name) for code, name in ELEMENT_NAMES.items() if hasattr(torch, name)}


@pytest.mark.parametrize("code", TYPES)
def test_every_type_is_read_as_the_library_reads_it(tmp_path: Path, code: str) -> None:
    # torch has two elements of 4 bits in each of its own (test_rewrites.py).
    assert set(TYPES) == set(ELEMENT_NAMES) - {"F4"}
    generator = np.random.default_rng(0)
    dtype = TYPES[code]
    # Any bytes are valid elements, except that a bool is 0 or 1.
    content = generator.integers(0, 2 if code == "BOOL" else 256, 24 * dtype.itemsize, np.uint8)
    tensors = {
        "matrix": torch.from_numpy(content).view(dtype).reshape(4, 6),
        "scalar": torch.zeros((), dtype=dtype),
        "empty": torch.zeros((0, 5), dtype=dtype),
    }
    save_file(tensors, tmp_path / "a.safetensors")
    header = (tmp_path / "a.safetensors").read_bytes()[8:200]
    assert f'"dtype":"{code}"'.encode() in header
    with open_checkpoint(tmp_path / "a.safetensors") as store:
        for name, tensor in load_file(tmp_path / "a.safetensors").items():
            with np.errstate(invalid="ignore"):
                expected = readers.double(tensor)
            np.testing.assert_array_equal(store.read(name), expected, strict=True)
            assert store.tensors[name].bytes == tensor.nbytes


@pytest.mark.parametrize("kind", ["float32", "bfloat16", "complex64"])
def test_a_signalling_nan_is_one_without_a_warning(tmp_path: Path, kind: str) -> None:
    content = np.full(8, 0x7F81 if kind == "bfloat16" else 0x7FA00001, np.uint32)
    content = content.astype(np.uint16 if kind == "bfloat16" else np.uint32)
    tensor = torch.from_numpy(content.view(np.uint8)).view(getattr(torch, kind))
    save_file({"a": tensor}, tmp_path / "a.safetensors")
    with open_checkpoint(tmp_path / "a.safetensors") as store:
        assert np.isnan(store.read("a")).all()
    assert np.isnan(MemoryStore({"a": tensor}).read("a")).all()


def test_metadata_is_kept_and_made_printable(tmp_path: Path) -> None:
    metadata = {"config": '{\n  "d_state": 16\n}', "title": "\x1b]0;owned\x07"}
    save_file({"w": torch.eye(2)}, tmp_path / "a.safetensors", metadata)
    with open_checkpoint(tmp_path / "a.safetensors") as store:
        assert json.loads(store.metadata["config"]) == {"d_state": 16}
        assert store.metadata["title"] == "\\x1b]0;owned\\x07"


@given(
    header=st.dictionaries(
        st.sampled_from(["a", "b", "__metadata__"]),
        st.fixed_dictionaries(
            {
                "dtype": st.sampled_from(["F32", "U8", "F99"]),
                "shape": st.lists(st.integers(-1, 5), max_size=3),
                "data_offsets": st.lists(st.integers(-1, 16), min_size=1, max_size=3),
            }
        ),
        max_size=2,
    ),
    room=st.integers(0, 16),
)
def test_what_the_library_refuses_is_refused(
    tmp_path_factory: pytest.TempPathFactory, header: dict[str, object], room: int
) -> None:
    text = json.dumps(header).encode()
    path = tmp_path_factory.mktemp("headers") / "a.safetensors"
    path.write_bytes(len(text).to_bytes(8, "little") + text + bytes(room))
    try:
        with safe_open(path, "np") as reference:
            names = set(reference.keys())
    except SafetensorError:
        with pytest.raises(CheckpointError):
            open_checkpoint(path)
        return
    if not names:
        with pytest.raises(CheckpointError, match="no weights"):
            open_checkpoint(path)
        return
    with open_checkpoint(path) as store:
        assert set(store.tensors) == names
