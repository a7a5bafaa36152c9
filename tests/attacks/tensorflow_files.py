"""Attack files in the layout of TensorFlow's checkpoints."""

from __future__ import annotations

from pathlib import Path

from attacks.build import attack
from checkpoints.bundles import HEADER, block, bundle, entry, number, table


@attack("do not fit")
def tensorflow_tensor_of_10_to_the_18_elements(directory: Path) -> Path:
    return bundle(directory, {"w": entry([10**9, 10**9], 0, 8)}, bytes(8))


@attack("reaches byte")
def tensorflow_tensor_beyond_its_file(directory: Path) -> Path:
    return bundle(directory, {"w": entry([10**15], 2**60, 4 * 10**15)}, bytes(8))


@attack("negative")
def tensorflow_tensor_at_a_negative_offset(directory: Path) -> Path:
    return bundle(directory, {"w": entry([2], -8, 8)}, bytes(8))


@attack("overlap")
def tensorflow_tensors_that_overlap(directory: Path) -> Path:
    entries = {f"w{i}": entry([2], 4 * i, 8) for i in range(3)}
    return bundle(directory, entries, bytes(16))


@attack("file 10000 of 1")
def tensorflow_tensor_in_a_file_that_is_not_there(directory: Path) -> Path:
    return bundle(directory, {"w": entry([2], 0, 8, shard=10**4)}, bytes(8))


@attack("outside")
def tensorflow_elements_behind_a_link(directory: Path) -> Path:
    inside = directory / "inside"
    inside.mkdir()
    path = bundle(inside, {"w": entry([2], 0, 8)}, bytes(8))
    (inside / "model.data-00000-of-00001").rename(directory / "secret")
    (inside / "model.data-00000-of-00001").symlink_to(directory / "secret")
    return path


@attack("has 2 checkpoints")
def tensorflow_checkpoint_file_that_climbs(directory: Path) -> Path:
    for name in ("a", "b"):
        bundle(directory, {"w": entry([2], 0, 8)}, bytes(8)).rename(directory / f"{name}.index")
    (directory / "checkpoint").write_text('model_checkpoint_path: "../../secret"\n')
    return directory


@attack("files of elements")
def tensorflow_header_of_10_to_the_18_files(directory: Path) -> Path:
    return bundle(directory, {"w": entry([2], 0, 8)}, bytes(8), b"\x08" + number(10**18))


@attack("Snappy")
def tensorflow_index_that_snappy_would_inflate(directory: Path) -> Path:
    return bundle(directory, {"w": entry([2], 0, 8)}, bytes(8), kind=1)


@attack("reaches beyond its end")
def tensorflow_block_of_10_to_the_18_bytes(directory: Path) -> Path:
    (directory / "a.index").write_bytes(table(block([(b"", HEADER)]), [(0, 10**18)]))
    return directory / "a.index"


@attack("blocks overlap")
def tensorflow_block_a_thousand_times(directory: Path) -> Path:
    data = block([(b"", HEADER)])
    (directory / "a.index").write_bytes(table(data, [(0, len(data) - 5)] * 1000))
    return directory / "a.index"


@attack("more than 16777216")
def tensorflow_index_of_twenty_megabytes_of_zeros(directory: Path) -> Path:
    data = table(block([(b"", HEADER)]))
    (directory / "a.index").write_bytes(bytes(20 << 20) + data[:-48] + bytes(40) + data[-8:])
    return directory / "a.index"


@attack("dimensions")
def tensorflow_shape_of_ten_thousand_dimensions(directory: Path) -> Path:
    return bundle(directory, {"w": entry([1] * 10**4, 0, 4)}, bytes(4))
