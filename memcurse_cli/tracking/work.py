"""One checkpoint, read: the unit of work that an executor runs, wherever that is.

What goes in and what comes out are plain data, so that any process of any machine that sees the
file can do it.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from memcurse_cli.checkpoints.untrusted.names import shown_text
from memcurse_cli.diagnosis.inspection import choose_autocorrelation, inspect
from memcurse_cli.diagnosis.settings import Settings, check_readout
from memcurse_cli.errors import MemcurseError
from memcurse_cli.families.detect import validate_assumptions
from memcurse_cli.schema.track import Snapshot
from memcurse_cli.theory.linalg.eigendecomposition import validate_device
from memcurse_cli.tracking.snapshot import take_snapshot
from memcurse_cli.version import VERSION


@dataclass(frozen=True)
class Reading:
    """How every checkpoint of a run is read: the options of `inspect` that its figures hang on.

    Attributes:
        autocorrelation: (weight, ρ) or (weight, ρ, ω) of each part of the input's.
        horizon: T in steps, or None.
        readout: ``last``, ``every`` or None.
        learning_rate: the rate that step effects are taken at.
        watch_limit: the step effect to watch from.
        cursed_limit: the step effect called cursed.
        family: the only family to read with, or None.
        layers: globs of layer names.
        assume: what the checkpoints do not store, as pairs.
        device: for eigendecompositions.
    """

    autocorrelation: tuple[tuple[float, float] | tuple[float, float, float], ...] = ((1.0, 0.0),)
    horizon: int | None = None
    readout: str | None = None
    learning_rate: float = 1e-3
    watch_limit: float = 0.1
    cursed_limit: float = 1.0
    family: str | None = None
    layers: tuple[str, ...] = ()
    assume: tuple[tuple[str, str], ...] = ()
    device: str = "auto"

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
        Settings(
            horizon=reading.horizon,
            learning_rate=reading.learning_rate,
            watch_limit=reading.watch_limit,
            cursed_limit=reading.cursed_limit,
        )
        check_readout(reading.readout)
        validate_device(reading.device)
        validate_assumptions(dict(reading.assume))
        return reading

    def fields(self) -> dict[str, Any]:
        """Its fields by name."""
        return asdict(self)


@dataclass(frozen=True)
class Outcome:
    """What became of a checkpoint.

    Attributes:
        snapshot: what its report says, or None.
        error: why there is none, on one line.
        version: of the memcurse that read it.
    """

    snapshot: Snapshot | None = None
    error: str | None = None
    version: str = VERSION


def read_checkpoint(path: str, reading: Reading) -> Outcome:
    """Report on one checkpoint. It never raises, since an error must not end the others' work."""
    from memcurse_cli.theory.autocorrelation.mixture import Autocorrelation

    try:
        report = inspect(
            path,
            autocorrelation=Autocorrelation.from_components(reading.autocorrelation),
            horizon=reading.horizon,
            readout=reading.readout,
            learning_rate=reading.learning_rate,
            watch_limit=reading.watch_limit,
            cursed_limit=reading.cursed_limit,
            family=reading.family,
            layers=reading.layers,
            assume=dict(reading.assume),
            device=reading.device,
            values=True,
        )
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
