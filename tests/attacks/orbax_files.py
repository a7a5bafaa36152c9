"""Attack directories in Orbax's layouts."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import tensorstore
from attacks.build import attack

DESCRIPTION = {
    "zarr_format": 2,
    "shape": [2],
    "chunks": [2],
    "dtype": "<f4",
    "compressor": None,
    "fill_value": None,
    "filters": None,
    "order": "C",
}


def _metadata(directory: Path, *names: str) -> None:
    leaves = {
        name: {
            "key_metadata": [{"key": name, "key_type": 2}],
            "value_metadata": {"value_type": "jax.Array"},
        }
        for name in names
    }
    (directory / "_METADATA").write_text(json.dumps({"tree_metadata": leaves}))


def _array(directory: Path, chunk: bytes = bytes(8), **changes: Any) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / ".zarray").write_text(json.dumps(DESCRIPTION | changes))
    (directory / "0").write_bytes(chunk)
    return directory


def _outside(directory: Path) -> Path:
    return _array(directory.parent / f"{directory.name}-outside")


@attack("outside")
def orbax_array_that_climbs(directory: Path) -> Path:
    _metadata(directory, f"../{_outside(directory).name}")
    return directory


@attack("outside")
def orbax_array_through_a_link(directory: Path) -> Path:
    (directory / "w").symlink_to(_outside(directory))
    _metadata(directory, "w")
    return directory


@attack("outside")
def orbax_chunk_through_a_link(directory: Path) -> Path:
    _array(directory / "w")
    (directory / "w" / "0").unlink()
    (directory / "w" / "0").symlink_to(_outside(directory) / "0")
    _metadata(directory, "w")
    return directory


@attack("neither a regular file")
def orbax_chunk_that_is_a_fifo(directory: Path) -> Path:
    _array(directory / "w")
    (directory / "w" / "0").unlink()
    os.mkfifo(directory / "w" / "0")
    _metadata(directory, "w")
    return directory


@attack("claims")
def orbax_array_of_10_to_the_18_elements(directory: Path) -> Path:
    _array(directory / "w", shape=[10**9, 10**9], chunks=[10**9, 10**9], dimension_separator=".")
    _metadata(directory, "w")
    return directory


@attack("chunks")
def orbax_array_of_10_to_the_18_chunks(directory: Path) -> Path:
    _array(directory / "w", shape=[10**18], chunks=[1])
    _metadata(directory, "w")
    return directory


@attack("more than the 8 bytes")
def orbax_gzip_bomb(directory: Path) -> Path:
    import gzip

    _array(directory / "w", gzip.compress(bytes(1 << 28)), compressor={"id": "gzip"})
    _metadata(directory, "w")
    return directory


@attack("more than the 8 bytes")
def orbax_zstd_bomb(directory: Path) -> Path:
    import zstandard

    packed = zstandard.ZstdCompressor().compress(bytes(1 << 28))
    _array(directory / "w", packed, compressor={"id": "zstd"})
    _metadata(directory, "w")
    return directory


@attack("opens")
def orbax_names_that_write_to_the_terminal(directory: Path) -> Path:
    name = "\x1b]0;owned\x07kernel"
    _array(directory / name)
    _metadata(directory, name)
    return directory


@attack("characters")
def orbax_name_of_ten_thousand_characters(directory: Path) -> Path:
    store = _ocdbt(directory)
    name = "w" * 2000
    store[f"{name}/.zarray"] = json.dumps(DESCRIPTION).encode()
    store[f"{name}/0"] = bytes(8)
    _metadata(directory, name)
    return directory


@attack("nested too deeply")
def orbax_metadata_nested_a_million_deep(directory: Path) -> Path:
    nested = '{"tree_metadata": ' + "[" * 10**6 + "]" * 10**6 + "}"
    (directory / "_METADATA").write_text(nested)
    return directory


def _ocdbt(directory: Path, **config: Any) -> tensorstore.KvStore:
    config = {"compression": None} | config
    spec = {"driver": "ocdbt", "base": f"file://{directory}/", "config": config}
    return tensorstore.KvStore.open(spec).result()


def _weights(directory: Path, **config: Any) -> Path:
    store = _ocdbt(directory, **config)
    # One transaction makes one node, so that the manifest spells the only name it holds in full.
    with tensorstore.Transaction() as transaction:
        together = store.with_transaction(transaction)
        together["w/.zarray"] = json.dumps(DESCRIPTION).encode()
        together["w/0"] = np.ones(2, np.float32).tobytes()
    _metadata(directory, "w")
    return directory


def _rewritten(directory: Path, old: bytes, new: bytes) -> Path:
    """Every file of the store with one text put for another of the same length."""
    for path in [directory / "manifest.ocdbt", *(directory / "d").iterdir()]:
        path.write_bytes(path.read_bytes().replace(old, new))
    return directory


@attack("outside")
def ocdbt_manifest_that_climbs(directory: Path) -> Path:
    _weights(directory)
    (root,) = [
        p
        for p in (directory / "d").iterdir()
        if f"d/{p.name}".encode() in (directory / "manifest.ocdbt").read_bytes()
    ]
    return _rewritten(directory, f"d/{root.name}".encode(), f"../{root.name[1:]}".encode())


@attack("outside")
def ocdbt_data_through_a_link(directory: Path) -> Path:
    _weights(directory)
    outside = directory.parent / f"{directory.name}-outside"
    shutil.move(directory / "d", outside)
    (directory / "d").symlink_to(outside)
    return directory


@attack("claims")
def ocdbt_manifest_of_10_to_the_18_bytes(directory: Path) -> Path:
    _weights(directory)
    manifest = directory / "manifest.ocdbt"
    content = bytearray(manifest.read_bytes())
    content[4:12] = (10**18).to_bytes(8, "little")
    manifest.write_bytes(content)
    return directory


@attack("middle of a field")
def ocdbt_manifest_cut_off(directory: Path) -> Path:
    _weights(directory)
    manifest = directory / "manifest.ocdbt"
    content = bytearray(manifest.read_bytes()[:60])
    content[4:12] = len(content).to_bytes(8, "little")
    manifest.write_bytes(content)
    return directory
