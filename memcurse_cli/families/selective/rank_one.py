"""What a rank-one correction of a diagonal transition can do to its eigenvalues."""

from __future__ import annotations

import math

from memcurse_cli.families.family import Assumption
from memcurse_cli.families.recurrence import RankOneCorrection

NEGATIVE_EIGENVALUES = Assumption(
    key="negative_eigenvalues",
    default="false",
    choices=("false", "true"),
    meaning="whether a delta rule's write strength β reaches 2 rather than 1 (allow_neg_eigval)",
    config_keys=("allow_neg_eigval", "linear_allow_neg_eigval"),
)

RANDOM_KEYS = (
    "for --gates keys are of norm 1, drawn anew at every step from all directions alike: a step"
    " forgets what it overwrites"
)
OTHER_RULES = ("D", "Mu_log", "A_log_atk", "w_proj.weight", "d_proj.weight")
"""Tensors beside A_log and b_proj of layers with another transition: Comba, momentum and
preconditioned delta rules, and rules with a second gate."""


def delta_rule(*, negative: bool, count: int = 1) -> RankOneCorrection:
    """The eigenvalues of ``diag(λ) (I - β k kᵀ)`` with a unit k, λ in (0, 1] and β below 1, or 2.

    It is similar to the symmetric ``diag(λ) - β v vᵀ`` with ``v = diag(λ)^½ k``. By interlacing
    all eigenvalues but the smallest stay between min λ and max λ, and by Ostrowski's theorem the
    smallest is at least ``(1 - β) max λ`` where that is negative, and positive otherwise.

    Args:
        negative: β reaches 2.
        count: how many of them a step multiplies.
    """
    if negative:
        return RankOneCorrection("I - β k kᵀ (k of norm 1, 0 < β < 2)", lowest=-1.0, count=count)
    return RankOneCorrection("I - β k kᵀ (k of norm 1, 0 < β < 1)", lowest=0.0, count=count)


REMOVAL = RankOneCorrection(
    "-κ (a∘κ)ᵀ (κ of norm 1, 0 < a < 1)", lowest=math.expm1(-math.exp(-0.5))
)
"""The same for RWKV-7's ``diag(λ) - κ (a∘κ)ᵀ``, similar to the symmetric ``diag(λ) - uuᵀ`` with
``u = a^½∘κ``, ‖u‖ < 1: Weyl's inequality gives min λ - 1, where λ > exp(-e^(-1/2)) for any input,
and interlacing holds the others."""
