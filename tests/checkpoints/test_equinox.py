"""Files as equinox.tree_serialise_leaves writes them: numpy.save, once for each leaf."""

from __future__ import annotations

import io
import json
from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_array_equal

import memcurse_cli
from memcurse_cli.checkpoints.npy import leaf_names
from memcurse_cli.checkpoints.open import open_checkpoint
from memcurse_cli.errors import CheckpointError

H, INPUTS = 4, 3
GRU = [(3 * H, INPUTS), (3 * H, H), (3 * H,), (H,)]
LSTM = [(4 * H, INPUTS), (4 * H, H), (4 * H,)]


def leaves(shapes: list[tuple[int, ...]]) -> list[np.ndarray]:
    generator = np.random.default_rng(0)
    return [generator.normal(size=shape).astype(np.float32) for shape in shapes]


def saved(path: Path, arrays: list[np.ndarray], settings: dict[str, int] | None = None) -> Path:
    buffer = io.BytesIO()
    if settings is not None:
        buffer.write((json.dumps(settings) + "\n").encode())
    for array in arrays:
        np.save(buffer, array)
    path.write_bytes(buffer.getvalue())
    return path


@pytest.mark.parametrize("settings", [None, {"hidden_size": H}])
def test_every_leaf_is_read_under_its_number_or_in_its_cell(
    tmp_path: Path, settings: dict[str, int] | None
) -> None:
    arrays = leaves([(INPUTS, 2), (INPUTS,), *GRU, *LSTM, (1, H), ()])
    with open_checkpoint(saved(tmp_path / "model.eqx", arrays, settings)) as store:
        assert store.format == "Equinox leaves"
        fields = ["weight_ih", "weight_hh", "bias"]
        assert list(store.tensors) == [
            *("leaf0", "leaf1"),
            *(f"cell0.{field}" for field in (*fields, "bias_n")),
            *(f"cell1.{field}" for field in fields),
            *("leaf9", "leaf10"),
        ]
        for name, array in zip(store.tensors, arrays, strict=True):
            assert_array_equal(store.read(name), array)
        assert "no names" in store.notes[0]


def test_the_cells_are_layers_of_the_report(tmp_path: Path) -> None:
    arrays = leaves([*GRU, *LSTM])
    report = memcurse_cli.inspect(saved(tmp_path / "model.eqx", arrays))
    assert [(layer.name, layer.family) for layer in report.layers] == [
        ("cell0", "gru"),
        ("cell1", "lstm"),
    ]
    value = 1 / (1 + np.exp(-arrays[2][H : 2 * H].astype(float)))
    assert report.layers[0].eigenvalues.modulus is not None
    assert report.layers[0].eigenvalues.modulus.max == pytest.approx(value.max(), rel=1e-6)


def test_shapes_that_are_those_of_other_modules_stay_numbered() -> None:
    perceptron = [(3 * H, INPUTS), (3 * H,), (H, 3 * H), (H,)]
    for shapes in (perceptron, GRU[:3], [*GRU[:3], (H + 1,)], LSTM[:2], [(0, 0)] * 3, [(8,)] * 4):
        assert leaf_names(shapes) == [f"leaf{index}" for index in range(len(shapes))]


def test_one_array_alone_is_numpy_s(tmp_path: Path) -> None:
    with open_checkpoint(saved(tmp_path / "w.npy", leaves([(2, 2)]))) as store:
        assert store.format == "NumPy .npy"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda content: content[:-1], "leaf 6 reaches beyond the end"),
        (lambda content: content + b"\x93NUMPY", "leaf 7 has no valid header"),
        (
            lambda content: content[:300] + content[300:].replace(b"'<f4'", b"'|O' "),
            "leaf 2 is an array of Python objects",
        ),
    ],
)
def test_damaged_files_are_refused(tmp_path: Path, change: object, message: str) -> None:
    path = saved(tmp_path / "model.eqx", leaves([*GRU, *LSTM]))
    assert callable(change)
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(CheckpointError, match=message):
        open_checkpoint(path)
