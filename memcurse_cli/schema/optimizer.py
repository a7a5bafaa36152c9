"""The part of the schema about the optimizer: learning rates, and what Adam makes of them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class StepQuantiles:
    """Order statistics of effective steps, over the elements that have had a gradient.

    Attributes:
        min: the smallest.
        p10: the 10th percentile.
        p50: the median.
        p90: the 90th percentile.
        max: the largest.
    """

    min: float
    p10: float
    p50: float
    p90: float
    max: float


@dataclass(frozen=True)
class AdamGroup:
    """Adam's effective steps on one tensor.

    Attributes:
        name: the parameter group's name in the family, or the tensor's where it is not recurrent.
        tensor: the tensor's name in the checkpoint.
        recurrent: whether it moves λ or γ.
        size: the number of scalars.
        learning_rate: the rate that the steps are taken at.
        step: how many steps Adam has made, or None if not stored.
        without_gradient: scalars whose second moment is 0, which are in none of the figures.
        effective_step: lr / (√v̂ + ε): what Adam multiplies a gradient with.
        correlation: of the logarithm of the effective step with that of κ(ω); -1 is full
            compensation. None where κ is not known or too few differ.
        spread_before: standard deviation of √κ in decades.
        spread_after: that of the effective step times √κ, what Adam leaves of it.
        hessian_correlation: the correlation with H_ωω at a perfect fit in the place of κ.
        hessian_spread_before: standard deviation of √H_ωω in decades.
        hessian_spread_after: that of the effective step times √H_ωω.
        reason: why its figures are missing, or None.
    """

    name: str
    tensor: str
    recurrent: bool
    size: int
    learning_rate: float | None = None
    step: float | None = None
    without_gradient: int = 0
    effective_step: StepQuantiles | None = None
    correlation: float | None = None
    spread_before: float | None = None
    spread_after: float | None = None
    hessian_correlation: float | None = None
    hessian_spread_before: float | None = None
    hessian_spread_after: float | None = None
    reason: str | None = None


@dataclass(frozen=True)
class OptimizerSummary:
    """The optimizer's state that was found.

    Attributes:
        library: ``torch.optim``, ``optax`` or ``Keras``.
        path: the file that it is in.
        weights: how many weights' states were found.
        refused: how many weights' are ambiguous.
        reason: why it has no second moments, or None.
    """

    library: str
    path: str
    weights: int
    refused: int
    reason: str | None = None


@dataclass(frozen=True)
class GroupRate:
    """The learning rate of one recurrent parameter group.

    Attributes:
        name: the group's name in the family.
        tensor: the tensor's name in the checkpoint.
        stable_lr: the rate at which one step changes the state by the limit; a third of the
            usable rate where that is larger and known, and steps only turn angles. None where the
            sensitivity is 0, diverges or is not known.
        learning_rate: the smaller of that and the rate of the rest of the network.
        relative: that over the rate of the rest, at most 1.
    """

    name: str
    tensor: str
    stable_lr: float | None
    learning_rate: float | None
    relative: float | None


@dataclass(frozen=True)
class RelativeSharpness:
    """The recurrent parameters against B, C and D, at a perfect fit.

    Attributes:
        recurrent: the largest eigenvalue of the Hessian over the recurrent parameters.
        rest: that over B, C and D.
        sgd_ratio: rest / recurrent: the ratio of the largest stable rates of gradient descent.
        adam_ratio: √(tr H_rest / tr H_recurrent): the ratio of rates at which a step of Adam on
            either changes the output equally.
    """

    recurrent: float
    rest: float
    sgd_ratio: float
    adam_ratio: float


@dataclass(frozen=True)
class LearningRates:
    """Learning rates for a layer, on the assumption that the rest of the network's is right.

    Attributes:
        rest: the learning rate of the rest of the network.
        limit: the relative change of the state that one step may make, that called watch.
        groups: the recurrent ones.
        sharpness: against B, C and D; None where they are not known.
        sharpness_reason: why it is not there, or None.
    """

    rest: float
    limit: float
    groups: tuple[GroupRate, ...]
    sharpness: RelativeSharpness | None
    sharpness_reason: str | None
