"""What a diagnosis is taken under: the input, the horizon, the optimizer's step, the limits."""

from __future__ import annotations

from dataclasses import dataclass

from memcurse_cli.errors import UsageError
from memcurse_cli.theory.autocorrelation import WHITE, Autocorrelation


@dataclass(frozen=True)
class Settings:
    """The assumptions behind a report.

    Attributes:
        autocorrelation: R(Δ) of the drive of each state; white noise by default.
        horizon: T in steps, or None for an infinite sequence.
        horizon_source: who said so: ``option`` or ``checkpoint``.
        learning_rate: the change that one step of an adaptive optimizer makes to a parameter.
        watch_limit: the step effect above which a group is to be watched.
        cursed_limit: the step effect above which it is cursed: at 1 a step replaces the state.
        values: whether every eigenvalue goes into the report.
        spectra: whether the spectra of gated layers' hidden weights do.
    """

    autocorrelation: Autocorrelation = WHITE
    horizon: int | None = None
    horizon_source: str | None = None
    learning_rate: float = 1e-3
    watch_limit: float = 0.1
    cursed_limit: float = 1.0
    values: bool = False
    spectra: bool = False

    def __post_init__(self) -> None:
        if not 0 < self.learning_rate < float("inf"):
            raise UsageError(
                f"a learning rate of {self.learning_rate:g} is not positive",
                where="--lr",
                remedy="give the optimizer's rate, for example 1e-3",
            )
        if not 0 < self.watch_limit <= self.cursed_limit < float("inf"):
            raise UsageError(
                f"the limits {self.watch_limit:g} and {self.cursed_limit:g} are not in order",
                where="limits",
                remedy="give 0 < watch <= cursed",
            )
        if self.horizon is not None and self.horizon < 1:
            raise UsageError(
                f"a horizon of {self.horizon} steps is too short",
                where="--horizon",
                remedy="give one step or more",
            )
