"""The same work in this process, in others, and on a Dask cluster of real worker processes."""

from __future__ import annotations

import json
import logging
import multiprocessing
import os
import queue
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from tracking.build import write, write_run

from memcurse_cli.errors import UsageError
from memcurse_cli.tracking import executors
from memcurse_cli.tracking.executors import DIED, Processes, cores, inline, open_executor
from memcurse_cli.tracking.work import Outcome, Reading, read_checkpoint

READING = Reading.of(rho=0.5)


@pytest.fixture
def paths(tmp_path: Path) -> list[str]:
    return [str(path) for path in write_run(tmp_path)]


def test_processes_give_what_this_process_gives(paths: list[str]) -> None:
    before = multiprocessing.active_children()
    assert dict(Processes(2)(paths, READING)) == dict(inline(paths, READING))
    assert multiprocessing.active_children() == before


def die_of_the_third(path: str, reading: Reading) -> Outcome:
    """What the kernel does to a process that takes too much memory."""
    if "step_200" in path:
        os.kill(os.getpid(), signal.SIGKILL)
    return read_checkpoint(path, reading)


def test_a_process_that_is_killed_costs_its_own_checkpoint(
    paths: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(executors, "read_checkpoint", die_of_the_third)
    outcomes = dict(Processes(2)(paths, READING))
    assert set(outcomes) == set(paths)
    failed = {path: outcome.error for path, outcome in outcomes.items() if outcome.error}
    assert failed == {paths[2]: DIED}


def test_leaving_early_ends_the_processes(paths: list[str]) -> None:
    before = set(multiprocessing.active_children())
    outcomes = Processes(2)(paths, READING)
    next(outcomes)
    outcomes.close()
    assert set(multiprocessing.active_children()) == before


def environment_of_a_worker(name: str) -> str | None:
    return os.environ.get(name)


def test_workers_share_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(executors, "cores", lambda: 6)
    with executors._pool(2) as pool:
        assert pool.submit(environment_of_a_worker, "OMP_NUM_THREADS").result() == "3"
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    with executors._pool(2) as pool:
        assert pool.submit(environment_of_a_worker, "OMP_NUM_THREADS").result() == "5"


@pytest.mark.skipif(not hasattr(signal, "pthread_sigmask"), reason="no signal can be blocked")
def test_an_interrupt_never_reaches_a_worker() -> None:
    """Not even one that is still starting, and has not been told to leave it to its parent."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    with executors._pool(1) as pool:
        assert signal.SIGINT in pool.submit(signal.pthread_sigmask, signal.SIG_BLOCK, []).result()
    assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == before


ORPHAN = """
import time
from memcurse_cli.tracking.executors import _pool
if __name__ == "__main__":
    with _pool(1) as pool:
        print(pool.submit(__import__("os").getpid).result(), flush=True)
        time.sleep(60)
"""


@pytest.mark.skipif(not Path("/proc").exists(), reason="processes are looked up in /proc")
def test_workers_do_not_outlive_a_parent_that_was_killed(tmp_path: Path) -> None:
    script = tmp_path / "parent.py"
    script.write_text(ORPHAN)
    with subprocess.Popen([sys.executable, script], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        worker = Path("/proc") / parent.stdout.readline().strip()
        assert worker.exists()
        parent.kill()
    until = time.monotonic() + 20
    while worker.exists() and time.monotonic() < until:
        time.sleep(0.05)
    assert not worker.exists()


def test_jobs_choose_where_work_is_done() -> None:
    with open_executor(None, 1) as run:
        assert run is inline
    with open_executor(None, 3) as run:
        assert run == Processes(3)
    with open_executor(None, None) as run:
        assert run == (Processes(cores()) if cores() > 1 else inline)


@pytest.mark.parametrize(
    "address",
    [
        *("dask://", "dask://host", "dask://:8786", "tcp://host:1", "dask://host:x", "spark"),
        *("dask://me:secret@host:1", "dask://me:sec/ret@host:1", "dask://host:1?secret:1"),
    ],
)
def test_another_address_is_refused(address: str) -> None:
    with pytest.raises(UsageError, match="dask://HOST:PORT") as caught:
        open_executor(address, None)
    assert "sec" not in str(caught.value)


def test_a_cluster_has_its_own_number_of_workers() -> None:
    with pytest.raises(UsageError, match="--jobs"):
        open_executor("dask://host:8786", 2)


def test_without_dask_the_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)
    with (
        pytest.raises(UsageError, match=r"pip install 'memcurse-cli\[dask\]'"),
        open_executor("dask://localhost:1", None),
    ):
        pass


def test_the_core_imports_no_dask() -> None:
    code = (
        "import sys; from memcurse_cli.__main__ import run; "
        "run(['track', 'sample_checkpoints/run', '--no-cache', '--jobs', '1']); "
        "sys.exit('distributed' in sys.modules or 'dask' in sys.modules)"
    )
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, check=False)
    assert done.returncode == 0


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """A scheduler and two worker processes."""
    distributed = pytest.importorskip("distributed", reason="the extra dask")
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None
    ) as made:
        yield made


def address(cluster: Any) -> str:
    found: str = cluster.scheduler_address
    return found.replace("tcp://", "dask://")


def test_a_cluster_gives_what_this_process_gives(cluster: Any, paths: list[str]) -> None:
    broken = write(Path(paths[0]).with_name("step_9.safetensors"), 0.5)
    broken.write_bytes(b"x")
    with open_executor(address(cluster), None) as run:
        everything = [*paths, str(broken)]
        assert dict(run(everything, READING)) == dict(inline(everything, READING))


def test_nothing_is_lost_with_a_worker(cluster: Any, tmp_path: Path) -> None:
    """One of two workers is killed as soon as the first checkpoint is done."""
    moduli = tuple(0.5 + 0.004 * index for index in range(120))
    paths = [str(path) for path in write_run(tmp_path, moduli)]
    workers = [worker.process.pid for worker in cluster.workers.values()]
    assert len(workers) == 2
    with open_executor(address(cluster), None) as run:
        outcomes = run(paths, READING)
        done = dict([next(outcomes)])
        os.kill(workers[0], signal.SIGKILL)
        done.update(outcomes)
    assert done == dict(inline(paths, READING))


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


def test_an_executor_that_fails_says_so(paths: list[str]) -> None:
    with ProcessPoolExecutor(1) as executor:
        executor.shutdown()
        with pytest.raises(RuntimeError):
            list(executors.on_executor(executor, paths, READING))
