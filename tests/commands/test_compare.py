"""`memcurse compare` from the command line."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from end_to_end.command import SAMPLES, assert_refused, memcurse

LRU = SAMPLES / "lru.safetensors"


def test_what_agrees_is_counted_and_the_head_stands() -> None:
    page = memcurse("compare", LRU, LRU).stdout
    assert page.endswith("1 layer agrees within 1 %: lru.\n")
    assert "figure" not in page
    for words in ("verdict      ok ", "your rate    0.001 ", "memory       340 "):
        assert words in page
    assert page.count("(0.0019 to 0.051)") == 2
    other = memcurse("compare", LRU, SAMPLES / "complex_diagonal_rnn.safetensors").stdout
    assert "1 figure agrees within 1 %." in other
    names = {line[15:33].strip() for line in other.splitlines()}
    assert {"family", "never fade", "step effect", "Adam leaves"} <= names


def test_reports_are_read_take_no_reading_options_and_say_what_they_assume(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    assert memcurse("inspect", LRU, "--json", "--horizon", "9", "--output", path).returncode == 0
    (layer,) = json.loads(memcurse("compare", path, LRU, "--json").stdout)["layers"]
    assert "--values" in layer["spectrum_reason"]
    page = " ".join(memcurse("compare", path, LRU).stdout.split())
    assert "Not of one horizon: white noise input; 9 steps; rate 0.001" in page
    assert_refused(memcurse("compare", path, LRU, "--horizon", "9"), "is a report")
    assert_refused(memcurse("compare", "-", "-"), "only one")


def test_many_layers_share_a_table_of_what_changed(tmp_path: Path) -> None:
    paths = [tmp_path / f"{name}.npz" for name in "ab"]
    for path, longer in zip(paths, (0, 1), strict=True):
        layers = {f"l{index}.": 0.8 + 0.05 * longer * index for index in range(4)}
        np.savez(
            path,
            **{
                prefix + name: array
                for prefix, size in layers.items()
                for name, array in (("A", size * np.eye(2)), ("B", np.eye(2)), ("C", np.eye(2)))
            },
        )
    page = memcurse("compare", *paths).stdout
    rows = [line.split() for line in page.splitlines() if line.startswith("         l")]
    assert [row[0] for row in rows] == ["layer", "l1", "l2", "l3"]
    assert rows[1][1:4] == ["4.5", "→", "6.2"]
    assert rows[3][-3:] == ["2", "of", "2"]
    assert "1 layer agrees within 1 %: l0." in page
