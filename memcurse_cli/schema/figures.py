"""What the documents are built of: order statistics, eigenvalues, parameters, Hessians.

An infinite element is counted and sorted above every finite one, never printed.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated, ClassVar, Literal, get_args

import msgspec
import numpy as np
from numpy.typing import NDArray


class Record(msgspec.Struct, frozen=True):
    """A part of a document: its fields are those of its JSON object."""

    DETAIL: ClassVar[tuple[str, ...]] = ()
    """Fields that are filled only where that was asked for, and left out where they are None."""
    UNWRITTEN: ClassVar[tuple[str, ...]] = ()
    """Fields that are no part of the document."""


class Component(Record, omit_defaults=True, frozen=True):
    """One part of R(Δ) = Σ weight ρ^|Δ| cos(ωΔ)."""

    weight: Annotated[float, "w ≥ 0, in units of the input's variance."]
    rho: Annotated[
        float, "ρ in [0, 1] per step; 0 is white noise, 1 a constant or an undamped cosine."
    ]
    frequency: Annotated[float, "ω in radians per step, up to π; absent where it is 0."] = 0.0

    def __iter__(self) -> Iterator[float]:
        """The weight and ρ, and ω where it is not 0."""
        yield from msgspec.structs.astuple(self)[: 3 if self.frequency else 2]


Components = tuple[Component, ...]  # the parts of R(Δ)


def components_of(parts: Iterable[tuple[float, ...]]) -> Components:
    """The parts of an autocorrelation, each (weight, ρ) or (weight, ρ, ω)."""
    return tuple(Component(*part) for part in parts)


class Quantiles(Record, frozen=True):
    """Order statistics of one figure over a layer, in its unit; an entry that diverges is None."""

    min: Annotated[float | None, "the smallest element."]
    p50: Annotated[float | None, "the median."]
    p90: Annotated[float | None, "the 90th percentile, between elements by linear interpolation."]
    p99: Annotated[float | None, "the 99th percentile."]
    max: Annotated[float | None, "the largest element."]
    divergent: Annotated[int, "how many elements are infinite; they sort above all others."] = 0


def quantiles(elements: NDArray[np.float64]) -> Quantiles:
    """The quantiles of a layer's figure; one that touches an infinite element is None.

    An empty layer has none. Raises `ValueError` for nan, which is always a defect of the caller.
    """
    size = elements.size
    if size == 0:
        return Quantiles(None, None, None, None, None)
    places = [level * (size - 1) for level in (0.0, 0.5, 0.9, 0.99, 1.0)]
    ordered = _ordered(elements, places)
    last = ordered.item(-1)
    divergent = int(np.count_nonzero(ordered == np.inf)) if last == math.inf else 0
    if ordered.item(0) == last and math.isfinite(last):  # one element, or all alike
        return Quantiles(last, last, last, last, last)
    low, middle, high, higher, top = (_interpolate(ordered, place) for place in places)
    return Quantiles(low, middle, high, higher, top, divergent)


def p99(elements: NDArray[np.float64], below: int = 0) -> float | None:
    """The 99th percentile of these elements and of so many smaller ones, as `quantiles` has it.

    Raises `ValueError` as it does.
    """
    if elements.size == 0:
        return None
    place = 0.99 * (elements.size + below - 1) - below
    return _interpolate(_ordered(elements, [place]), place)


def _ordered(elements: NDArray[np.float64], places: Sequence[float]) -> NDArray[np.float64]:
    """The elements with those in place that stand around these places, and the last one."""
    needed = {elements.size - 1, *map(math.floor, places), *map(math.ceil, places)}
    ordered = np.partition(elements, sorted(needed), axis=None)
    if math.isnan(ordered.item(-1)):
        raise ValueError("a figure of the report is not a number")
    return ordered


def _interpolate(ordered: NDArray[np.float64], place: float) -> float | None:
    # Python's floats: a layer may have one element, and NumPy's scalars take ten times as long.
    floor = int(place)
    below, above = ordered.item(floor), ordered.item(math.ceil(place))
    if math.isinf(above):
        return None
    return float(below + (above - below) * (place - floor))


TIME_CONSTANT_EDGES = tuple(10 ** (half_decade / 2) for half_decade in range(13))
"""Inner edges, in steps, of time-constant histograms, each the least τ of the bin above it."""

Verdict = Literal["ok", "not_judged", "watch", "cursed"]  # the best first
ORDER: tuple[Verdict, ...] = get_args(Verdict)
Direction = Literal["destabilising", "decorrelating", "scaling"]


class EigenvalueSummary(Record, frozen=True):
    """The spectrum of one layer."""

    DETAIL = ("values", "relative_sensitivities")

    count: Annotated[int, "the number of eigenvalues."]
    multiplicity: Annotated[int, "how many identical states each one drives."]
    unstable: Annotated[int, "how many have |λ| ≥ 1."]
    modulus: Annotated[Quantiles, "|λ|."]
    time_constant: Annotated[Quantiles, "-1/log|λ| in steps; divergent where |λ| ≥ 1."]
    angle: Annotated[Quantiles, "|arg λ| in radians, in [0, π]."]
    time_constant_histogram: Annotated[
        tuple[int, ...],
        "how many eigenvalues lie in each of the 14 bins that `TIME_CONSTANT_EDGES` cuts; those "
        "with |λ| ≥ 1 are in none, ``unstable`` counts them. Empty where it was not taken.",
    ] = ()
    values: Annotated[
        tuple[tuple[float, float], ...] | None, "every eigenvalue as (re, im), where asked for."
    ] = None
    relative_sensitivities: Annotated[
        tuple[float | None, ...] | None,
        "κ(λ) = E|dh/dλ|²/E|h|² of each of ``values``, None where it diverges; only beside them.",
    ] = None


class StateSummary(Record, frozen=True):
    """The state of one layer."""

    second_moment: Annotated[Quantiles, "E|h|² of each state, for a drive of unit variance."]


class Rounding(Record, frozen=True):
    """Relative error of the state when the parameter is stored in each type (p99).

    Of the type that it is stored in, what that is expected to have cost. None is an error that
    diverges, as where rounding takes |λ| to 1, or a value beyond the range of the type.
    """

    bfloat16: Annotated[float | None, "with 8 significant bits."]
    float16: Annotated[float | None, "with 11, up to 65504."]
    float32: Annotated[float | None, "with 24."]
    int8: Annotated[
        float | None, "with one scale per tensor, the largest |ω| of all of it over 127."
    ] = None
    float8_e4m3fn: Annotated[float | None, "with 4 significant bits, up to 448."] = None
    float8_e5m2: Annotated[float | None, "with 3, up to 57344."] = None


class ParameterSummary(Record, frozen=True):
    """One recurrent parameter group."""

    name: Annotated[str, "its name in the family."]
    tensor: Annotated[str, "the tensor's name in the checkpoint."]
    size: Annotated[int, "the number of scalars."]
    dtype: Annotated[str, "the stored type."]
    sensitivity: Annotated[Quantiles, "E|dh/dω|² per scalar, for a drive of unit variance."]
    relative_sensitivity: Annotated[Quantiles, "κ(ω) = E|dh/dω|² / E|h|²."]
    step_effect: Annotated[
        float | None,
        "lr √κ of the p99 scalar: the relative change of the state in one step; of all entries of "
        "a dense matrix, the RMS over independent signs.",
    ]
    learning_rate: Annotated[float, "the rate that the step is taken at."]
    direction: Annotated[Direction, "what a step does to the eigenvalues."]
    rounding: Annotated[Rounding, "what storing it in fewer bits does."]
    int8_own_scale: Annotated[
        float | None,
        "the error in int8 with a scale of the group's own, where the largest value of its tensor "
        "is in another group, as in the bias of several gates; else None.",
    ] = None


class HessianSummary(Record, frozen=True):
    """Scores of the Hessian at optimality over the layer's recurrent parameters."""

    order: Annotated[int, "the number N of parameters."]
    diagonality: Annotated[float, "Σ H_aa² / Σ H_ab², in [1/N, 1]."]
    sharpness: Annotated[float, "the largest eigenvalue, per unit of input variance."]
    max_stable_lr: Annotated[
        float | None,
        "2 / (sharpness + sharpness_error), the largest SGD step that is known to be stable; None "
        "where the Hessian is zero.",
    ]
    adam_residual: Annotated[float, "λ_max(D^-½ H D^-½): 1 is diagonal, N is the worst."]
    concentration: Annotated[
        float | None,
        "coordinates that carry a top eigenvector, d / Σ P_aa² of an eigenspace of d dimensions "
        "and projector P; None where one is too large to be found whole.",
    ]
    output_step_effect: Annotated[
        float | None,
        "lr √(tr H / E y²), the RMS over steps of independent signs; signs in concert reach at "
        "most √adam_residual times that. None where E y² was not taken or is zero.",
    ]
    diagonality_error: Annotated[
        float,
        "the standard error of an estimated one, or how much smaller it may be; 0 if exact.",
    ] = 0.0
    sharpness_error: Annotated[float, "how much larger the sharpness may be; 0 if exact."] = 0.0
    adam_residual_error: Annotated[float, "how much larger the residual may be; 0 if exact."] = 0.0


class HessianPicture(Record, eq=False, frozen=True):
    """A block for a heat map, at most some hundreds of cells wide; it is not in the JSON.

    A cell holds one scalar, or the largest of a few neighbours of one group. Of a block that was
    not formed it has some scalars, evenly taken.
    """

    title: Annotated[str, "what the block is."]
    order: Annotated[int, "how many scalars it holds."]
    magnitude: Annotated[NDArray[np.float64], "(cells, cells) |H_ab|."]
    correlation: Annotated[NDArray[np.float64], "(cells, cells) |H_ab| / √(H_aa H_bb)."]
    groups: Annotated[tuple[str, ...], "the names of the groups in it."]
    boundaries: Annotated[tuple[int, ...], "(groups + 1,) each group's first cell, and the end."]
    eigenvalues: Annotated[NDArray[np.float64], "the largest of the block, or all, descending."]
    eigenvectors: Annotated[NDArray[np.float64], "(top, cells) |v_a| of the 10 largest."]


def diverges(parameter: ParameterSummary) -> bool:
    """Whether a step effect is missing because it is infinite, not because it was not computed."""
    return parameter.step_effect is None and parameter.relative_sensitivity.divergent > 0


def effect_rank(parameter: ParameterSummary) -> float:
    """A group's step effect; one that diverges above all others, one not computed below."""
    if parameter.step_effect is None:
        return math.inf if diverges(parameter) else -1.0
    return parameter.step_effect
