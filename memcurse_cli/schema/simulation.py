"""What a layer showed when it was run."""

from __future__ import annotations

from typing import Annotated, Literal

from memcurse_cli.schema.figures import Record

TOO_LARGE = "a step of it is too large to be run without --simulate"


class Measured(Record, frozen=True):
    """A mean over independent sequences."""

    value: Annotated[float, "the mean."]
    error: Annotated[float, "its standard error."]


class SimulatedGroup(Record, frozen=True):
    """What one tensor does to what the layer shows, at the last step."""

    name: Annotated[str, "within its layer."]
    tensor: Annotated[str, "in the checkpoint."]
    learning_rate: Annotated[float, "what the step effect was taken at."]
    step_effect: Annotated[
        Measured,
        "rate × √(E‖dh/dω‖² / E‖h‖²): what a step of this size on every entry, of random signs, "
        "does to the state, relative to it.",
    ]
    sensitivity: Annotated[Measured, "Σ E‖dh/dω‖² over its entries."]


class SimulatedState(Record, frozen=True):
    """The state rounded to a type at every step, against the same run without."""

    dtype: Annotated[str, "as of `StoredState`."]
    error: Annotated[
        Measured | None, "√(E‖e‖² / E‖h‖²) of the whole state to nearest; None if it overflows."
    ]
    stochastic: Annotated[Measured | None, "the same, rounded at random and without bias."]


class Simulation(Record, frozen=True):
    """A layer run from a zero state, on inputs drawn from the declared statistics or given."""

    sequences: Annotated[int, "how many independent ones."]
    steps: Annotated[int, "how long each was."]
    inputs: Annotated[Literal["drawn", "given"], "where they came from."]
    second_moment: Annotated[Measured, "E h² of a unit that the layer shows, at the last step."]
    exponent: Annotated[
        Measured | None,
        "the leading Lyapunov exponent per step; None where a perturbation vanished altogether.",
    ]
    chaotic: Annotated[bool, "whether that is above 0 by more than three standard errors."]
    lag: Annotated[
        Measured,
        "the last lag in steps at which a perturbation of the state keeps 1/e of its size, as far "
        "as that was followed.",
    ]
    memory: Annotated[
        Measured | None, "the larger of that and of -1 over the exponent; None where it has no end."
    ]
    memory_at_least: Annotated[bool, "whether the memory may be longer than was followed."]
    saturated: Annotated[
        float | None, "the share of units at a tanh of 0.95 or more; None for those without one."
    ]
    groups: Annotated[tuple[SimulatedGroup, ...], "every tensor that the layer reads."]
    stability_rate: Annotated[
        float | None,
        "the largest rate tried, up to 1.3, at which a step of random signs on every entry leaves "
        "half of the draws stable over the horizon; None where that was not tried.",
    ] = None
    stored: Annotated[
        tuple[SimulatedState, ...], "its state in types of fewer bits, where running was asked for."
    ] = ()
