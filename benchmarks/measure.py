"""Time whole processes in pairs, so that a machine's drift falls on both."""

from __future__ import annotations

import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any


@dataclass(frozen=True)
class Run:
    """One finished process."""

    seconds: float
    mebibytes: float


@dataclass(frozen=True)
class Figure:
    """Medians of our runs and the peer's, and of the ratio pair by pair."""

    seconds: float
    peer_seconds: float
    ratio: float
    mebibytes: float
    peer_mebibytes: float


def environment(libraries: Sequence[str]) -> dict[str, Any]:
    """What a machine and its libraries are, beside what was measured there."""
    return {
        "python": platform.python_version(),
        "machine": platform.machine(),
        "system": platform.system(),
        "cores": os.cpu_count(),
        **{name: version(name) for name in libraries},
    }


def run(command: Sequence[str]) -> Run:
    """Run a command to its end; its output is read and thrown away.

    Raises:
        RuntimeError: it did not exit with 0.
    """
    # Without compiled bytecode every start would compile the package anew, which no user sees.
    variables = {
        name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"
    }
    started = time.perf_counter()
    process = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=variables
    )
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - started
    if os.waitstatus_to_exitcode(status) != 0:
        raise RuntimeError(f"{command} exited with {os.waitstatus_to_exitcode(status)}")
    process.returncode = 0
    kibibytes = usage.ru_maxrss / (1024 if sys.platform == "darwin" else 1)
    return Run(seconds, kibibytes / 1024)


def compare(ours: Sequence[str], peer: Sequence[str], pairs: int) -> Figure:
    """Run two commands in turn, after one warm-up of each."""
    run(ours)
    run(peer)
    runs = [(run(ours), run(peer)) for _ in range(pairs)]
    return Figure(
        seconds=statistics.median(a.seconds for a, _ in runs),
        peer_seconds=statistics.median(b.seconds for _, b in runs),
        ratio=statistics.median(a.seconds / b.seconds for a, b in runs),
        mebibytes=statistics.median(a.mebibytes for a, _ in runs),
        peer_mebibytes=statistics.median(b.mebibytes for _, b in runs),
    )
