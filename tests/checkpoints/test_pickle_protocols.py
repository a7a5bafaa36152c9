"""Pickles of protocols 0 and 1, which have no mark: written by the pickle module itself."""

from __future__ import annotations

import pickle
import random
import string
from collections import OrderedDict, defaultdict
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from checkpoints import readers

from memcurse_cli.checkpoints.open import open_checkpoint
from memcurse_cli.checkpoints.torch.pickle_machine import begins_like_a_pickle
from memcurse_cli.errors import CheckpointError

PROTOCOLS = pytest.mark.parametrize("protocol", [0, 1])
RANDOM = np.random.default_rng(0)
ARRAYS = {
    "weight_hh": RANDOM.standard_normal((40, 30)).astype(np.float32),
    "every_byte": np.arange(512, dtype=np.uint8),
    "newlines": np.full(300, 0x0A0A5C5C, dtype="<u4"),
    "fortran": np.asfortranarray(RANDOM.standard_normal((20, 7))),
    "big_endian": np.arange(100, dtype=">f8"),
    "short": np.array([1.5, -2.5]),
    "complex": np.array([1 + 2j, 3]),
    "bool": np.array([True, False]),
}


class Python2(pickle._Pickler):  # type: ignore[name-defined, misc]
    """Writes bytes as Python 2 wrote its str: one instruction for names and for raw data."""

    dispatch: ClassVar[dict[type, Any]] = dict(pickle._Pickler.dispatch)  # type: ignore[attr-defined]

    def save_str(self, value: bytes | str) -> None:
        content = value.encode("latin-1") if isinstance(value, str) else value
        if not self.bin:
            self.write(b"S" + repr(content)[1:].encode("ascii") + b"\n")
        elif len(content) < 256:
            self.write(b"U" + bytes([len(content)]) + content)
        else:
            self.write(b"T" + len(content).to_bytes(4, "little") + content)
        self.memoize(value)

    dispatch[bytes] = dispatch[str] = save_str


class Cell:
    """An object of a class, whose attributes hold the weights."""

    def __init__(self) -> None:
        self.kernel = np.eye(3)
        self.inner = {"bias": np.arange(70.0)}


def read_back(path: Path, content: bytes) -> dict[str, np.ndarray[Any, Any]]:
    path.write_bytes(content)
    with open_checkpoint(path) as store:
        assert store.format == "pickle"
        return {name: store.read(name) for name in store.tensors}


def assert_arrays(found: dict[str, Any], prefix: str = "") -> None:
    assert list(found) == [prefix + name for name in ARRAYS]
    for name, array in ARRAYS.items():
        np.testing.assert_array_equal(found[prefix + name], readers.double(array), strict=True)


@PROTOCOLS
@pytest.mark.parametrize("kind", [dict, OrderedDict])
def test_a_dictionary_of_arrays(tmp_path: Path, protocol: int, kind: type) -> None:
    assert_arrays(read_back(tmp_path / "a", pickle.dumps(kind(ARRAYS), protocol)))


@PROTOCOLS
def test_containers_within_containers(tmp_path: Path, protocol: int) -> None:
    tree = (10**30, {"step": -3, "lr": 1e-3, "net": [OrderedDict(layer=ARRAYS), None, True, "ß"]})
    found = read_back(tmp_path / "a", pickle.dumps(tree, protocol))
    assert_arrays(found, "1/net/0/layer/")


@PROTOCOLS
def test_a_default_dictionary_and_an_array_alone(tmp_path: Path, protocol: int) -> None:
    content = pickle.dumps(defaultdict(list, ARRAYS), protocol)
    assert_arrays(read_back(tmp_path / "a", content))
    (found,) = read_back(tmp_path / "a", pickle.dumps(ARRAYS["weight_hh"], protocol)).values()
    np.testing.assert_array_equal(found, ARRAYS["weight_hh"])


@PROTOCOLS
def test_the_attributes_of_an_object(tmp_path: Path, protocol: int) -> None:
    content = pickle.dumps({"cell": Cell()}, protocol)
    assert b"copy_reg\n_reconstructor" in content
    found = read_back(tmp_path / "a", content)
    assert list(found) == ["cell/kernel", "cell/inner/bias"]
    np.testing.assert_array_equal(found["cell/inner/bias"], np.arange(70.0))


def instance(state: dict[str, Any], protocol: int) -> bytes:
    """An instance of a Python 2 class without `object`: INST in protocol 0, OBJ in protocol 1."""
    made = b"(imodel\nCell\np9\n" if protocol == 0 else b"(cmodel\nCell\nq\x08oq\x09"
    return made + pickle.dumps(state, protocol)[:-1] + b"b."


@PROTOCOLS
def test_an_instance_of_an_old_class(tmp_path: Path, protocol: int) -> None:
    assert_arrays(read_back(tmp_path / "a", instance(ARRAYS, protocol)))


@PROTOCOLS
def test_the_strings_of_python_2(tmp_path: Path, protocol: int) -> None:
    with (tmp_path / "a").open("wb") as file:
        Python2(file, protocol).dump({"net": ARRAYS})
    content = (tmp_path / "a").read_bytes()
    assert not any(name in content for name in (b"_codecs", b"\x80\x02"))
    back = pickle.loads(content, encoding="latin1")
    np.testing.assert_array_equal(back["net"]["every_byte"], ARRAYS["every_byte"])
    assert_arrays(read_back(tmp_path / "a", content), "net/")


@PROTOCOLS
def test_torch_tensors(tmp_path: Path, protocol: int) -> None:
    state = {"rnn.weight_hh_l0": torch.randn(30, 30), "half": torch.ones(3, dtype=torch.bfloat16)}
    found = read_back(tmp_path / "a", pickle.dumps(OrderedDict(state), protocol))
    for name, tensor in state.items():
        np.testing.assert_array_equal(found[name], readers.double(tensor), strict=True)


@PROTOCOLS
def test_lines_across_every_border_of_a_chunk(tmp_path: Path, protocol: int) -> None:
    for length in range(65_400, 65_600, 17):
        tree = {"a": np.zeros(length, np.uint8) + 65, "b": np.arange(3.0)}
        found = read_back(tmp_path / "a", pickle.dumps(tree, protocol))
        assert found["a"].size == length
        np.testing.assert_array_equal(found["b"], [0, 1, 2])


def test_text_is_not_taken_for_a_pickle() -> None:
    draw = random.Random(0)
    words = ["".join(draw.choices(string.ascii_lowercase, k=3)) for _ in range(4000)]
    texts = [
        "(lambda x: x)\n", "(see below)\np1\n", "cat\ndog\ncow\nelk\n" * 4, "}\n", "]\n", "N.",
        "I1\n", "1\n2\n3\n", "0.5 0.25\n",
        "{'a': 1}", "[[1, 2], [3, 4]]\n", "import numpy\n", "", ".",
        "(dp\n", "(i)\n(ii)\n", "\n".join(sorted(words)), "\n".join(words), "((((((((((.",
    ]  # fmt: skip
    texts += [f"{first}{' '.join(draw.sample(words, 20))}\n" for first in "(}])cilSVIF" * 40]
    for text in texts:
        assert not begins_like_a_pickle(text.encode()[:4096]), text[:40]


@PROTOCOLS
def test_every_small_container_begins_like_a_pickle(protocol: int) -> None:
    for value in ({}, [], {"a": 1}, [1], (1, 2, {}), [{}], ((), {}, {1: []}), Cell(), np.eye(2)):
        assert begins_like_a_pickle(pickle.dumps(value, protocol)[:4096]), value


@pytest.mark.parametrize("cut", [7, 60, 300, 2000, -1])
def test_a_pickle_that_is_cut_off_is_refused(tmp_path: Path, cut: int) -> None:
    (tmp_path / "a").write_bytes(pickle.dumps({"w": np.eye(20)}, 0)[:cut])
    with pytest.raises(CheckpointError):
        open_checkpoint(tmp_path / "a")
