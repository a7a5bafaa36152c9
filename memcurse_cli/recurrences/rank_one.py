"""What a rank-one correction of a diagonal transition can do to its eigenvalues."""

from __future__ import annotations

from memcurse_cli.recurrences.family import Assumption

NEGATIVE_EIGENVALUES = Assumption(
    key="negative_eigenvalues",
    default="false",
    choices=("false", "true"),
    meaning="whether a delta rule's write strength β reaches 2 rather than 1 (allow_neg_eigval)",
    config_keys=("allow_neg_eigval", "linear_allow_neg_eigval"),
)

OTHER_RULES = ("D", "Mu_log", "A_log_atk", "w_proj.weight", "d_proj.weight")
"""Tensors beside A_log and b_proj of layers with another transition: Comba, momentum and
preconditioned delta rules, and rules with a second gate."""


def delta_rule_range(negative: bool) -> str:
    """The eigenvalues of ``diag(λ) (I - β k kᵀ)`` with a unit k, in one sentence.

    It is similar to the symmetric ``diag(λ) - β v vᵀ`` with ``v = diag(λ)^½ k``. By interlacing
    all eigenvalues but the smallest stay between min λ and max λ, and by Ostrowski's theorem the
    smallest is at least ``(1 - β) max λ`` where that is negative, and positive otherwise.
    """
    strength, low = ("2", "-max λ") if negative else ("1", "0")
    return (
        f"the delta rule's correction I - β k kᵀ (k of norm 1, 0 < β < {strength}) is left out: it"
        " vanishes at a zero input, and can bring one eigenvalue per head down as far as"
        f" {low}; the others stay within the head's λ"
    )


REMOVAL_RANGE = (
    "the removal -κ (a∘κ)ᵀ (κ of norm 1, 0 < a < 1) is left out: it vanishes at a zero input, and"
    " can bring one eigenvalue per head down to min λ - 1 > -0.455; the others stay within the"
    " head's λ"
)
"""The same for RWKV-7's ``diag(λ) - κ (a∘κ)ᵀ``, similar to the symmetric
``diag(λ) - uuᵀ`` with ``u = a^½∘κ``, ‖u‖ < 1: Weyl's inequality and interlacing."""
