"""Checkpoints read on a Dask cluster of real worker processes."""

from __future__ import annotations

import json
import logging
import os
import queue
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import pytest
from end_to_end.command import SAMPLES, assert_refused, memcurse
from tracking.build import write, write_run

from memcurse_cli.errors import UsageError
from memcurse_cli.schema.json_codec import encode
from memcurse_cli.tracking import executors
from memcurse_cli.tracking.executors import Reading, inline, open_executor

READING = Reading.of(rho=0.5)


@pytest.fixture
def paths(tmp_path: Path) -> list[str]:
    return [str(path) for path in write_run(tmp_path)]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """A scheduler and two worker processes."""
    distributed = pytest.importorskip("distributed", reason="the extra dask")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")  # else rounding hangs on where work is done
        with distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None
        ) as made:
            yield made


def address(cluster: Any) -> str:
    return cluster.scheduler_address.replace("tcp://", "dask://")


@pytest.mark.parametrize(
    "call", [("track", SAMPLES / "run", "--no-cache"), ("inspect", SAMPLES / "run" / "*")]
)
def test_a_cluster_is_an_option_of_the_command(
    call: tuple[Any, ...], cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    told = []
    for chosen in (("--executor", address(cluster)), ("--jobs", "2"), ("--jobs", "1")):
        done = memcurse(*call, *chosen, "--json")
        assert (done.returncode, done.stderr) == (0, "")
        told.append(json.loads(done.stdout))
    assert told[0] == told[1] == told[2]
    refused = memcurse(*call, "--executor", address(cluster), "--jobs", "2")
    assert_refused(refused, "--jobs")


def test_nothing_is_lost_with_a_worker(cluster: Any, tmp_path: Path) -> None:
    """One of two workers is killed as soon as the first checkpoint is done."""
    moduli = tuple(0.5 + 0.004 * index for index in range(120))
    paths = [str(path) for path in write_run(tmp_path, moduli)]
    write(tmp_path / "broken" / "step_9.safetensors", 0.5).write_bytes(b"x")
    paths.append(str(tmp_path / "broken" / "step_9.safetensors"))
    workers = [worker.process.pid for worker in cluster.workers.values()]
    assert len(workers) == 2
    with open_executor(address(cluster), None) as run:
        outcomes = run(paths, READING)
        done = dict([next(outcomes)])
        os.kill(workers[0], signal.SIGKILL)
        done.update(outcomes)
    wanted = dict(inline(paths, READING))
    assert set(done) == set(wanted)
    for path, outcome in wanted.items():
        assert done[path].error == outcome.error
        trees = [encode(one.report) for one in (done[path], outcome)]
        assert jax.tree.structure(trees[0]) == jax.tree.structure(trees[1])
        for one, other in zip(*map(jax.tree.leaves, trees), strict=True):
            # Another number of threads rounds otherwise.
            assert one == (pytest.approx(other, rel=1e-9) if isinstance(other, float) else other)


def test_nobody_at_the_address_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("distributed", reason="the extra dask")
    monkeypatch.setattr(executors, "CONNECT_SECONDS", 0.5)
    with (
        pytest.raises(UsageError, match="no Dask scheduler answers"),
        open_executor("dask://127.0.0.1:9", None),
    ):
        pass


@pytest.fixture
def scheduler(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """A scheduler without workers in a process of its own, and where it is."""
    pytest.importorskip("distributed", reason="the extra dask")
    file = tmp_path / "scheduler.json"
    command = [sys.executable, "-m", "distributed.cli.dask_scheduler", "--no-dashboard"]
    place = ["--host", "127.0.0.1", "--port", "0", "--scheduler-file", str(file)]
    with subprocess.Popen([*command, *place], stderr=subprocess.DEVNULL) as running:
        while not file.exists() or not file.read_text().endswith("}"):
            assert running.poll() is None
            time.sleep(0.05)
        yield running, json.loads(file.read_text())["address"].replace("tcp://", "dask://")
        running.kill()


@pytest.mark.parametrize("after", ["submission", "connection"])
def test_a_scheduler_that_is_lost_is_one_line(
    after: str,
    scheduler: tuple[subprocess.Popen[bytes], str],
    paths: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    running, address = scheduler
    monkeypatch.setattr(executors, "LOOK_SECONDS", 0.1)

    def kill(future: object = None) -> None:
        running.kill()
        running.wait()

    def read() -> None:
        with open_executor(address, None) as run:
            if after == "connection":
                kill()
            for name in executors.DASK_LOGGERS:
                assert not logging.getLogger(name).isEnabledFor(logging.ERROR)
            list(run(paths, READING))

    if after == "submission":
        monkeypatch.setattr(executors, "SimpleQueue", lambda: kill() or queue.SimpleQueue())
    with pytest.raises(UsageError, match=r"scheduler at \S+ was lost; start it again"):
        read()
