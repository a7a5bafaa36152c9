"""The report of one landscape."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from memcurse_cli.schema.report import InputAssumption

Gain = Literal["none", "own", "coupled"]


@dataclass(frozen=True)
class LandscapeParameter:
    """The loss along one parameter, the others at their optimum.

    Attributes:
        name: of the parameter.
        value: what it is at the optimum.
        sensitivity: E|dh/dω|², which is the loss's second derivative there, for an input of unit
            variance.
        relative_sensitivity: κ(ω) = E|dh/dω|² / E|h|²; near the optimum the loss is κ δ².
        max_stable_lr: 2 / E|dh/dω|², the largest stable step of gradient descent; null where the
            loss does not depend on the parameter.
        basin: how far it may be off, to the nearer side, before the loss reaches the level; null
            where it never does.
        steps_across: basin / lr: how many steps of Adam lead out of the basin.
        loss: the loss at each of the offsets, the larger of both sides; null where it diverges.
            Below 1e-13 it is rounding.
        start: where it starts; null without a start.
        gradient: dL/dω there, of L = ½ E|h - h*|² in the input's units; null without a start,
            and where it leaves the range of a float.
        adam_steps: |ω* - ω| / lr from the start; null without one.
        sgd_steps: the same distance over max_stable_lr |gradient|, the pace at the start; null
            without a start, and where the gradient is 0 or leads away from an optimum elsewhere.
    """

    name: str
    value: float
    sensitivity: float
    relative_sensitivity: float
    max_stable_lr: float | None
    basin: float | None
    steps_across: float | None
    loss: tuple[float | None, ...]
    start: float | None = None
    gradient: float | None = None
    adam_steps: float | None = None
    sgd_steps: float | None = None


@dataclass(frozen=True)
class LandscapeView:
    """One parametrisation.

    Attributes:
        parametrization: of λ, by its name in `memcurse predict`.
        gain: ``none`` for γ = 1, ``own`` for a γ = √(1-|λ|²) with a parameter of its own,
            ``coupled`` for one that is computed from λ.
        parameters: in the order of the parametrisation.
        start_loss: the loss at the start; null without one, and where it leaves the range of a
            float.
    """

    parametrization: str
    gain: Gain
    parameters: tuple[LandscapeParameter, ...]
    start_loss: float | None = None


@dataclass(frozen=True)
class LandscapeReport:
    """The loss around one eigenvalue, ½ E|h - h*|² over that of a silent student, ½ E|h*|².

    Attributes:
        modulus: |λ*|.
        time_constant: -1/log|λ*| in steps; null where |λ*| ≥ 1.
        angle: arg λ* in radians.
        step_size: Δ of ``s4``; null where that is not among the parametrisations.
        level: the loss at which a basin ends.
        input: what was assumed of the input and of the optimizer.
        offsets: the distances from the optimum at which the losses were taken.
        views: the parametrisations.
        start_modulus: |λ| where training starts; null without a start.
        start_angle: its angle in radians; null without a start.
    """

    SCHEMA: ClassVar = "memcurse.landscape/1"

    modulus: float
    time_constant: float | None
    angle: float
    step_size: float | None
    level: float
    input: InputAssumption
    offsets: tuple[float, ...]
    views: tuple[LandscapeView, ...]
    start_modulus: float | None = None
    start_angle: float | None = None
