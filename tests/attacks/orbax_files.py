"""Attack directories in Orbax's layouts."""

from __future__ import annotations

import gzip
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import tensorstore
import zstandard
from attacks.build import Builder, attack, attacks, builders

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


def _metadata(directory: Path, name: str = "w") -> Path:
    leaf = {
        "key_metadata": [{"key": name, "key_type": 2}],
        "value_metadata": {"value_type": "jax.Array"},
    }
    (directory / "_METADATA").write_text(json.dumps({"tree_metadata": {name: leaf}}))
    return directory


def _array(directory: Path, chunk: bytes = bytes(8), **changes: Any) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / ".zarray").write_text(json.dumps(DESCRIPTION | changes))
    (directory / "0").write_bytes(chunk)
    return directory


def _outside(directory: Path) -> Path:
    return _array(directory.parent / f"{directory.name}-outside")


def _described(
    chunk: Callable[[], bytes] = lambda: bytes(8), name: str = "w", **changes: Any
) -> Builder:
    def build(directory: Path) -> Path:
        _array(directory / name, chunk(), **changes)
        return _metadata(directory, name)

    return build


def _for_its_chunk(replace: Callable[[Path, Path], object]) -> Builder:
    """Something else in the place of a chunk, made from the chunk's path and one outside."""

    def build(directory: Path) -> Path:
        chunk = _array(directory / "w") / "0"
        chunk.unlink()
        replace(chunk, _outside(directory) / "0")
        return _metadata(directory)

    return build


def _through_a_link(directory: Path) -> Path:
    (directory / "w").symlink_to(_outside(directory))
    return _metadata(directory)


builders(
    {
        "orbax_array_that_climbs": (
            "outside",
            lambda directory: _metadata(directory, f"../{_outside(directory).name}"),
        ),
        "orbax_array_through_a_link": ("outside", _through_a_link),
        "orbax_chunk_through_a_link": ("outside", _for_its_chunk(Path.symlink_to)),
        "orbax_chunk_that_is_a_fifo": (
            "neither a regular file",
            _for_its_chunk(lambda chunk, _: os.mkfifo(chunk)),
        ),
        "orbax_array_of_10_to_the_18_elements": (
            "claims",
            _described(shape=[10**9] * 2, chunks=[10**9] * 2, dimension_separator="."),
        ),
        "orbax_array_of_10_to_the_18_chunks": ("chunks", _described(shape=[10**18], chunks=[1])),
        "orbax_gzip_bomb": (
            "more than the 8 bytes",
            _described(lambda: gzip.compress(bytes(1 << 28)), compressor={"id": "gzip"}),
        ),
        "orbax_zstd_bomb": (
            "more than the 8 bytes",
            _described(lambda: zstandard.compress(bytes(1 << 28)), compressor={"id": "zstd"}),
        ),
        "orbax_names_that_write_to_the_terminal": (
            "opens",
            _described(name="\x1b]0;owned\x07kernel"),
        ),
    }
)
attacks(
    "_METADATA",
    {
        "orbax_metadata_nested_a_million_deep": (
            "nested too deeply",
            b'{"tree_metadata": ' + b"[" * 10**6 + b"]" * 10**6 + b"}",
        )
    },
)


def _ocdbt(directory: Path, name: str = "w") -> Path:
    config = {"compression": None}
    spec = {"driver": "ocdbt", "base": f"file://{directory}/", "config": config}
    store = tensorstore.KvStore.open(spec).result()
    # One transaction makes one node, so that the manifest spells the only name it holds in full.
    with tensorstore.Transaction() as transaction:
        together = store.with_transaction(transaction)
        together[f"{name}/.zarray"] = json.dumps(DESCRIPTION).encode()
        together[f"{name}/0"] = np.ones(2, np.float32).tobytes()
    return _metadata(directory, name)


@attack("outside")
def ocdbt_manifest_that_climbs(directory: Path) -> Path:
    manifest = _ocdbt(directory) / "manifest.ocdbt"
    for path in [manifest, *(directory / "d").iterdir()]:
        for name in [path.name for path in (directory / "d").iterdir()]:
            content = path.read_bytes()
            path.write_bytes(content.replace(f"d/{name}".encode(), f"../{name[1:]}".encode()))
    return directory


@attack("outside")
def ocdbt_data_through_a_link(directory: Path) -> Path:
    outside = directory.parent / f"{directory.name}-outside"
    shutil.move(_ocdbt(directory) / "d", outside)
    (directory / "d").symlink_to(outside)
    return directory


def _claiming(directory: Path, length: int, stop: int | None = None) -> Path:
    manifest = _ocdbt(directory) / "manifest.ocdbt"
    content = bytearray(manifest.read_bytes()[:stop])
    content[4:12] = length.to_bytes(8, "little")
    manifest.write_bytes(content)
    return directory


builders(
    {
        "orbax_name_of_ten_thousand_characters": ("characters", lambda at: _ocdbt(at, "w" * 2000)),
        "ocdbt_manifest_of_10_to_the_18_bytes": ("claims", lambda at: _claiming(at, 10**18)),
        "ocdbt_manifest_cut_off": ("middle of a field", lambda at: _claiming(at, 60, 60)),
    }
)
