"""Layers that a few bytes of a sparse file claim are left out before anything is read."""

from __future__ import annotations

import math
import os
import time
from pathlib import Path

import pytest
from attacks.build import entry, peak, safetensors

from memcurse_cli.diagnosis.inspection import hessian, inspect
from memcurse_cli.errors import CheckpointError, TensorError
from memcurse_cli.families.detect import MOST_LAYERS
from memcurse_cli.families.reading import LARGEST_LAYER, LARGEST_MATRIX, LARGEST_ORDER

SECONDS = 5.0  # of CPU
MEMORY = 100_000  # kilobytes

Shapes = dict[str, tuple[int, ...]]

LRU: Shapes = {f"l.{name}": (5 * 10**8,) for name in ("nu_log", "theta_log", "gamma_log")}
RNN: Shapes = {"r.weight_hh_l0": (20_000, 20_000), "r.weight_ih_l0": (20_000, 2)} | {
    f"r.bias_{side}_l0": (20_000,) for side in ("ih", "hh")
}
DENSE: Shapes = {"d.A": (10_000, 10_000), "d.B": (10_000, 2), "d.C": (2, 10_000)}
KERAS: Shapes = {"k/kernel": (300_000, 1000), "k/recurrent_kernel": (1000, 1000), "k/bias": (1000,)}
MAMBA: Shapes = {"m.A_log": (2 * 10**7, 16), "m.dt_proj.bias": (2 * 10**7,)}
# 10⁹ eigenvalues of 10⁵ scalars: one row of A stands for every channel.
S4D: Shapes = {
    "s.log_A_real": (1, 10_000),
    "s.A_imag": (1, 10_000),
    "s.log_dt": (10**5,),
    "s.C": (1, 10**5, 10_000, 2),
}
DSS: Shapes = {"s.Lambda": (10_000, 2), "s.log_dt": (10**5,), "s.W": (1, 10**5, 10_000, 2)}
STACK: Shapes = {"m.A_log": (3, 2 * 10**7, 16), "m.dt_proj.bias": (3, 2 * 10**7)}


def sparse(path: Path, shapes: Shapes) -> Path:
    """A safetensors file of zeros that takes a few kilobytes on disk."""
    header, end = {}, 0
    for name, shape in shapes.items():
        begin, end = end, end + 4 * math.prod(shape)
        header[name] = entry(list(shape), begin, end)
    head = safetensors(header)
    path.write_bytes(head)
    os.truncate(path, len(head) + end)
    return path


@pytest.mark.parametrize(
    ("shapes", "expected"),
    [
        (LRU, rf"l\.nu_log: its 500000000 elements are more than the {LARGEST_LAYER}"),
        (RNN, rf"weight_hh_l0: .* of order 20000 is above {LARGEST_ORDER}"),
        (DENSE, rf"d\.A: .* of order 10000 is above {LARGEST_ORDER}"),
        (KERAS, rf"kernel: its 300000000 elements are more than the {LARGEST_MATRIX} of a matrix"),
        (MAMBA, rf"m\.A_log: its 320000000 elements are more than the {LARGEST_LAYER}"),
        (STACK, rf"m.*: its 960000000 elements are more than the {LARGEST_LAYER}"),
        (DSS, rf"s\.log_dt: its 1000000000 eigenvalues are more than the {LARGEST_LAYER}"),
        (S4D, rf"s\.log_dt: its 1000000000 eigenvalues are more than the {LARGEST_LAYER}"),
    ],
    ids=["lru", "rnn", "dense", "keras", "mamba", "stack", "dss", "s4d"],
)
def test_a_layer_beyond_the_bounds_is_not_read(
    tmp_path: Path, shapes: Shapes, expected: str
) -> None:
    path = sparse(tmp_path / "a.safetensors", shapes)
    assert path.stat().st_blocks < 100
    before, start = peak(), time.process_time()
    for command in (inspect, hessian):
        with pytest.raises(TensorError, match=expected) as error:
            command(path)
        assert "no known model is as large" in str(error.value)
    assert time.process_time() - start < SECONDS
    assert peak() - before < MEMORY


def test_one_such_layer_does_not_spoil_the_others(tmp_path: Path) -> None:
    small: Shapes = {f"ok.{name}": (40,) for name in ("nu_log", "theta_log", "gamma_log")}
    start = time.process_time()
    report = inspect(sparse(tmp_path / "a.safetensors", LRU | small | RNN | MAMBA))
    assert time.process_time() - start < SECONDS
    (layer,) = report.layers
    assert layer.name == "ok"
    assert [skipped.name for skipped in report.skipped] == ["l", "r.l0", "m"]
    assert all(str(limit) in skipped.reason for limit, skipped in zip(
        (LARGEST_LAYER, LARGEST_ORDER, LARGEST_LAYER), report.skipped, strict=True
    ))  # fmt: skip


def test_more_layers_than_a_report_holds_are_refused(tmp_path: Path) -> None:
    names = ("nu_log", "theta_log", "gamma_log")
    layers: Shapes = {f"{i}.{name}": (1,) for i in range(MOST_LAYERS + 1) for name in names}
    path = sparse(tmp_path / "a.safetensors", layers)
    for command in (inspect, hessian):
        with pytest.raises(CheckpointError, match="10001 recurrent layers are more") as error:
            command(path)
        assert str(error.value).startswith(f"{path}: ")
        assert "--layer" in str(error.value)
    assert [layer.name for layer in inspect(path, layers=["7", "90"]).layers] == ["7", "90"]
