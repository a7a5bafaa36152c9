"""One checkpoint, read: the unit of work that an executor runs, and what a time series keeps of it.

What goes in and what comes out are plain data, so that any process of any machine that sees the
file can do it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from memcurse_cli.checkpoints.untrusted.names import shown_text
from memcurse_cli.diagnosis.inspection import inspect
from memcurse_cli.diagnosis.settings import Settings, choose_autocorrelation
from memcurse_cli.errors import MemcurseError
from memcurse_cli.families.detect import validate_assumptions
from memcurse_cli.schema.derived import (
    Snapshot,
    Spread,
    Summary,
    TrackedGroup,
    TrackedLayer,
    WorstGroup,
)
from memcurse_cli.schema.figures import Quantiles, diverges, effect_rank
from memcurse_cli.schema.report import (
    EigenvalueSummary,
    LayerReport,
    ParameterSummary,
    Report,
    SkippedLayer,
    smallest_rate,
)
from memcurse_cli.theory.autocorrelation import Autocorrelation
from memcurse_cli.theory.linalg import validate_device
from memcurse_cli.version import VERSION

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Reading:
    """How every checkpoint of a run is read: the options of `inspect` that its figures hang on."""

    # (weight, ρ) or (weight, ρ, ω) of each part of the input's
    autocorrelation: tuple[tuple[float, float] | tuple[float, float, float], ...] = ((1.0, 0.0),)
    horizon: float | None = None  # T in steps; None is what the checkpoint says
    readout: str | None = None  # ``last``, ``every`` or None
    learning_rate: float | None = None  # the optimizer's; None is what the checkpoint records
    step_limit: float = 0.1  # the step effect from which a group is told
    family: str | None = None  # the only family to read with, or None
    layers: tuple[str, ...] = ()  # globs of layer names
    assume: tuple[tuple[str, str], ...] = ()  # what the checkpoints do not store, as pairs
    device: str = "auto"  # for eigendecompositions

    @classmethod
    def of(
        cls,
        *,
        rho: float | None = None,
        autocorrelation: str | None = None,
        assume: dict[str, str] | None = None,
        **others: Any,
    ) -> Reading:
        """The same from the arguments of `inspect`, each held to its domain before any work.

        Raises:
            UsageError: one is outside it.
        """
        reading = cls(
            autocorrelation=tuple(choose_autocorrelation(rho, autocorrelation)),
            assume=tuple(sorted((assume or {}).items())),
            **others,
        )
        checked = Settings.asked(
            None, None, reading.horizon, reading.readout, step_limit=reading.step_limit
        )
        if reading.learning_rate is not None:
            replace(checked, learning_rate=reading.learning_rate)
        validate_device(reading.device)
        validate_assumptions(dict(reading.assume))
        return reading

    def fields(self) -> dict[str, Any]:
        """Its fields by name."""
        return asdict(self)


@dataclass(frozen=True)
class Outcome:
    """What became of a checkpoint."""

    snapshot: Snapshot | None = None
    error: str | None = None
    version: str = VERSION


def read_checkpoint(path: str, reading: Reading) -> Outcome:
    """Report on one checkpoint. It never raises, since an error must not end the others' work."""
    options = reading.fields() | {
        "autocorrelation": Autocorrelation.from_components(reading.autocorrelation),
        "assume": dict(reading.assume),
    }
    try:
        report = inspect(path, **options, values=True)
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
    decays = _decays(spectrum)
    return TrackedLayer(
        name=layer.name,
        family=layer.family,
        count=spectrum.count,
        unstable=spectrum.unstable,
        modulus=_spread(spectrum.modulus, np.exp(-decays)),
        time_constant=_spread(spectrum.time_constant, _time_constants(decays)),
        second_moment=layer.state.second_moment,
        groups=tuple(
            TrackedGroup(
                name=group.name,
                relative_sensitivity=group.relative_sensitivity,
                step_effect=group.step_effect,
                direction=group.direction,
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
    return Spread(
        min=known.min,
        p10=_quantile(elements, 0.1),
        p50=known.p50,
        p90=known.p90,
        p99=known.p99,
        max=known.max,
        divergent=known.divergent,
    )


def _decays(spectrum: EigenvalueSummary) -> Floats:
    """-log|λ| of each eigenvalue, by way of |λ|² - 1, which is small near the unit circle."""
    values = np.array(spectrum.values or (), np.float64).reshape(-1, 2)
    real = np.abs(values[:, 0])
    beyond = (real - 1) * (real + 1) + values[:, 1] ** 2
    with np.errstate(divide="ignore"):  # λ = 0 decays at once
        decays: Floats = -0.5 * np.log1p(np.maximum(beyond, -1.0))
    return decays


def _time_constants(decays: Floats) -> Floats:
    found = np.full(decays.shape, np.inf)
    np.divide(1.0, decays, out=found, where=decays > 0)
    return found


def _quantile(elements: Floats, level: float) -> float | None:
    """As in a report: linear between elements, None where one is infinite or there is none."""
    ordered = np.sort(elements)
    if ordered.size == 0:
        return None
    place = level * (ordered.size - 1)
    below, above = ordered[int(np.floor(place))], ordered[int(np.ceil(place))]
    if np.isinf(above):
        return None
    return float(below + (above - below) * (place - np.floor(place)))


def summarise(layers: Sequence[LayerReport]) -> Summary:
    """A checkpoint in a line."""
    decays = np.concatenate([_decays(layer.eigenvalues) for layer in layers])
    longest = [layer.eigenvalues.time_constant.max for layer in layers]
    moduli = [layer.eigenvalues.modulus.max for layer in layers]
    known = [time_constant for time_constant in longest if time_constant is not None]
    return Summary(
        unstable=sum(layer.eigenvalues.unstable for layer in layers),
        modulus=max((modulus for modulus in moduli if modulus is not None), default=0.0),
        time_constant_median=_quantile(_time_constants(decays), 0.5),
        time_constant=max(known) if len(known) == len(longest) else None,
        worst=_worst(layers),
        usable_rate=smallest_rate(layer.usable_rate for layer in layers).rate,
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
    layer, group = max(ranked, key=lambda pair: effect_rank(pair[1]))
    return WorstGroup(
        layer=layer.name,
        name=group.name,
        relative_sensitivity=_deciding(layer, group),
        step_effect=group.step_effect,
    )


def _deciding(layer: LayerReport, group: ParameterSummary) -> float | None:
    """The κ that the step effect is taken from: of a dense matrix as a whole, else p99."""
    if layer.dense is not None and layer.dense.relative_sensitivity is not None:
        return layer.dense.relative_sensitivity
    return group.relative_sensitivity.p99
