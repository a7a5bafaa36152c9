"""Chrono initialisation (Tallec & Ollivier 2018): the bias that lets a sigmoid gate keep T steps.

λ = σ(b) is 1 - 1/T, T uniform between the shortest and the longest memory, at ``b = log(T - 1)``.
Zucchet & Orvieto 2024, section 3.2, print ``b = log T`` for it, which gives λ = T/(1+T). This T is
not the time constant τ = -1/log λ: of one λ it is the longer, by about half a step.
"""

from __future__ import annotations

import math


def chrono_steps(time_constant: float) -> float:
    """T = 1/(1 - λ) of the gate with ``λ = e^(-1/τ)``."""
    return -1 / math.expm1(-1 / time_constant)


def chrono_bias(steps: float) -> float:
    """``log(T - 1)``, at which σ(b) = 1 - 1/T, for T > 1."""
    return math.log(steps - 1)


def printed_chrono_bias(steps: float) -> float:
    """``log T``, at which σ(b) = T/(1+T) = 1 - 1/(T+1): the memory of T + 1 steps."""
    return math.log(steps)
