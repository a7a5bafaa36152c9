"""Second moments of T steps from h = 0, exact for every λ: of the last step or of every one.

With h runs ``s[t+1] = λ' s[t] + c h[t] + η x[t+1]``; docs/theory.md has the sums.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from memcurse_cli.theory.autocorrelation import turned
from memcurse_cli.theory.linalg import Array, Floats, array_namespace

Readout = Literal["last", "every"]
"""Where a finite sequence is read: at its last step, or as the mean over every step."""


DISTINCT = 0.5  # of |T log|λ|²|, above which the closed forms of white input keep their digits

Sums = tuple[Any, ...]  # of products of the entries of y


def summed_products(transition: Any, rho: float, steps: int, readout: Readout) -> Sums:
    """E[y y†] at the last of T ≥ 1 steps, or as the mean over every one.

    The transition is M^k at its ``steps`` k = 1, which can ``double`` and ``append_step``, with
    y(k) y(k)† as ``first_products`` and ``products``, and M^k X M^k† ``applied`` to sums X; ρ is
    that of the input.
    """
    every = readout == "every"
    w = v = transition.first_products()
    for bit in bin(steps if every else steps - 1)[3:]:
        if every:
            v = _plus(_plus(v, w, transition.steps), transition.applied(v))
        w = _plus(w, transition.applied(w))
        transition.double()
        if bit == "1":
            w = _plus(w, transition.products())
            if every:
                v = _plus(v, w)
            transition.append_step()
    later = (1 - rho) * (1 + rho)
    if every:
        first = rho**2 / steps
        return tuple(later / steps * a + first * b for a, b in zip(v, w, strict=True))
    if steps == 1:
        return tuple(w)
    seen = transition.products()
    return _plus(seen, w, later) if later > 0 else tuple(seen)


def white_sums(log_modulus: Floats, steps: int | None) -> Sums:
    """E|h|², E[s h̄] and E|s|² at the last of T steps of white input, of (n,) λ = |λ| and γ = 1.

    With a = |λ|² they are Σ aᵏ, λ Σ k aᵏ⁻¹ and Σ k² aᵏ⁻¹ over k < T, None for all k; where T log a
    is small their closed forms cancel, and what cancels is summed by doubling.
    """
    exponent = 2 * log_modulus
    left = -np.expm1(exponent)
    if steps is None:
        endless = 1 / left
        squared = endless * endless
        return endless, np.exp(log_modulus) * squared, (2 - left) * squared * endless
    ended = np.exp((steps - 1) * exponent)
    powers = -np.expm1(steps * exponent) / left
    once = (powers - steps * ended) / left
    twice = (2 * once - (powers - ended) - (steps - 1) ** 2 * ended) / left
    found = powers, np.exp(log_modulus) * once, twice
    cancels = ~((np.abs(steps * exponent) > DISTINCT) & np.isfinite(twice))
    if cancels.any():
        sums = summed_products(DerivativeSums(log_modulus[cancels], None, 0.0), 0.0, steps, "last")
        for one, exact in zip(found, sums[-3:], strict=True):
            one[cancels] = exact
    return found


def _plus(sums: Sums, others: Sums, factor: float = 1) -> Sums:
    return tuple(a + factor * b for a, b in zip(sums, others, strict=True))


def _power(log_modulus: Array, angle: Array | None, steps: int) -> Array:
    """λ^k from log λ each time, so that no rounding adds up; real where every λ is."""
    modulus = array_namespace(log_modulus).exp(steps * log_modulus)
    return modulus if angle is None else modulus * turned(angle, steps)


class DerivativeSums:
    """M^k = [[ρ^k,0,0],[g,λ^k,0],[q,kλ^(k-1),λ^k]] of s = dh/dλ, for R(Δ) = ρ^|Δ| and γ = 1.

    Its sums (rr, hr, sr, hh, sh, ss) are the products of y = (r, h, s); not finite where the state
    leaves the range of a float. log|λ| is (n,) of any sign; the angle None where every λ is real
    and non-negative.
    """

    # `carried` and `carried_rate` are g and q, what h and s hold of an input k steps ago; `power`,
    # `rate` and `moved_power` the entries of h and s by h and by s; `coupling`, `drive` c and η.
    def __init__(self, log_modulus: Array, angle: Array | None, rho: float) -> None:
        self.xp, self.rho = array_namespace(log_modulus), rho
        self.logs = log_modulus, angle
        self.steps, self.decay = 1, rho
        self.eigenvalue = self.moved = self.power = self.moved_power = _power(*self.logs, 1)
        self.coupling, self.drive = 1.0, self.xp.zeros_like(self.power)
        self.rate = self.xp.ones_like(self.power)
        self.carried, self.carried_rate = rho * self.rate, rho * self.drive

    def first_products(self) -> Sums:
        """y(0) y(0)†."""
        one = self.xp.ones_like(self.logs[0])
        return one, one, self.drive, one, self.drive, self._squared(self.drive)

    def products(self) -> Sums:
        """y(k) y(k)†."""
        h = self.carried + self.power
        s = self.carried_rate + self.rate + self.moved_power * self.drive
        r, squared = self.decay, self._squared
        return r**2, r * h, r * s, squared(h), s * self.xp.conj(h), squared(s)

    def applied(self, sums: Sums) -> Sums:
        """M^k X M^k†."""
        power, rate, moved, decay = self.power, self.rate, self.moved_power, self.decay
        conjugate, real, squared = self.xp.conj, self.xp.real, self._squared
        rr, hr, sr, hh, sh, ss = sums
        new_hh = squared(power) * hh
        new_sh = conjugate(power) * (rate * hh + moved * sh)
        new_ss = squared(rate) * hh + squared(moved) * ss + 2 * real(moved * conjugate(rate) * sh)
        if self.rho == 0:  # of white input nothing is left in r
            return 0.0, 0.0, 0.0, new_hh, new_sh, new_ss
        g, q = self.carried, self.carried_rate
        h_moved = power * hr
        s_moved = rate * hr + moved * sr
        return (
            decay**2 * rr,
            decay * (g * rr + h_moved),
            decay * (q * rr + s_moved),
            new_hh + squared(g) * rr + 2 * real(conjugate(g) * h_moved),
            new_sh + conjugate(g) * (q * rr + s_moved) + q * conjugate(h_moved),
            new_ss + squared(q) * rr + 2 * real(conjugate(q) * s_moved),
        )

    def double(self) -> None:
        """M^2k."""
        if self.rho > 0:
            h_kept, s_kept = self.decay + self.power, self.decay + self.moved_power
            self.carried_rate = s_kept * self.carried_rate + self.rate * self.carried
            self.carried = h_kept * self.carried
        self._step_to(2 * self.steps)

    def append_step(self) -> None:
        """M^(k+1)."""
        if self.rho > 0:
            input_now = self.rho ** (self.steps + 1)
            self.carried_rate = (
                self.moved * self.carried_rate
                + self.coupling * self.carried
                + self.drive * input_now
            )
            self.carried = self.eigenvalue * self.carried + input_now
        self._step_to(self.steps + 1)

    def _step_to(self, steps: int) -> None:
        before = _power(*self.logs, steps - 1)
        self.power = self.moved_power = before * self.eigenvalue
        self.rate = steps * before
        self.steps, self.decay = steps, self.rho**steps

    def _squared(self, z: Array) -> Array:
        return self.xp.real(z * self.xp.conj(z))


class ChangeSums(DerivativeSums):
    """M^k = [[ρ^k,0,0],[g,λ^k,0],[q,λ'^k-λ^k,λ'^k]] of s = h' - h, whose h' has λ' and γ'.

    Of complex log λ and log λ', and γ' - 1.
    """

    def __init__(self, log: Array, log_moved: Array, gain_change: Array, rho: float) -> None:
        complex_logs = bool(log.imag.any() or log_moved.imag.any())
        super().__init__(log.real, log.imag if complex_logs else None, rho)
        self.moved_logs = log_moved.real, log_moved.imag if complex_logs else None
        growth = log_moved.real - log.real
        self.growth = self.xp.where(self.xp.isnan(growth), 0.0, growth)  # of 0 that stays 0
        self.turn = log_moved.imag - log.imag if complex_logs else None
        self._step_to(1)
        self.moved, self.coupling, self.drive = self.moved_power, self.rate, gain_change
        self.carried_rate = rho * gain_change

    def _step_to(self, steps: int) -> None:
        xp = self.xp
        self.power, self.moved_power = _power(*self.logs, steps), _power(*self.moved_logs, steps)
        grows = self.growth > 0
        sign = xp.where(grows, -1.0, 1.0)
        exponent = steps * sign * self.growth
        if self.turn is not None:
            exponent = exponent + 1j * (steps * sign * self.turn)
        # Of the larger of the two, a share that does not cancel.
        larger = xp.where(grows, self.moved_power, self.power)
        self.rate = sign * larger * xp.expm1(exponent)
        self.steps, self.decay = steps, self.rho**steps
