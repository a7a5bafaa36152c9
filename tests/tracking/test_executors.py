"""The same work in this process and in others."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tracking.build import write_run

from memcurse_cli.errors import UsageError
from memcurse_cli.tracking import executors
from memcurse_cli.tracking.executors import (
    DIED,
    Outcome,
    Reading,
    in_processes,
    open_executor,
    read_checkpoint,
)

READING = Reading.of(rho=0.5)


@pytest.fixture
def paths(tmp_path: Path) -> list[str]:
    return [str(path) for path in write_run(tmp_path)]


def die_of_the_third(path: str, reading: Reading) -> Outcome:
    """What the kernel does to a process that takes too much memory."""
    if "step_200" in path:
        os.kill(os.getpid(), signal.SIGKILL)
    return read_checkpoint(path, reading)


def test_a_process_that_is_killed_costs_its_own_checkpoint(
    paths: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(executors, "read_checkpoint", die_of_the_third)
    outcomes = dict(in_processes(2, paths, READING))
    assert set(outcomes) == set(paths)
    failed = {path: outcome.error for path, outcome in outcomes.items() if outcome.error}
    assert failed == {paths[2]: DIED}


def test_leaving_early_ends_the_processes(paths: list[str]) -> None:
    before = set(multiprocessing.active_children())
    outcomes = in_processes(2, paths, READING)
    next(outcomes)
    outcomes.close()
    assert set(multiprocessing.active_children()) == before


def test_workers_share_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(executors, "cores", lambda: 6)
    with executors._pool(2) as pool:
        assert pool.submit(os.getenv, "OMP_NUM_THREADS").result() == "3"
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    with executors._pool(2) as pool:
        assert pool.submit(os.getenv, "OMP_NUM_THREADS").result() == "5"


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
        worker = Path("/proc") / parent.stdout.readline().strip()
        assert worker.exists()
        parent.kill()
    until = time.monotonic() + 20
    while worker.exists() and time.monotonic() < until:
        time.sleep(0.05)
    assert not worker.exists()


def test_another_address_is_refused_and_without_dask_it_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    others = ("dask://host", "tcp://host:1", "dask://host:x", "dask://h:1?sec:1")
    for address in (*others, "dask://me:sec/ret@host:1"):
        with pytest.raises(UsageError, match="dask://HOST:PORT") as caught:
            open_executor(address, None)
        assert "sec" not in str(caught.value)
    monkeypatch.setitem(sys.modules, "distributed", None)
    with (
        pytest.raises(UsageError, match=r"pip install 'memcurse-cli\[dask\]'"),
        open_executor("dask://localhost:1", None),
    ):
        pass
