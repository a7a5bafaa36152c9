"""GGUF files, against the gguf package."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from checkpoints import readers
from gguf import GGMLQuantizationType as Type

from memcurse_cli.checkpoints.gguf import BLOCK_TYPES, PLAIN_TYPES
from memcurse_cli.checkpoints.open import open_checkpoint
from memcurse_cli.errors import CheckpointError

# Where each type keeps the float16 scales of its block.
SCALES = {"Q2_K": (80, 82), "Q3_K": (108,), "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,)}
SCALES |= {"Q4_0": (0,), "Q4_1": (0, 2), "Q5_0": (0,), "Q5_1": (0, 2), "Q8_0": (0,)}


def written(path: Path, tensors: dict[str, Any], **options: Any) -> Path:
    writer = gguf.GGUFWriter(path, "mamba", **options)
    writer.add_uint32("mamba.ssm.state_size", 16)
    writer.add_array("tokenizer.ggml.tokens", ["a", "b"])
    writer.add_bool("mamba.ssm.dt_b_c_rms", False)
    for name, array in tensors.items():
        kind = None
        if isinstance(array, tuple):
            array, kind = array
        writer.add_tensor(name, array, raw_dtype=kind)
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
def test_every_number_is_read(tmp_path: Path, endian: gguf.GGUFEndian) -> None:
    types = [name for name in PLAIN_TYPES.values() if name != "bfloat16"]
    tensors = {name: np.arange(-3, 9).reshape(3, 4).astype(name) for name in types}
    path = written(tmp_path / "a.gguf", tensors, endianess=endian)
    with open_checkpoint(path) as store:
        assert store.metadata["mamba.ssm.state_size"] == "16"
        assert store.metadata["mamba.ssm.dt_b_c_rms"] == "False"
        assert "tokenizer.ggml.tokens" not in store.metadata
        for name in types:
            assert store.tensors[name].dtype == name
            np.testing.assert_array_equal(store.read(name), np.arange(-3.0, 9).reshape(3, 4))


def test_a_type_that_is_not_dequantised_leaves_the_others_readable(tmp_path: Path) -> None:
    odd = (np.zeros((2, 98), np.uint8), Type.IQ3_XXS)
    path = written(tmp_path / "a.gguf", {"odd": odd, "w": np.eye(3, dtype=np.float32)})
    with open_checkpoint(path) as store:
        assert list(store.tensors) == ["w"]
        assert store.notes == ("of types that are not dequantised: type 18 (1 tensor): left out",)
        np.testing.assert_array_equal(store.read("w"), np.eye(3))


def header(
    tensors: int = 1, entries: bytes = b"", count: int = 0, version: int = 3, rest: bytes = b""
) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, tensors, count) + entries + rest


def text(content: bytes) -> bytes:
    return struct.pack("<Q", len(content)) + content


def tensor(shape: tuple[int, ...], kind: int = 0, offset: int = 0, name: bytes = b"w") -> bytes:
    dimensions = struct.pack(f"<I{len(shape)}Q", len(shape), *shape)
    return text(name) + dimensions + struct.pack("<IQ", kind, offset)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (header()[:20], "in the middle of a field"),
        (header(version=1), "of version 1; 2 and 3 are read"),
        (header(count=10**18), "claims 1000000000000000000 entries"),
        (header(tensors=10**18), "claims 1000000000000000000 tensors"),
        (header(rest=text(b"\xff") + bytes(40)), "a name that is not UTF-8"),
        (header(rest=text(b"w") + struct.pack("<I", 9)), "has 9 dimensions"),
        (header(rest=tensor((2,), offset=10**18) + bytes(99)), "lies at bytes 1000000000000000064"),
        (header(rest=tensor((33,), kind=8) + bytes(99)), "not whole blocks of Q8_0"),
        (header(2, rest=tensor((2,)) * 2 + bytes(99)), "tensor w stands twice"),
        (header(count=1, entries=text(b"k") + struct.pack("<I", 77)), "unknown type 77"),
        (
            header(count=1, entries=text(b"k") + struct.pack("<IIQ", 9, 4, 10**18)),
            "before the 4000000000000000000 bytes",
        ),
        (
            header(count=1, entries=text(b"k") + b"\x09\0\0\0" + struct.pack("<IQ", 9, 1) * 9),
            "nested 4 deep",
        ),
        (
            header(count=2, entries=(text(b"k") + struct.pack("<IB", 0, 1)) * 2),
            "the key k stands twice",
        ),
        (
            header(count=1, entries=text(b"general.alignment") + struct.pack("<II", 4, 0)),
            "its alignment is 0",
        ),
    ],
    ids=range(14),
)
def test_a_damaged_file_is_named(tmp_path: Path, content: bytes, expected: str) -> None:
    (tmp_path / "a.gguf").write_bytes(content)
    with pytest.raises(CheckpointError, match=expected):
        open_checkpoint(tmp_path / "a.gguf")
