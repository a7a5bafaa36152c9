"""Diagnose the curse of memory in trained recurrent and state-space checkpoints.

>>> import memcurse_cli, numpy
>>> weights = {"A": 0.999 * numpy.eye(4), "B": numpy.eye(4), "C": numpy.eye(4)}
>>> report = memcurse_cli.inspect(weights, horizon=1024, learning_rate=1e-2)
>>> report.verdict, round(report.memory)
('cursed', 999)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from memcurse_cli.diagnosis.inspection import inspect
    from memcurse_cli.diagnosis.prediction import predict
    from memcurse_cli.errors import MemcurseError
    from memcurse_cli.schema.report import Report
    from memcurse_cli.theory.autocorrelation import Autocorrelation

__all__ = ["Autocorrelation", "MemcurseError", "Report", "inspect", "predict"]

# Names are imported when they are first used, so that `memcurse --help` imports no array library.
_HOMES = {
    "inspect": "memcurse_cli.diagnosis.inspection",
    "predict": "memcurse_cli.diagnosis.prediction",
    "Report": "memcurse_cli.schema.report",
    "MemcurseError": "memcurse_cli.errors",
    "Autocorrelation": "memcurse_cli.theory.autocorrelation",
}


def __getattr__(name: str) -> Any:
    import importlib

    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
