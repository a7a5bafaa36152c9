"""One checkpoint, read: the unit of work that an executor runs, and what a time series keeps of it.

What goes in and comes out is plain data: any process that sees the file can do it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from memcurse_cli.checkpoints.untrusted.names import shown_text
from memcurse_cli.diagnosis.inspection import inspect
from memcurse_cli.diagnosis.settings import Settings, check_readout, choose_autocorrelation
from memcurse_cli.diagnosis.verdicts import smallest_rate
from memcurse_cli.errors import MemcurseError
from memcurse_cli.families.detect import validate_assumptions
from memcurse_cli.families.reading import time_constants
from memcurse_cli.schema.derived import (
    Snapshot,
    Spread,
    Summary,
    TrackedGroup,
    TrackedLayer,
    WorstGroup,
)
from memcurse_cli.schema.figures import Components, Quantiles, diverges, parameter_rank, quantiles
from memcurse_cli.schema.report import EigenvalueSummary, LayerReport, Report, SkippedLayer
from memcurse_cli.theory.autocorrelation import Autocorrelation
from memcurse_cli.theory.linalg import validate_device
from memcurse_cli.version import VERSION

Floats = NDArray[np.float64]


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
        check_readout(given.pop("readout", None))
        validate_device(given.pop("device", "auto"))
        validate_assumptions(given.pop("assume", None) or {})
        for name in ("family", "layers"):
            given.pop(name, None)
        Settings(**given)
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
        report = inspect(path, autocorrelation=mixture, **reading.options, values=True)
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
    """The figures of a report that was taken with every eigenvalue (``values=True``)."""
    where = f"{report.checkpoint.path}: "
    return Snapshot(
        verdict=report.verdict,
        sentence=report.sentence,
        input=report.input,
        summary=summarise(report.layers),
        layers=tuple(map(_layer, report.layers)),
        # Without the path, so that equal files have equal snapshots wherever they lie.
        skipped=tuple(
            SkippedLayer(one.name, one.family, one.reason.removeprefix(where))
            for one in report.skipped
        ),
    )


def _layer(layer: LayerReport) -> TrackedLayer:
    spectrum = layer.eigenvalues
    log_moduli = _log_moduli(spectrum)
    return TrackedLayer(
        name=layer.name,
        family=layer.family,
        count=spectrum.count,
        unstable=spectrum.unstable,
        modulus=_spread(spectrum.modulus, np.exp(log_moduli)),
        time_constant=_spread(spectrum.time_constant, time_constants(log_moduli)),
        second_moment=layer.state.second_moment,
        groups=tuple(
            TrackedGroup(
                name=group.name,
                relative_sensitivity=group.relative_sensitivity,
                step_effect=group.step_effect,
                direction=group.direction,
                verdict=group.verdict,
            )
            for group in layer.parameters
        ),
        hessian=layer.hessian,
        usable_rate=layer.usable_rate,
        verdict=layer.verdict,
        findings=tuple(finding.code for finding in layer.findings),
        hidden_feedback=layer.hidden_feedback,
    )


def _spread(known: Quantiles, elements: Floats) -> Spread:
    """A report's quantiles, and the one of the lower end that it does not have."""
    ordered, tenth = np.sort(elements), None
    if ordered.size:  # linear between elements, as in a report
        place = 0.1 * (ordered.size - 1)
        below, above = ordered[int(np.floor(place))], ordered[int(np.ceil(place))]
        if not np.isinf(above):
            tenth = float(below + (above - below) * (place - np.floor(place)))
    return Spread(p10=tenth, **asdict(known))


def _log_moduli(spectrum: EigenvalueSummary) -> Floats:
    """log|λ| of each eigenvalue, by way of |λ|² - 1, which is small near the unit circle."""
    values = np.array(spectrum.values or (), np.float64).reshape(-1, 2)
    real = np.abs(values[:, 0])
    beyond = (real - 1) * (real + 1) + values[:, 1] ** 2
    with np.errstate(divide="ignore"):  # λ = 0 decays at once
        return np.asarray(0.5 * np.log1p(np.maximum(beyond, -1.0)))


def summarise(layers: Sequence[LayerReport]) -> Summary:
    """A checkpoint in a line."""
    log_moduli = np.concatenate([_log_moduli(layer.eigenvalues) for layer in layers])
    longest = [layer.eigenvalues.time_constant.max for layer in layers]
    moduli = [layer.eigenvalues.modulus.max for layer in layers]
    known = [time_constant for time_constant in longest if time_constant is not None]
    return Summary(
        unstable=sum(layer.eigenvalues.unstable for layer in layers),
        modulus=max((modulus for modulus in moduli if modulus is not None), default=0.0),
        time_constant_median=quantiles(time_constants(log_moduli)).p50,
        time_constant=max(known) if len(known) == len(longest) else None,
        worst=_worst(layers),
        usable_rate=smallest_rate(layers),
    )


def _worst(layers: Sequence[LayerReport]) -> WorstGroup | None:
    ranked = [
        (layer, group)
        for layer in layers
        for group in layer.parameters
        if group.step_effect is not None or diverges(group)
    ]
    if not ranked:
        return None
    layer, group = max(ranked, key=lambda pair: parameter_rank(pair[1]))
    kappa = None if layer.dense is None else layer.dense.relative_sensitivity
    if kappa is None:  # else the step effect is taken from a dense matrix as a whole
        kappa = group.relative_sensitivity.p99
    return WorstGroup(layer.name, group.name, kappa, group.step_effect)
