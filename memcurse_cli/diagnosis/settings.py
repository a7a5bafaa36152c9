"""What a diagnosis is taken under: the input, the horizon, the optimizer's step, the limits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast, get_args

from memcurse_cli.errors import UsageError
from memcurse_cli.recurrences.rewriting import Rewriting
from memcurse_cli.theory.autocorrelation import WHITE, Autocorrelation
from memcurse_cli.theory.moments import Readout

LARGEST_RATE = 1e9
"""Beyond any rate that trains, and far below where a step effect overflows."""


@dataclass(frozen=True)
class Settings:
    """The assumptions behind a report.

    Attributes:
        autocorrelation: R(Δ) of the drive of each state; white noise by default.
        horizon: T in steps, or None for an infinite sequence.
        horizon_source: who said so: ``option`` or ``checkpoint``.
        readout: ``last`` reads states and loss at step T, ``every`` averages both over t = 1..T.
            None reads states at the last step and the loss at every one, as training does.
        learning_rate: the change that one step of an adaptive optimizer makes to a parameter.
        watch_limit: the step effect above which a group is to be watched.
        cursed_limit: the step effect above which it is cursed: at 1 a step replaces the state.
        values: whether every eigenvalue goes into the report.
        spectra: whether the spectra of gated layers' hidden weights do.
        learning_rates: whether learning rates of the recurrent groups are derived.
        what_if: other parameters that every layer is reported under, beside its own.
        gates: whether input-dependent gates are reported as they move.
        input_scale: the RMS of every component of the gates' input then; normalised inputs have 1.
    """

    autocorrelation: Autocorrelation = WHITE
    horizon: int | None = None
    horizon_source: str | None = None
    readout: Readout | None = None
    learning_rate: float = 1e-3
    watch_limit: float = 0.1
    cursed_limit: float = 1.0
    values: bool = False
    spectra: bool = False
    what_if: tuple[Rewriting, ...] = ()
    learning_rates: bool = False
    gates: bool = False
    input_scale: float = 1.0

    @property
    def state_readout(self) -> Readout:
        """Where states and their sensitivities are read."""
        return self.readout or "last"

    @property
    def loss_readout(self) -> Readout:
        """Where the loss that a Hessian belongs to is read."""
        return self.readout or "every"

    def check_readout_has_horizon(self) -> None:
        """A place to read a sequence at needs a sequence that ends.

        Raises:
            UsageError: a readout without a horizon.
        """
        if self.readout is not None and self.horizon is None:
            raise UsageError(
                "an infinite sequence has no last step and no first",
                where="--readout",
                remedy="give --horizon T",
            )

    def __post_init__(self) -> None:
        if not 0 < self.learning_rate <= LARGEST_RATE:
            raise UsageError(
                f"a learning rate of {self.learning_rate:g} is outside (0, {LARGEST_RATE:g}]",
                where="--lr",
                remedy="give the optimizer's rate, for example 1e-3",
            )
        if not 0 < self.watch_limit <= self.cursed_limit < float("inf"):
            raise UsageError(
                f"the limits {self.watch_limit:g} and {self.cursed_limit:g} are not in order",
                where="limits",
                remedy="give 0 < watch <= cursed",
            )
        if not 0 <= self.input_scale < float("inf"):
            raise UsageError(
                f"an input scale of {self.input_scale:g} is not a finite number of at least 0",
                where="--input-scale",
                remedy="give the RMS of a component of the gates' input; 1 if it is normalised",
            )
        if self.horizon is not None and self.horizon < 1:
            raise UsageError(
                f"a horizon of {self.horizon} steps is too short",
                where="--horizon",
                remedy="give one step or more",
            )
        if self.horizon is not None and self.horizon >= 2**63:
            raise UsageError(
                "the horizon does not fit into 64 bits",
                where="--horizon",
                remedy="leave it out for an infinite sequence",
            )


def check_readout(name: str | None) -> Readout | None:
    """The readout of this name.

    Raises:
        UsageError: there is none.
    """
    for readout in get_args(Readout):
        if name == readout:
            return cast(Readout, readout)
    if name is None:
        return None
    raise UsageError(f"'{name}' is not known", where="--readout", remedy="give last or every")
