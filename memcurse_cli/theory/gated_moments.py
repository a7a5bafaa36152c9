"""Second moments of a recurrence whose gates are drawn anew at every step.

``h[t+1] = λ(z) h[t] + γ(z) x[t+1]`` with z ~ N(b, σ²) independent in time, of the state and of x:
what input-dependent gates do to first order, where the nominal theory holds them at b. s = dh/dω
is the whole derivative by a parameter of λ and γ.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from memcurse_cli.theory.autocorrelation import WHITE, Autocorrelation
from memcurse_cli.theory.gate_expectations import Expectations, expectations
from memcurse_cli.theory.gate_laws import GateLaw, Write
from memcurse_cli.theory.gate_pieces import pieces
from memcurse_cli.theory.gaussian_gates import Preactivation
from memcurse_cli.theory.mean_response import mean_response
from memcurse_cli.theory.namespace import array_namespace

if TYPE_CHECKING:
    from jaxtyping import Float

Array = Any


class GatedMoments(NamedTuple):
    """Stationary moments, one per unit, for a drive of the given autocorrelation.

    Attributes:
        second_moment: E h²; inf where it diverges.
        cross_moments: E[h s] by parameter.
        sensitivities: E s² by parameter.
    """

    second_moment: Float[Array, " n"]
    cross_moments: Mapping[str, Float[Array, " n"]]
    sensitivities: Mapping[str, Float[Array, " n"]]


def gated_moments(
    law: GateLaw,
    gate: Preactivation,
    autocorrelation: Autocorrelation = WHITE,
    write: Write | None = None,
    write_gate: Preactivation | None = None,
) -> GatedMoments:
    """E h², E[h s] and E s² of a gated recurrence, over an infinite horizon.

    With E over z, m₁ = E λ, m₂ = E λ², d = dλ/dω, e = dγ/dω and a drive of autocorrelation ρ:

        a    = ρ E[γ] / (1 - ρ m₁)                                            = E[h_t x_{t+1}]
        y    = ρ (E[d] a + E[e]) / (1 - ρ m₁)                                 = E[s_t x_{t+1}]
        E h² = (E γ² + 2 E[λγ] a) / (1 - m₂)
        E hs = (E[λd] E h² + E[λe] a + E[γλ] y + E[γd] a + E[γe]) / (1 - m₂)
        E s² = (E d² E h² + E e² + 2 E[λd] E hs + 2 E[λe] y + 2 E[de] a) / (1 - m₂)

    and a mixture sums them with its weights. A damped cosine has ``ρ e^(iω)`` for ρ and the real
    parts of a and y, as all else is linear in them, and is summed from the response of the mean
    gate and the fluctuations about it. At σ = 0 it is the theory of a constant λ,
    which is that of Zucchet & Orvieto 2024, appendix D.2.

    Args:
        law: λ and γ as functions of z.
        gate: z of every unit.
        autocorrelation: R(Δ) of the drive x.
        write: a further factor of γ with a pre-activation of its own.
        write_gate: that pre-activation, independent of z.

    Returns:
        The moments, with those of the parameter of ``write`` among them.
    """
    if not isinstance(gate.mean, np.ndarray) or gate.mean.size == 0:
        return moments_of(expectations(law, gate, write, write_gate), autocorrelation)
    return gathered(
        gate.mean.size,
        (
            (
                piece.units,
                moments_of(
                    expectations(piece.law, piece.gate, write, piece.write_gate), autocorrelation
                ),
            )
            for piece in pieces(law, gate, write_gate)
        ),
    )


def gathered(size: int, parts: Iterable[tuple[NDArray[np.intp], GatedMoments]]) -> GatedMoments:
    """The moments of all units from those of some at a time.

    Args:
        size: n.
        parts: the indices of units, and arrays of their shape.
    """
    second_moment = np.zeros(size)
    cross_moments: dict[str, Array] = {}
    sensitivities: dict[str, Array] = {}
    for units, found in parts:
        second_moment[units] = found.second_moment
        for whole, part in (
            (cross_moments, found.cross_moments),
            (sensitivities, found.sensitivities),
        ):
            for name, values in part.items():
                whole.setdefault(name, np.zeros(size))[units] = values
    return GatedMoments(second_moment, cross_moments, sensitivities)


@np.errstate(over="ignore", invalid="ignore")  # of units that the last lines put out as inf
def moments_of(of: Expectations, autocorrelation: Autocorrelation) -> GatedMoments:
    """The moments that follow from a law's expectations; inf where they do not stay finite."""
    xp = array_namespace(of.gain)
    stable = (of.squared_complement > 0) & xp.isfinite(of.squared_gain)
    below = xp.where(stable, of.squared_complement, 1.0)
    held: Array = 0.0
    mixed: dict[str, Array] = dict.fromkeys(of.parameters, 0.0)
    moved: dict[str, Array] = dict.fromkeys(of.parameters, 0.0)
    for part in autocorrelation.parts:
        weight, rho = part.weight, part.pole
        if weight == 0:
            continue
        past = xp.where(stable, (1 - rho) + rho * of.complement, 1.0)  # 1 - ρ m₁
        correlation = rho * of.gain / past
        a = xp.real(correlation)
        mean = None if part.frequency == 0 or part.rho == 0 else mean_response(of, part, stable)
        second = (of.squared_gain + 2 * of.eigenvalue_gain * a) / below
        if mean is not None:
            fluctuation = mean.fluctuation(a) / below
            second = mean.held + fluctuation
        held = held + weight * second
        for name, p in of.parameters.items():
            y = xp.real(rho * (p.d * correlation + p.e) / past)
            if mean is not None:
                cross, squared = mean.parameter(p, a, y, fluctuation, below)
                mixed[name] = mixed[name] + weight * cross
                moved[name] = moved[name] + weight * squared
                continue
            cross = (
                p.eigenvalue_d * second
                + (p.eigenvalue_e + p.gain_d) * a
                + of.eigenvalue_gain * y
                + p.gain_e
            ) / below
            squared = (
                p.d_d * second
                + p.e_e
                + 2 * (p.eigenvalue_d * cross + p.eigenvalue_e * y + p.d_e * a)
            ) / below
            mixed[name] = mixed[name] + weight * cross
            moved[name] = moved[name] + weight * squared
    return GatedMoments(
        xp.where(stable, held, math.inf),
        {name: xp.where(stable, value, 0.0) for name, value in mixed.items()},
        {
            # Where λ' s and γ' x cancel, only rounding is left.
            name: xp.where(stable, xp.where(value > 0, value, 0.0), math.inf)
            for name, value in moved.items()
        },
    )
