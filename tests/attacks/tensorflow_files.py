"""Attack files in the layout of TensorFlow's checkpoints."""

from __future__ import annotations

from pathlib import Path

from attacks.build import Builder, attack, attacks, builders
from checkpoints.bundles import HEADER, block, bundle, entry, number, table

TENSOR = entry([2], 0, 8)
DATA = block([(b"", HEADER)])


def _holding(*entries: bytes, header: bytes = HEADER, kind: int = 0) -> Builder:
    named = {f"w{index}": entry for index, entry in enumerate(entries)}
    return lambda directory: bundle(directory, named, bytes(16), header, kind)


builders(
    {
        "tensorflow_tensor_of_10_to_the_18_elements": (
            "needs",
            _holding(entry([10**9, 10**9], 0, 8)),
        ),
        "tensorflow_tensor_beyond_its_file": (
            "lies at bytes",
            _holding(entry([10**15], 2**60, 4 * 10**15)),
        ),
        "tensorflow_tensor_at_a_negative_offset": ("negative", _holding(entry([2], -8, 8))),
        "tensorflow_tensors_that_overlap": ("overlap", _holding(TENSOR, entry([2], 4, 8))),
        "tensorflow_tensor_in_a_file_that_is_not_there": (
            "file 10000 of 1",
            _holding(entry([2], 0, 8, shard=10**4)),
        ),
        "tensorflow_header_of_10_to_the_18_files": (
            "files of elements",
            _holding(TENSOR, header=b"\x08" + number(10**18)),
        ),
        "tensorflow_index_that_snappy_would_inflate": ("Snappy", _holding(TENSOR, kind=1)),
        "tensorflow_shape_of_ten_thousand_dimensions": (
            "dimensions",
            _holding(entry([1] * 10**4, 0, 4)),
        ),
    }
)
attacks(
    "a.index",
    {
        "tensorflow_block_of_10_to_the_18_bytes": (
            "reaches beyond its end",
            table(DATA, [(0, 10**18)]),
        ),
        "tensorflow_block_a_thousand_times": (
            "blocks overlap",
            table(DATA, [(0, len(DATA) - 5)] * 1000),
        ),
        "tensorflow_index_of_twenty_megabytes_of_zeros": (
            "more than 16777216",
            lambda: bytes(20 << 20) + table(DATA)[:-48] + bytes(40) + table(DATA)[-8:],
        ),
    },
)


@attack("outside")
def tensorflow_elements_behind_a_link(directory: Path) -> Path:
    inside = directory / "inside"
    inside.mkdir()
    path = bundle(inside, {"w": TENSOR}, bytes(8))
    (inside / "model.data-00000-of-00001").rename(directory / "secret")
    (inside / "model.data-00000-of-00001").symlink_to(directory / "secret")
    return path


@attack("has 2 checkpoints")
def tensorflow_checkpoint_file_that_climbs(directory: Path) -> Path:
    for name in ("a", "b"):
        bundle(directory, {"w": TENSOR}, bytes(8)).rename(directory / f"{name}.index")
    (directory / "checkpoint").write_text('model_checkpoint_path: "../../secret"\n')
    return directory
