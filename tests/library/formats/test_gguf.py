"""GGUF files, against the gguf package."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from attacks.gguf_files import W, tensor, text
from checkpoints import readers
from gguf import GGMLQuantizationType as Type
from library.formats.test_committed import SCALES

from memcurse_cli.checkpoints.gguf import BLOCK_TYPES, PLAIN_TYPES
from memcurse_cli.checkpoints.open import open_checkpoint
from memcurse_cli.errors import CheckpointError


def written(path: Path, tensors: dict[str, Any], **options: Any) -> Path:
    """A file of these tensors; ``odd`` is of a type that is not dequantised."""
    writer = gguf.GGUFWriter(path, "mamba", **options)
    writer.add_uint32("mamba.ssm.state_size", 16)
    writer.add_array("tokenizer.ggml.tokens", ["a", "b"])
    writer.add_bool("mamba.ssm.dt_b_c_rms", False)
    for name, array in tensors.items():
        writer.add_tensor(name, array, raw_dtype=Type.IQ3_XXS if name == "odd" else None)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.mark.parametrize("path", readers.files("gguf"), ids=readers.label)
def test_every_shared_file_agrees_with_the_gguf_package(path: Path) -> None:
    reference = gguf.GGUFReader(path)
    with open_checkpoint(path) as store:
        assert store.format == "GGUF"
        assert list(store.tensors) == [tensor.name for tensor in reference.tensors]
        kinds = {t.tensor_type.name for t in reference.tensors} & {"Q8_0", "Q4_0"}
        assert [note for note in store.notes if "quantised" in note and kinds] == list(store.notes)
        assert all(kind in store.notes[0] for kind in kinds)
        for tensor in reference.tensors:
            shape = tuple(int(n) for n in tensor.shape[::-1])
            assert store.tensors[tensor.name].shape == shape
            assert store.tensors[tensor.name].bytes == tensor.n_bytes
            expected = gguf.dequantize(tensor.data, tensor.tensor_type).reshape(shape)
            np.testing.assert_array_equal(store.read(tensor.name), expected.astype(np.float64))
        assert store.bytes_read == sum(int(tensor.n_bytes) for tensor in reference.tensors)
        for key in ("general.architecture", "tokenizer.ggml.model"):
            assert store.metadata[key] == reference.fields[key].contents()


@pytest.mark.parametrize("number", BLOCK_TYPES)
def test_every_quantised_type_is_dequantised_as_gguf_does(number: int) -> None:
    block, kind = BLOCK_TYPES[number], Type(number)
    assert (block.name, gguf.GGML_QUANT_SIZES[kind]) == (kind.name, (block.length, block.bytes))
    rng = np.random.default_rng(number)
    blocks = rng.integers(0, 256, (500, block.bytes), dtype=np.uint8)
    for place in SCALES[block.name]:
        scales = rng.standard_normal(500).astype("<f2")
        blocks[:, place : place + 2] = scales.view(np.uint8).reshape(500, 2)
    expected = gguf.dequantize(blocks, kind).reshape(500, block.length)
    values = block.decode(blocks)
    assert values.dtype == np.float64
    # gguf computes in single precision; a difference of two such products loses a few units.
    np.testing.assert_allclose(values, expected, rtol=1e-6, atol=1e-6 * np.abs(expected).max())


@pytest.mark.parametrize("endian", [gguf.GGUFEndian.LITTLE, gguf.GGUFEndian.BIG])
def test_every_number_is_read_beside_a_type_that_is_not(
    tmp_path: Path, endian: gguf.GGUFEndian
) -> None:
    types = [name for name in PLAIN_TYPES.values() if name != "bfloat16"]
    tensors = {name: np.arange(-3, 9).reshape(3, 4).astype(name) for name in types}
    tensors["odd"] = np.zeros((2, 98), np.uint8)
    path = written(tmp_path / "a.gguf", tensors, endianess=endian)
    with open_checkpoint(path) as store:
        assert store.metadata["mamba.ssm.state_size"] == "16"
        assert store.metadata["mamba.ssm.dt_b_c_rms"] == "False"
        assert "tokenizer.ggml.tokens" not in store.metadata
        assert list(store.tensors) == types
        assert store.notes == ("of types that are not dequantised: type 18 (1 tensor): left out",)
        for name in types:
            assert store.tensors[name].dtype == name
            np.testing.assert_array_equal(store.read(name), np.arange(-3.0, 9).reshape(3, 4))


def header(entries: bytes, tensors: int = 1, count: int = 0, version: int = 3) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, tensors, count) + entries


NUMBERS = b"\x09\0\0\0" + struct.pack("<IQ", 9, 1) * 9  # arrays of arrays
DAMAGED = {
    "in the middle of a field": header(b"")[:20],
    "of version 1; 2 and 3 are read": header(b"", version=1),
    "claims 1000000000000000000 entries": header(b"", count=10**18),
    "claims 1000000000000000000 tensors": header(b"", tensors=10**18),
    "a name that is not UTF-8": header(text(b"\xff") + bytes(40)),
    "has 9 dimensions": header(text(b"w") + struct.pack("<I", 9)),
    "not whole blocks of Q8_0": header(tensor(b"w", (33,), kind=8) + bytes(99)),
    "tensor w stands twice": header(W * 2 + bytes(99), tensors=2),
    "unknown type 77": header(text(b"k") + struct.pack("<I", 77), count=1),
    "nested 4 deep": header(text(b"k") + NUMBERS, count=1),
    "the key k stands twice": header((text(b"k") + struct.pack("<IB", 0, 1)) * 2, count=2),
    "its alignment is 0": header(text(b"general.alignment") + struct.pack("<II", 4, 0), count=1),
}


@pytest.mark.parametrize("expected", DAMAGED)
def test_a_damaged_file_is_named(tmp_path: Path, expected: str) -> None:
    (tmp_path / "a.gguf").write_bytes(DAMAGED[expected])
    with pytest.raises(CheckpointError, match=expected):
        open_checkpoint(tmp_path / "a.gguf")
