"""One checkpoint, read: the unit of work that an executor runs, and what a time series keeps of it.

What goes in and comes out is plain data: any process that sees the file can do it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from memcurse_cli.checkpoints.untrusted.names import shown_text
from memcurse_cli.diagnosis.inspection import inspect
from memcurse_cli.diagnosis.model import unseen_memory
from memcurse_cli.diagnosis.settings import Settings, choose_autocorrelation
from memcurse_cli.errors import MemcurseError
from memcurse_cli.families.detect import validate_assumptions
from memcurse_cli.schema.derived import Snapshot, TrackedGroup, TrackedLayer
from memcurse_cli.schema.figures import Components
from memcurse_cli.schema.report import LayerReport, Report, SkippedLayer
from memcurse_cli.theory.autocorrelation import Autocorrelation
from memcurse_cli.theory.linalg import validate_device
from memcurse_cli.version import VERSION


@dataclass(frozen=True)
class Reading:
    """How every checkpoint of a run is read: the options of `inspect` that its figures hang on."""

    autocorrelation: Components  # of the input
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

    snapshot: Snapshot | None = None
    error: str | None = None
    version: str = VERSION


def read_checkpoint(path: str, reading: Reading) -> Outcome:
    """Report on one checkpoint. It never raises, since an error must not end the others' work."""
    mixture = Autocorrelation.from_components(reading.autocorrelation)
    try:
        report = inspect(path, autocorrelation=mixture, **reading.options)
        return Outcome(take_snapshot(report))
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


def take_snapshot(report: Report) -> Snapshot:
    """The figures of a report that a time series keeps."""
    where = f"{report.checkpoint.path}: "
    return Snapshot(
        verdict=report.verdict,
        sentence=report.sentence,
        input=report.input,
        memory=report.memory,
        usable_rate=report.usable_rate,
        layers=tuple(map(_layer, report.layers)),
        # Without the path, so that equal files have equal snapshots wherever they lie.
        skipped=tuple(
            SkippedLayer(one.name, one.family, one.reason.removeprefix(where))
            for one in report.skipped
        ),
    )


def _layer(layer: LayerReport) -> TrackedLayer:
    return TrackedLayer(
        name=layer.name,
        family=layer.family,
        verdict=layer.verdict,
        memory=layer.memory,
        learning_rate=layer.learning_rate,
        usable_rate=layer.usable_rate,
        count=layer.eigenvalues.count,
        unstable=layer.eigenvalues.unstable,
        modulus=layer.eigenvalues.modulus,
        time_constant=layer.eigenvalues.time_constant,
        second_moment=layer.state.second_moment,
        groups=tuple(
            TrackedGroup(one.name, one.relative_sensitivity, one.step_effect, one.direction)
            for one in layer.parameters
        ),
        hessian=layer.hessian,
        findings=tuple(finding.code for finding in layer.findings),
        gates_alone=unseen_memory(layer),
    )
