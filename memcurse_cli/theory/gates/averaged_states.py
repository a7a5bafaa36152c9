"""States that are means of what came in, weighted by gates: the c/n of an sLSTM.

``c' = λ c + γ u`` over ``n' = λ n + γ`` is ``m' = a m + (1-a) u`` with ``a = λn / (λn + γ)``, which
rests on all gates so far, so that E m² has no closed form where γ may grow without bound.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from memcurse_cli.theory.autocorrelation.mixture import Autocorrelation
from memcurse_cli.theory.gates.laws import GateLaw, Write
from memcurse_cli.theory.gates.quadrature import Preactivation, evenly_taken

Floats = NDArray[np.float64]

STEPS = 2000
"""The second half counts."""
SEED = 7


def averaged_variance(
    law: GateLaw,
    gate: Preactivation,
    write: Write,
    write_gate: Preactivation,
    autocorrelation: Autocorrelation,
) -> Floats:
    """(n,) E m² for a drive u of variance 1 and autocorrelation R.

    With weights w_s of what came in at step s, ``E[m² | gates] = Σ w_s w_t R(s-t) / (Σ w)²``. For
    ``R = ρ^|Δ|``, or a damped cosine with a complex ρ, it is v of

        g' = a ρ g + (1-a),    v' = a² v + 2 a (1-a) Re(ρ g) + (1-a)²

    from v = g = 1 after the first step, along drawn gates: the mean over drives is exact, that over
    gates that over steps; units that are not taken get the value of one before them. The draws are
    the same at every call.

    Args:
        law: λ as a function of z.
        gate: z ~ N(b, σ²) of every unit, independent in time.
        write: γ as a function of its own pre-activation.
        write_gate: that pre-activation, independent of z.
        autocorrelation: R; its weights are taken relative to their sum.
    """
    size = gate.mean.size
    some = evenly_taken(size)
    gate, write_gate, law = gate.take(some), write_gate.take(some), law.take(some)
    random = np.random.default_rng(SEED)
    weights = np.array(autocorrelation.weights) / autocorrelation.variance
    poles = np.array([part.pole for part in autocorrelation.parts])[:, None]
    log_normaliser = _log_gain(write, write_gate, random)
    found = np.ones((weights.size, some.size))
    past = np.ones((weights.size, some.size), dtype=np.complex128)
    total = np.zeros(some.size)
    for step in range(1, STEPS):
        kept = law(gate.mean + gate.spread * random.standard_normal(some.size))
        with np.errstate(divide="ignore"):  # a gate that is shut forgets all
            log_kept = np.log(kept.eigenvalue) + log_normaliser
        written = _log_gain(write, write_gate, random)
        log_normaliser = np.logaddexp(log_kept, written)
        a, b = np.exp(log_kept - log_normaliser), np.exp(written - log_normaliser)
        turned = poles * past
        found = a**2 * found + 2 * a * b * turned.real + b**2
        past = a * turned + b
        if step >= STEPS // 2:
            total += weights @ found
    of_unit = np.searchsorted(some, np.arange(size), side="right") - 1
    return np.asarray(total[of_unit] / (STEPS - STEPS // 2))


def _log_gain(write: Write, gate: Preactivation, random: np.random.Generator) -> Floats:
    drawn = gate.mean + gate.spread * random.standard_normal(gate.mean.size)
    return np.asarray(np.log(write(drawn).value))
