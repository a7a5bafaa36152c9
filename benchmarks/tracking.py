"""`python -m benchmarks.tracking`: what the cache and a second process save.

Writes the table of docs/track.md: a run of checkpoints tracked as whole processes, in pairs that
differ in one thing, with the median of the ratio pair by pair. Each process of ours has one thread
of linear algebra.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

import numpy as np
import safetensors.numpy

from benchmarks.measure import compare

MEMCURSE = str(Path(sys.executable).parent / "memcurse")
PAGE = Path(__file__).parents[1] / "docs" / "track.md"
MARKS = ("<!-- tracking -->\n", "<!-- /tracking -->")
CHECKPOINTS, LAYERS, UNITS, WIDTH = 32, 8, 256, 64
PAIRS = 5


def main() -> None:
    """Measure and write."""
    os.environ["OMP_NUM_THREADS"] = "1"
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        run.mkdir()
        for index in range(CHECKPOINTS):
            write_checkpoint(run / f"step_{1000 * index}.safetensors", index)
        size = sum(path.stat().st_size for path in run.iterdir())
        track = [MEMCURSE, "track", str(run)]
        one = [*track, "--no-cache", "--jobs", "1"]
        two = [*track, "--no-cache", "--jobs", "2"]
        cached = [*track, "--jobs", "1", "--cache", str(Path(folder) / "cache")]
        rows = [
            (
                "all of it in the cache, against reading it in one process",
                compare(cached, one, PAIRS),
            ),
            ("two processes against one, without the cache", compare(two, one, PAIRS)),
        ]
    measured_on = (
        f"A run of {CHECKPOINTS} checkpoints of {LAYERS} LRU layers of {UNITS} units, "
        f"{size / 1e6:.0f} MB, on {len(os.sched_getaffinity(0))} cores; medians of {PAIRS} pairs "
        "of whole processes (`python -m benchmarks.tracking`)."
    )
    table = [
        "| what | seconds | against | ratio |",
        "|---|---|---|---|",
        *(
            f"| {what} | {figure.seconds:.2f} | {figure.peer_seconds:.2f} | {figure.ratio:.2f} |"
            for what, figure in rows
        ),
        "",
        measured_on,
    ]
    text = PAGE.read_text(encoding="utf-8")
    start, end = text.index(MARKS[0]) + len(MARKS[0]), text.index(MARKS[1])
    PAGE.write_text(text[:start] + "\n" + "\n".join(table) + "\n\n" + text[end:], encoding="utf-8")


def write_checkpoint(
    path: Path, index: int, layers: int = LAYERS, units: int = UNITS, width: int = WIDTH
) -> None:
    """A stack of LRUs whose memory grows along the run."""
    random = np.random.default_rng(index)
    tensors = {}
    for layer in range(layers):
        modulus = 1 - 10 ** -random.uniform(1, 1.5 + 2 * index / CHECKPOINTS, units)
        tensors |= {
            f"layers.{layer}.nu_log": np.log(-np.log(modulus)),
            f"layers.{layer}.theta_log": np.log(random.uniform(0.01, 3.1, units)),
            f"layers.{layer}.gamma_log": 0.5 * np.log1p(-(modulus**2)),
        }
        for name, shape in (("B", (units, width)), ("C", (width, units))):
            for part in ("re", "im"):
                drawn = random.standard_normal(shape) / np.sqrt(2 * shape[1])
                tensors[f"layers.{layer}.{name}_{part}"] = drawn
        tensors[f"layers.{layer}.D"] = random.standard_normal(width)
    tensors = {name: values.astype(np.float32) for name, values in tensors.items()}
    safetensors.numpy.save_file(tensors, path)


if __name__ == "__main__":
    main()
