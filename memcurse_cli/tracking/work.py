"""One checkpoint, read: the unit of work that an executor runs, and what a time series keeps of it.

What goes in and comes out is plain data: any process that sees the file can do it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from msgspec.structs import replace

from memcurse_cli.checkpoints.untrusted.names import shown_text
from memcurse_cli.diagnosis.inspection import inspect
from memcurse_cli.diagnosis.settings import Settings, choose_autocorrelation
from memcurse_cli.errors import MemcurseError
from memcurse_cli.families.detect import validate_assumptions
from memcurse_cli.schema.report import Report
from memcurse_cli.theory.autocorrelation import Autocorrelation
from memcurse_cli.theory.linalg import validate_device
from memcurse_cli.version import VERSION


@dataclass(frozen=True)
class Reading:
    """How every checkpoint of a run is read: the options of `inspect` that its figures hang on."""

    autocorrelation: tuple[tuple[float, ...], ...]  # the parts of the input's
    options: Mapping[str, Any]  # the others that were given, by name

    @classmethod
    def of(
        cls, *, rho: float | None = None, autocorrelation: str | None = None, **options: Any
    ) -> Reading:
        """The same from the arguments of `inspect`; raises `UsageError` for one out of domain."""
        given = dict(options)
        validate_device(given.pop("device", "auto"))
        validate_assumptions(given.pop("assume", None) or {})
        for name in ("family", "layers"):
            given.pop(name, None)
        horizon, readout = given.pop("horizon", None), given.pop("readout", None)
        if given.get("learning_rate") is None:
            given.pop("learning_rate", None)
        Settings.asked(None, None, horizon, readout, **given)
        return cls(tuple(choose_autocorrelation(rho, autocorrelation)), options)


@dataclass(frozen=True)
class Outcome:
    """What became of a checkpoint."""

    report: Report | None = None
    error: str | None = None
    version: str = VERSION


def read_checkpoint(path: str, reading: Reading) -> Outcome:
    """Report on one checkpoint. It never raises, since an error must not end the others' work."""
    mixture = Autocorrelation.from_components(reading.autocorrelation)
    try:
        report = inspect(path, autocorrelation=mixture, **reading.options)
        return Outcome(kept(report))
    except MemcurseError as error:
        return failed(error)
    except Exception as error:
        return failed(error, hint="memcurse inspect --debug on this checkpoint shows where")


def failed(error: BaseException, hint: str = "") -> Outcome:
    """The outcome of an error: its message on one line."""
    said = str(error)
    if isinstance(error, MemoryError):
        said = "it needs more memory than there is"
    elif not isinstance(error, MemcurseError):
        said = f"internal error, {type(error).__name__}: {said}" + f"; {hint}" * bool(hint)
    return Outcome(error=" ".join(shown_text(said).split()))


def kept(report: Report) -> Report:
    """A report without what names a path, so that equal files have equal ones wherever they lie."""
    where = f"{report.checkpoint.path}: "
    return replace(
        report,
        checkpoint=replace(report.checkpoint, path="", notes=()),
        actions=(),
        optimizer=None,
        skipped=tuple(
            replace(one, reason=one.reason.removeprefix(where)) for one in report.skipped
        ),
    )
