"""A safetensors file whose metadata lie about the names that were left out of it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from attacks.build import attack, entry, safetensors

OWN = {"a.weight_hh_l0": [3, 3], "a.bias_hh_l0": [3], "b.weight_hh_l0": [3, 3]}


def with_metadata(directory: Path, metadata: object) -> Path:
    header: dict[str, object] = {"__metadata__": metadata}
    end = 0
    for name, shape in OWN.items():
        size = 4 * int(np.prod(shape))
        header[name] = entry(shape, end, end + size)
        end += size
    path = directory / "model.safetensors"
    path.write_bytes(safetensors(header, bytes(end)))
    return path


@attack("not an object of strings")
def names_left_out_as_numbers_and_lists(directory: Path) -> Path:
    return with_metadata(directory, {"b.bias_hh_l0": ["a.bias_hh_l0"]})


@attack("opens")
def names_left_out_in_a_circle(directory: Path) -> Path:
    return with_metadata(directory, {"x": "y", "y": "z", "z": "x", "c.w": "c.w"})


@attack("opens")
def names_left_out_in_a_chain_of_a_million(directory: Path) -> Path:
    return with_metadata(directory, {f"c{i}": f"c{i + 1}" for i in range(10**6)})


@attack("give stored tensors 1000000 more names")
def a_million_names_of_one_tensor(directory: Path) -> Path:
    return with_metadata(directory, {f"c.{i}.weight_hh_l0": "a.weight_hh_l0" for i in range(10**6)})


@attack("opens")
def a_hundred_thousand_names_of_one_tensor(directory: Path) -> Path:
    return with_metadata(directory, {f"c.{i}.weight_hh_l0": "a.weight_hh_l0" for i in range(10**5)})


@attack("opens")
def names_left_out_of_tensors_that_are_not_there(directory: Path) -> Path:
    return with_metadata(directory, {f"b.bias{i}": "d.bias\x1b[2J" for i in range(10**5)})


@attack("opens")
def a_name_left_out_that_is_stored(directory: Path) -> Path:
    return with_metadata(directory, {"b.weight_hh_l0": "a.bias_hh_l0"})


@attack("characters, more than")
def a_name_left_out_of_a_million_characters(directory: Path) -> Path:
    return with_metadata(directory, {"c" * 10**6: "a.weight_hh_l0"})


@attack("stands twice in the file")
def names_left_out_that_look_the_same(directory: Path) -> Path:
    return with_metadata(directory, {"c\x1b": "a.weight_hh_l0", "c\\x1b": "a.weight_hh_l0"})


@attack("opens")
def a_name_left_out_that_would_climb(directory: Path) -> Path:
    return with_metadata(directory, {"../../etc/passwd\u202e": "a.weight_hh_l0"})


@attack("more names")
def shards_whose_index_gives_a_million_names(directory: Path) -> Path:
    with_metadata(directory, {"format": "pt"})
    index = directory / "model.safetensors.index.json"
    names = {f"c.{i}.weight_hh_l0": "a.weight_hh_l0" for i in range(10**6)}
    weights = dict.fromkeys(OWN, "model.safetensors")
    index.write_text(json.dumps({"metadata": names, "weight_map": weights}))
    return index


@attack("opens")
def shards_whose_index_gives_names_of_wrong_types(directory: Path) -> Path:
    with_metadata(directory, {"format": "pt"})
    index = directory / "model.safetensors.index.json"
    names = {"c": 3, "d": None, "e": ["a.weight_hh_l0"], "f": {"a": "a"}}
    weights = dict.fromkeys(OWN, "model.safetensors")
    index.write_text(json.dumps({"metadata": names, "weight_map": weights}))
    return index
