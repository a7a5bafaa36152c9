"""`python -m benchmarks.cluster`: a run of a thousand checkpoints on a Dask cluster.

Tracks it on 1, 2 and 4 workers of this machine and in one process of the command, then while a
worker and while the scheduler is killed, and writes the tables of docs/scaling.md and cluster.json.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.calibration.page import DOCS, markdown_table, put
from benchmarks.tracking import write_checkpoint

RESULTS = Path(__file__).with_name("cluster.json")
PAGE = DOCS / "scaling.md"
MARKS = ("<!-- cluster -->\n", "<!-- /cluster -->")
MEMCURSE = str(Path(sys.executable).parent / "memcurse")
CHECKPOINTS, MANY = 1000, 100_000
REPEATED = "what was left when the scheduler was killed half-way"
SIZES = 1, 16, 4  # layers, units and width of an LRU stack
WORKERS = (1, 2, 4)
ADDRESS, PORT = "127.0.0.1", 38786


class Cluster:
    """A scheduler and its workers, each a process of one thread."""

    def __init__(self, workers: int) -> None:
        self.scheduler = _start("scheduler", f"--host={ADDRESS}", f"--port={PORT}")
        tcp = f"tcp://{ADDRESS}:{PORT}"
        self.workers = [_start("worker", tcp, "--nthreads=1", "--no-nanny") for _ in range(workers)]
        from distributed import Client

        with Client(tcp, timeout=60) as client:
            client.wait_for_workers(workers, timeout=60)

    def stop(self) -> None:
        """Kill what still runs."""
        for process in (*self.workers, self.scheduler):
            process.kill()
            process.wait()


@contextlib.contextmanager
def cluster(workers: int) -> Iterator[Cluster]:
    """A cluster, which ends with the block."""
    made = Cluster(workers)
    try:
        yield made
    finally:
        made.stop()


def _start(part: str, *options: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", f"distributed.cli.dask_{part}", *options, "--no-dashboard"]
    quiet = subprocess.DEVNULL
    return subprocess.Popen(command, stdout=quiet, stderr=quiet)


def track(run: Path, *options: str) -> subprocess.Popen[str]:
    """`memcurse track` of a run, as a process whose JSON is read from its output."""
    command = [MEMCURSE, "track", str(run), "--json", *options]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def steps(process: subprocess.Popen[str]) -> list[Any]:
    """What it tells of every checkpoint."""
    printed, errors = process.communicate()
    if process.returncode:
        raise RuntimeError(errors)
    return list(json.loads(printed)["steps"])


def main() -> None:
    """Measure and write."""
    os.environ["OMP_NUM_THREADS"] = "1"
    on_dask = f"--executor=dask://{ADDRESS}:{PORT}"
    with tempfile.TemporaryDirectory() as folder:
        run, cache = Path(folder) / "run", Path(folder) / "cache"
        run.mkdir()
        for index in range(CHECKPOINTS):
            write_checkpoint(run / f"step_{index}.safetensors", index % 32, *SIZES)
        size = sum(path.stat().st_size for path in run.iterdir())

        def timed(*options: str) -> float:
            started = time.perf_counter()
            assert steps(track(run, "--no-cache", *options)) == whole
            return time.perf_counter() - started

        began = time.perf_counter()
        whole = steps(track(run, "--no-cache", "--jobs=1"))
        seconds = {"one process": time.perf_counter() - began}
        seconds["two processes"] = timed("--jobs=2")
        for workers in WORKERS:
            with cluster(workers):
                seconds[f"Dask, {workers} worker{'s' * (workers > 1)}"] = timed(on_dask)
        with cluster(2) as made:
            process = track(run, "--no-cache", on_dask)
            time.sleep(seconds["Dask, 2 workers"] / 3)
            made.workers[0].send_signal(signal.SIGKILL)
            without_worker = steps(process) == whole
        with cluster(2) as made:
            process = track(run, f"--cache={cache}", on_dask)
            time.sleep(seconds["Dask, 2 workers"] / 2)
            made.scheduler.send_signal(signal.SIGKILL)
            _, told = process.communicate()
        with cluster(2):
            began = time.perf_counter()
            again = steps(track(run, f"--cache={cache}", on_dask)) == whole
            seconds[REPEATED] = time.perf_counter() - began
    result = {
        "checkpoints": CHECKPOINTS,
        "megabytes": round(size / 1e6),
        "cores": len(os.sched_getaffinity(0)),
        "seconds": {name: round(one, 1) for name, one in seconds.items()},
        "a worker killed, nothing lost": without_worker,
        "the scheduler killed": told.strip(),
        "repeated, nothing lost": again,
    }
    RESULTS.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    put({MARKS: table(result)}, PAGE)


def table(result: dict[str, Any]) -> str:
    """The table of the page."""
    one, rows = result["seconds"]["one process"], []
    for name, seconds in result["seconds"].items():
        each = seconds / result["checkpoints"]
        hours = each * MANY / 3600
        row = [name, f"{seconds:.1f}"]
        if name != REPEATED:
            row += [f"{1000 * each:.0f}", f"{seconds / one:.2f}", f"{hours:.1f}"]
        rows.append([*row, *[""] * (5 - len(row))])
    columns = ["read by", "seconds", "ms a checkpoint", "over one process", f"hours for {MANY:,}"]
    return markdown_table(columns, rows) + "\n"


if __name__ == "__main__":
    main()
