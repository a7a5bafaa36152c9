"""MC1xx: what the eigenvalues alone say."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from memcurse_cli.diagnosis.findings.facts import Facts, Rule
from memcurse_cli.diagnosis.wording import count, duration, number, share_having
from memcurse_cli.schema.report import Finding
from memcurse_cli.theory.moments import moments

UNSTABLE = Rule(
    "MC101",
    "unstable eigenvalues",
    "Zucchet & Orvieto 2024, section 1",
    what="Some eigenvalues of the recurrence have a modulus of 1 or more.",
    why="What the state holds along them is not forgotten but kept or amplified at every step, so "
    "that the state, and with it every gradient, grows with the length of the sequence.",
    equation="|λ| ≥ 1, where E|h|² = Σ |λ|^2k over the steps has no limit",
    change="Use a parametrisation that keeps |λ| < 1 whatever the optimizer does, such as "
    "|λ| = exp(-exp(ν)) or |λ| = σ(b). An orthogonal matrix, or a rule that writes over its "
    "memory, has |λ| = 1 by design, and needs nothing.",
)
FROZEN = Rule(
    "MC103",
    "eigenvalues that never forget",
    "Zucchet & Orvieto 2024, section 2.2",
    what="Some eigenvalues are so close to the unit circle that their states forget nothing within "
    "any sequence: τ is beyond 100 horizons, or 10⁶ steps where no horizon is known.",
    why="Such a state is the sum of all its inputs. The gradient of its decay is tiny where the "
    "decay is stored as a small number, so that training cannot bring it back.",
    equation="τ = -1/log|λ| > 100 T, or > 10⁶",
    change="Check that the decay parameter still moves in training, and that its type can hold "
    "the step; initialise |λ| further from 1.",
)
DEAD = Rule(
    "MC104",
    "eigenvalues without memory",
    "Zucchet & Orvieto 2024, section 2.2",
    what="More than half of the eigenvalues, and of the singular values of a dense matrix, forget "
    "their input within one step.",
    why="Their states repeat what a layer without recurrence computes; they carry nothing from "
    "one step to the next.",
    equation="|λ| < 0.01, and σ < 0.01 of a dense matrix",
    change="If memory is wanted there, initialise |λ| closer to 1; if not, fewer states do.",
)
BEYOND_HORIZON = Rule(
    "MC105",
    "memory longer than the sequence",
    "Zucchet & Orvieto 2024, section 2.2 b",
    what="Some time constants are longer than the sequences that the figures were taken for.",
    why="A sequence that ends cuts the sum of the sensitivity off, so that the figures hold for "
    "that length only: on longer sequences the same parameters are more sensitive.",
    equation="τ = -1/log|λ| > T",
    change="Before running on longer sequences than were trained on, inspect the checkpoint with "
    "their --horizon.",
)

FROZEN_STEPS = 1e6
FROZEN_HORIZONS = 100
DEAD_MODULUS = 0.01
DEAD_SHARE = 0.5


def find_dynamics(facts: Facts) -> Iterator[Finding]:
    """Unstable, frozen and dead eigenvalues, and memory that no sequence is long enough to see."""
    yield from _unstable(facts)
    yield from _frozen_or_beyond(facts)
    yield from _dead(facts)


def _dead(facts: Facts) -> Iterator[Finding]:
    """What forgets within one step: of a matrix that need not be normal, singular values tell."""
    size, dense, name, symbol = facts.recurrence.size, facts.recurrence.dense, "eigenvalue", "|λ|"
    dead = int(np.count_nonzero(np.exp(facts.recurrence.log_eigenvalues.real) < DEAD_MODULUS))
    if dense is not None and dead > DEAD_SHARE * size:
        name, symbol = "singular value", "σ"
        dead = int(np.count_nonzero(np.linalg.svd(dense.matrix, compute_uv=False) < DEAD_MODULUS))
    if dead > DEAD_SHARE * size:
        yield DEAD.finding(
            "info",
            f"{share_having(dead, size, name)} {symbol} < {DEAD_MODULUS}: such states forget "
            "within one step",
            f"if memory is wanted there, initialise {symbol} closer to 1",
        )


def _unstable(facts: Facts) -> Iterator[Finding]:
    unstable = facts.eigenvalues.unstable
    if not unstable:
        return
    top = facts.eigenvalues.modulus.max
    written_over = facts.recurrence.rank_one is not None and not facts.recurrence.parameters
    if written_over or facts.recurrence.unitary:
        yield UNSTABLE.finding(
            "info",
            f"{count(unstable, 'eigenvalue')} of 1 at zero input, by design: nothing decays by "
            "itself, and only what is written over is forgotten"
            if written_over
            else f"|λ| = 1 for all {count(unstable, 'eigenvalue')}, by design: the linear part "
            "turns the state and lets nothing decay",
            "give --horizon T for the figures of a T-step sequence"
            if facts.settings.horizon is None
            else "",
        )
        return
    message = f"{share_having(unstable, facts.eigenvalues.count, 'eigenvalue')} |λ| >= 1" + (
        f", the largest |λ| = {top:.6g}" if top is not None else ""
    )
    point = None if facts.dense is None else facts.dense.operating_point
    if facts.withheld is not None:
        yield UNSTABLE.finding(
            "warning", f"{message}: no linear figure holds, and it is the activation that ends this"
        )
        return
    if facts.dense is not None and point is not None:
        yield UNSTABLE.finding(
            "info",
            f"{message}; at its operating point the {facts.dense.activation} brings it down to "
            f"{number(point.spectral_radius)}",
        )
        return
    if facts.settings.horizon is None:
        message += "; over an infinite sequence the state and its sensitivities diverge"
        advice = "give --horizon T for the figures of a T-step sequence; "
    else:
        message += f"; the figures hold at the {facts.settings.horizon}-step horizon only"
        advice = ""
    yield UNSTABLE.finding(
        "error",
        message,
        advice + "use a parametrisation that keeps |λ| < 1, such as |λ| = exp(-exp(ν))",
    )


def _frozen_or_beyond(facts: Facts) -> Iterator[Finding]:
    log_modulus = facts.recurrence.log_eigenvalues.real
    horizon = facts.settings.horizon
    limit = FROZEN_STEPS if horizon is None else FROZEN_HORIZONS * horizon
    stable = log_modulus < 0
    frozen = int(np.count_nonzero(stable & (log_modulus > -1 / limit)))
    if frozen:
        yield FROZEN.finding(
            "warning",
            f"{share_having(frozen, log_modulus.size, 'eigenvalue')} a time constant beyond "
            f"{number(limit)} steps: such states sum their input and never let go of it",
            "check that the decay parameter still trains; at the rounding of its type it may not",
        )
    if horizon is None:
        return
    beyond = int(np.count_nonzero(stable & (log_modulus > -1 / horizon))) - frozen
    if beyond > 0:
        where = "the last step of" if facts.settings.state_readout == "last" else "every step of"
        yield BEYOND_HORIZON.finding(
            "info",
            f"{share_having(beyond, log_modulus.size, 'eigenvalue')} a time constant beyond the "
            f"horizon of {count(horizon, 'step')}; the figures are those of {where} such a "
            f"sequence, and longer ones are more sensitive{_without_horizon(facts)}",
            "before running longer sequences than were trained on, inspect with their --horizon",
        )


def _without_horizon(facts: Facts) -> str:
    """By how much an endless sequence would overstate the sensitivity of the longest memory."""
    logs = facts.recurrence.log_eigenvalues
    longest = np.argmax(np.where(logs.real < 0, logs.real, -np.inf))
    log = logs[longest : longest + 1]
    finite = facts.settings.moments_of(log).sensitivity[0]
    endless = moments(log, facts.settings.autocorrelation).sensitivity[0]
    if not 0 < finite < endless < np.inf:
        return ""
    return (
        f": over an infinite one E|dh/dλ|² would be {number(endless / finite)} times as large for "
        f"the longest (τ = {duration(-1 / float(log[0].real))})"
    )
