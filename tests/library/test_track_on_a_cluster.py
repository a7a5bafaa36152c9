"""`memcurse track --executor`: a run read by the workers of a Dask cluster."""

from __future__ import annotations

import json
from typing import Any

import pytest
from end_to_end.command import SAMPLES, assert_refused, memcurse

RUN = SAMPLES / "run"


def tracked(*arguments: str) -> Any:
    """The run that the command prints as JSON."""
    done = memcurse("track", RUN, "--no-cache", *arguments, "--json")
    assert (done.returncode, done.stderr) == (0, "")
    return json.loads(done.stdout)


def test_a_cluster_is_an_option(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # else rounding hangs on where work is done
    distributed = pytest.importorskip("distributed", reason="the extra dask")
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None
    ) as cluster:
        address = cluster.scheduler_address.replace("tcp://", "dask://")
        assert tracked("--executor", address) == tracked("--jobs", "1")
        refused = memcurse("track", RUN, "--executor", address, "--jobs", "2")
        assert_refused(refused, "--jobs")
