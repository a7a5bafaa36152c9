"""Second moments of T steps from h = s = 0, exact for every λ: of the last step or of every one.

The recurrence is ``h[t+1] = λ h[t] + x[t+1]``, ``s[t+1] = λ s[t] + h[t]``, and the input has
R(Δ) = ρ^|Δ|: a first innovation of variance 1, then innovations of variance 1-ρ². Let
y(k) = (ρ^k, h(k), s(k)) be the answer to one k steps ago, which obeys y(k+1) = M y(k), and

    W_k = Σ_{j<k} y(j) y(j)†,    V_k = Σ_{m<=k} W_m = Σ_{j<k} (k-j) y(j) y(j)†

Step T sees the first innovation at lag T-1, and a later one at every lag below, so that

    at the last step:      y(T-1) y(T-1)† + (1-ρ²) W_{T-1}
    mean over every step:  [ (1-ρ²) V_T + ρ² W_T ] / T

Nothing in either is subtracted. Both sums double their length, a handful of products each time, by

    W_2k = W_k + M^k W_k M^k†,    V_2k = V_k + k W_k + M^k V_k M^k†
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from memcurse_cli.theory.autocorrelation.mixture import GRAIN
from memcurse_cli.theory.namespace import array_namespace

if TYPE_CHECKING:
    from jaxtyping import Float, Inexact

Array = Any


class _Sums(NamedTuple):
    """Sums of the products of y = (r, h, s); those of r do not matter for white input."""

    rr: Any
    hr: Any
    sr: Any
    hh: Any
    sh: Any
    ss: Any

    def plus(self, other: _Sums, scale: float = 1) -> _Sums:
        """The sum, ``other`` so many times."""
        return _Sums(*(a + scale * b for a, b in zip(self, other, strict=True)))


def last_moments(
    log_modulus: Float[Array, " n"], angle: Float[Array, " n"] | None, rho: float, steps: int
) -> tuple[Float[Array, " n"], Inexact[Array, " n"], Float[Array, " n"]]:
    """E|h|², E[s h̄] and E|s|² at the last of ``steps`` steps, for R(Δ) = ρ^|Δ| and γ = 1.

    ``h = Σ_{n<T} λ^n x(T-n)`` and ``s = dh/dλ = Σ_{n<T} n λ^(n-1) x(T-n)``: the sums of the
    infinite horizon, cut at T.

    Args:
        log_modulus: (n,) log|λ|, of any sign; -inf for λ = 0.
        angle: (n,) the angle of λ, or None where every λ is real and non-negative.
        rho: autocorrelation of the input at one step, in [0, 1].
        steps: T ≥ 1.

    Returns:
        The three moments; not finite where the state leaves the range of a float.
    """
    transition = _Transition(log_modulus, angle, rho)
    w = transition.first_products()
    if steps == 1:
        return w.hh, w.sh, w.ss
    for bit in bin(steps - 1)[3:]:
        w = w.plus(transition.applied(w))
        transition.double()
        if bit == "1":
            w = w.plus(transition.products())
            transition.append_step()
    seen = transition.products()
    if rho < 1:
        seen = seen.plus(w, (1 - rho) * (1 + rho))
    return seen.hh, seen.sh, seen.ss


def mean_moments(
    log_modulus: Float[Array, " n"], angle: Float[Array, " n"] | None, rho: float, steps: int
) -> tuple[Float[Array, " n"], Inexact[Array, " n"], Float[Array, " n"]]:
    """(1/T) Σ_{t<=T} of E|h|², E[s h̄] and E|s|², for R(Δ) = ρ^|Δ| and γ = 1.

    This is what a loss summed over a sequence sees. Arguments and failures are those of
    `last_moments`.
    """
    transition = _Transition(log_modulus, angle, rho)
    w = v = transition.first_products()
    for bit in bin(steps)[3:]:
        v = v.plus(w, transition.steps).plus(transition.applied(v))
        w = w.plus(transition.applied(w))
        transition.double()
        if bit == "1":
            w = w.plus(transition.products())
            v = v.plus(w)
            transition.append_step()
    later, first = (1 - rho) * (1 + rho) / steps, rho**2 / steps
    return (
        later * v.hh + first * w.hh,
        later * v.sh + first * w.sh,
        later * v.ss + first * w.ss,
    )


class _Transition:
    """M^k for M = [[ρ,0,0],[ρ,λ,0],[0,1,λ]], which answers one step with the next.

    Attributes:
        steps: k.
        decay: ρ^k.
        coarse, fine: the angle, of which a multiple of the first part is exact.
        power, rate: λ^k and its derivative by λ, from log λ each time, so that no rounding adds up.
        carried, carried_rate: what h holds of an input k steps ago, and its derivative.
    """

    def __init__(self, log_modulus: Array, angle: Array | None, rho: float) -> None:
        xp = array_namespace(log_modulus)
        self.xp, self.log_modulus, self.angle, self.rho = xp, log_modulus, angle, rho
        if angle is not None:
            self.coarse = xp.round(angle * GRAIN) / GRAIN
            self.fine = angle - self.coarse
        self.steps, self.decay = 1, rho
        self.eigenvalue = self.power = self._eigenvalue_to(1)
        self.rate = xp.ones_like(self.power)
        self.carried, self.carried_rate = rho * self.rate, xp.zeros_like(self.power)

    def first_products(self) -> _Sums:
        """y(0) y(0)† with y(0) = (1, 1, 0)."""
        one, zero = self.xp.ones_like(self.log_modulus), self.xp.zeros_like(self.log_modulus)
        return _Sums(one, one, zero, one, zero, zero)

    def products(self) -> _Sums:
        """y(k) y(k)† with y(k) = M^k y(0)."""
        h, s = self.carried + self.power, self.carried_rate + self.rate
        return _Sums(
            self.decay**2,
            self.decay * h,
            self.decay * s,
            self._squared(h),
            s * self._conjugate(h),
            self._squared(s),
        )

    def applied(self, sums: _Sums) -> _Sums:
        """M^k X M^k†."""
        power, rate, decay = self.power, self.rate, self.decay
        conjugate, real, squared = self._conjugate, self._real, self._squared
        rr, hr, sr, hh, sh, ss = sums
        new_hh = squared(power) * hh
        new_sh = (rate * conjugate(power)) * hh + squared(power) * sh
        new_ss = squared(rate) * hh + squared(power) * ss + 2 * real(power * conjugate(rate) * sh)
        if self.rho == 0:
            return _Sums(0.0, 0.0, 0.0, new_hh, new_sh, new_ss)
        g, g_rate = self.carried, self.carried_rate
        h_moved = power * hr
        s_moved = rate * hr + power * sr
        return _Sums(
            decay**2 * rr,
            decay * (g * rr + h_moved),
            decay * (g_rate * rr + s_moved),
            new_hh + squared(g) * rr + 2 * real(conjugate(g) * h_moved),
            new_sh + conjugate(g) * (g_rate * rr + s_moved) + g_rate * conjugate(h_moved),
            new_ss + squared(g_rate) * rr + 2 * real(conjugate(g_rate) * s_moved),
        )

    def double(self) -> None:
        """From k to 2k."""
        if self.rho > 0:
            both = self.decay + self.power
            self.carried_rate = both * self.carried_rate + self.rate * self.carried
            self.carried = both * self.carried
        self._step_to(2 * self.steps)

    def append_step(self) -> None:
        """From k to k + 1."""
        if self.rho > 0:
            self.carried_rate = self.eigenvalue * self.carried_rate + self.carried
            self.carried = self.eigenvalue * self.carried + self.rho ** (self.steps + 1)
        self._step_to(self.steps + 1)

    def _step_to(self, steps: int) -> None:
        before = self._eigenvalue_to(steps - 1)
        self.power, self.rate = before * self.eigenvalue, steps * before
        self.steps, self.decay = steps, self.rho**steps

    def _eigenvalue_to(self, steps: int) -> Array:
        """λ^k, real where every λ is."""
        modulus = self.xp.exp(steps * self.log_modulus)
        if self.angle is None:
            return modulus
        turned = self.xp.exp(1j * (steps * self.coarse)) * self.xp.exp(1j * (steps * self.fine))
        return modulus * turned

    def _conjugate(self, z: Array) -> Array:
        return z if self.angle is None else self.xp.conj(z)

    def _real(self, z: Array) -> Array:
        return z if self.angle is None else self.xp.real(z)

    def _squared(self, z: Array) -> Array:
        return z * z if self.angle is None else self.xp.real(z) ** 2 + self.xp.imag(z) ** 2
