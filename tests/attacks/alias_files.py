"""A safetensors file whose metadata lie about the names that were left out of it."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path

from attacks.build import attack, attacks, entry, safetensors

OWN = {"a.weight_hh_l0": [3, 3], "a.bias_hh_l0": [3], "b.weight_hh_l0": [3, 3]}


def with_metadata(metadata: object) -> bytes:
    header: dict[str, object] = {"__metadata__": metadata}
    end = 0
    for name, shape in OWN.items():
        begin, end = end, end + 4 * math.prod(shape)
        header[name] = entry(shape, begin, end)
    return safetensors(header, bytes(end))


def _lie(outcome: str, make: Callable[[], object]) -> tuple[str, Callable[[], bytes]]:
    return outcome, lambda: with_metadata(make())


attacks(
    "model.safetensors",
    {
        "names_left_out_as_lists": _lie("not an object of strings", lambda: {"b": ["a.bias"]}),
        "names_left_out_in_a_circle": _lie("opens", lambda: {"x": "y", "y": "x", "c.w": "c.w"}),
        "names_left_out_in_a_chain_of_a_million": _lie(
            "opens", lambda: {f"c{i}": f"c{i + 1}" for i in range(10**6)}
        ),
        "a_million_names_of_one_tensor": _lie(
            "give stored tensors 1000000 more names",
            lambda: {f"c.{i}.weight_hh_l0": "a.weight_hh_l0" for i in range(10**6)},
        ),
        "names_left_out_of_tensors_that_are_not_there": _lie(
            "opens", lambda: {f"b.bias{i}": "d.bias\x1b[2J" for i in range(10**5)}
        ),
        "a_name_left_out_that_is_stored": _lie("opens", lambda: {"b.weight_hh_l0": "a.bias_hh_l0"}),
        "a_name_left_out_of_a_million_characters": _lie(
            "characters, more than", lambda: {"c" * 10**6: "a.weight_hh_l0"}
        ),
        "names_left_out_that_look_the_same": _lie(
            "stands twice in the file", lambda: dict.fromkeys(("c\x1b", "c\\x1b"), "a.weight_hh_l0")
        ),
        "a_name_left_out_that_would_climb": _lie(
            "opens", lambda: {"../../etc/passwd\u202e": "a.weight_hh_l0"}
        ),
    },
)


def _shards(directory: Path, names: dict[str, object]) -> Path:
    (directory / "model.safetensors").write_bytes(with_metadata({"format": "pt"}))
    index = directory / "model.safetensors.index.json"
    places = dict.fromkeys(OWN, "model.safetensors")
    index.write_text(json.dumps({"metadata": names, "weight_map": places}))
    return index


@attack("more names")
def shards_whose_index_gives_a_million_names(directory: Path) -> Path:
    return _shards(directory, {f"c.{i}.weight_hh_l0": "a.weight_hh_l0" for i in range(10**6)})


@attack("opens")
def shards_whose_index_gives_names_of_wrong_types(directory: Path) -> Path:
    return _shards(directory, {"c": 3, "d": None, "e": ["a.weight_hh_l0"], "f": {"a": "a"}})
