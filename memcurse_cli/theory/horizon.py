"""Second moments after T steps from h = s = 0, exact for every λ, by doubling T.

The recurrence is ``h[t+1] = λ h[t] + x[t+1]``, ``s[t+1] = λ s[t] + h[t]``, and the input has
R(Δ) = ρ^|Δ|. The two halves of a sequence of 2k steps share only what such an input carries
over, which has rank one: E[h_new h̄_old] = A B̄ with A = E[h(k) x̄(0)] and B = E[h(k) x̄(k)]. Each
doubling is therefore a handful of products and adds a few roundings, however large T is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from memcurse_cli.theory.namespace import array_namespace, may_be_traced

if TYPE_CHECKING:
    from jaxtyping import Float, Inexact

Array = Any

UNDERFLOW = -800.0  # k e^x is 0 in float64 below it, for every number of steps k


def finite_moments(
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
    longest = None if may_be_traced(log_modulus) else _largest(log_modulus)
    state = _State(log_modulus, angle, rho)
    for bit in bin(steps)[3:]:
        if longest is not None and state.steps > 1 and (state.steps - 1) * longest < UNDERFLOW:
            break  # every k λ^(k-1) is 0: nothing older is remembered
        state.double()
        if bit == "1":
            state.append_step()
    return state.second_moment, state.cross_moment, state.sensitivity


def _largest(log_modulus: Array) -> float:
    xp = array_namespace(log_modulus)
    return float(xp.max(log_modulus)) if log_modulus.shape[0] else 0.0


def _from_polar(log_modulus: Array, angle: Array | None) -> Array:
    xp = array_namespace(log_modulus)
    modulus = xp.exp(log_modulus)
    if angle is None:
        return modulus
    return modulus * xp.cos(angle) + 1j * (modulus * xp.sin(angle))


class _State:
    """The moments after k steps, and what is needed to go to 2k or k + 1.

    Every array is real where the eigenvalues are, and complex otherwise.

    Attributes:
        steps: k.
        second_moment, cross_moment, sensitivity: E|h|², E[s h̄], E|s|².
        h_last, s_last: B = E[h(k) x̄(k)] and its derivative E[s(k) x̄(k)].
        h_first, s_first: A = E[h(k) x̄(0)], x(0) being the step before the first, and E[s(k) x̄(0)].
    """

    def __init__(self, log_modulus: Array, angle: Array | None, rho: float) -> None:
        xp = array_namespace(log_modulus)
        self.log_modulus, self.angle, self.rho = log_modulus, angle, rho
        self.eigenvalue = _from_polar(log_modulus, angle)
        one, zero = xp.ones_like(self.eigenvalue), xp.zeros_like(self.eigenvalue)
        if angle is None:
            self.real, self.conjugate = _identity, _identity
        else:
            self.real, self.conjugate = xp.real, xp.conj
        self.steps = 1
        self.second_moment, self.sensitivity = xp.ones_like(log_modulus), xp.zeros_like(log_modulus)
        self.cross_moment = zero
        self.h_last, self.s_last = one, zero
        self.h_first, self.s_first = rho * one, zero

    def _squared(self, z: Array) -> Array:
        return z * z if self.angle is None else self.real(z) ** 2 + array_namespace(z).imag(z) ** 2

    def double(self) -> None:
        """From k to 2k: h = h_new + l h_old, s = s_new + l s_old + d h_old; l = λ^k, d = dl/dλ."""
        k, rho = self.steps, self.rho
        if k == 1:
            power, rate = self.eigenvalue, 1.0
        else:
            angle = None if self.angle is None else (k - 1) * self.angle
            rate = _from_polar((k - 1) * self.log_modulus, angle)
            power, rate = rate * self.eigenvalue, k * rate
        conjugate, real = self.conjugate, self.real
        power_conjugate = conjugate(power)
        rate_conjugate = 1.0 if k == 1 else conjugate(rate)
        rate_squared = 1.0 if k == 1 else self._squared(rate)
        growth = 1 + self._squared(power)

        f, c = self.second_moment, self.cross_moment
        self.second_moment = f * growth
        self.cross_moment = c * growth + (rate * power_conjugate) * f
        self.sensitivity = (
            self.sensitivity * growth + rate_squared * f + 2 * real((power * rate_conjugate) * c)
        )
        if rho > 0:
            h_old = power * self.h_last  # E[l h_old x̄(0)], x(0) being old's last input
            s_old = power * self.s_last + rate * self.h_last
            h_shared, s_shared = conjugate(h_old), conjugate(s_old)
            self.second_moment = self.second_moment + 2 * real(self.h_first * h_shared)
            self.cross_moment = (
                self.cross_moment + self.s_first * h_shared + conjugate(self.h_first) * s_old
            )
            self.sensitivity = self.sensitivity + 2 * real(self.s_first * s_shared)

            decay = rho**k
            self.h_last = self.h_last + decay * h_old
            self.s_last = self.s_last + decay * s_old
            self.s_first = (decay + power) * self.s_first + rate * self.h_first
            self.h_first = (decay + power) * self.h_first
        self.steps = 2 * k

    def append_step(self) -> None:
        """From k to k + 1: the recurrence itself."""
        rho, eigenvalue, real = self.rho, self.eigenvalue, self.real
        f, c, squared = self.second_moment, self.cross_moment, self._squared(self.eigenvalue)
        h_input, s_input = rho * self.h_last, rho * self.s_last  # E[h(k) x̄(k+1)], E[s(k) x̄(k+1)]
        self.second_moment = squared * f + 2 * real(eigenvalue * h_input) + 1
        self.cross_moment = (
            squared * c + eigenvalue * s_input + self.conjugate(eigenvalue) * f + h_input
        )
        self.sensitivity = squared * self.sensitivity + f + 2 * real(eigenvalue * c)
        self.s_last = eigenvalue * s_input + h_input
        self.h_last = eigenvalue * h_input + 1
        self.s_first = eigenvalue * self.s_first + self.h_first
        self.steps += 1
        self.h_first = eigenvalue * self.h_first + rho**self.steps


def _identity(z: Array) -> Array:
    return z
