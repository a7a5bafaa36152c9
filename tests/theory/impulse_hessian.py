"""Hessians at a perfect fit from impulse responses J_a(k) = dy/dω_a alone.

With ``y[t] = Σ_k K(k) x[t-k]`` the Hessian of ½ E|y - y*|² at ``y = y*`` is ``E[J_a J_b]``, in
expectation over an input of known autocorrelation or on given data. Nothing here knows a closed
form; every parameter of a diagonal layer is covered, those of B, C and D too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.signal import fftconvolve

from memcurse_cli.theory.autocorrelation import Autocorrelation

Complexes = NDArray[np.complex128]
Floats = NDArray[np.float64]
Integers = NDArray[np.intp]


@dataclass(frozen=True)
class Group:
    """A parameter group by its sparse Jacobian."""

    size: int
    scalar: Integers
    eigenvalue: Integers
    eigenvalue_derivative: Complexes
    log_gain_derivative: Complexes | None = None


def group(eigenvalue_derivative: NDArray, log_gain_derivative: NDArray | None = None) -> Group:
    """One scalar for each eigenvalue."""
    every = np.arange(len(eigenvalue_derivative))
    rate = None if log_gain_derivative is None else log_gain_derivative.astype(complex)
    return Group(every.size, every, every, eigenvalue_derivative.astype(complex), rate)


@dataclass(frozen=True)
class Layer:
    """A diagonal layer ``y = factor Re[C h]``; its fields are those of a recurrence."""

    log_eigenvalues: Complexes
    log_gain: Complexes
    groups: Sequence[Group]
    readin: Complexes
    readout: Complexes
    channel: Integers | None = None
    conjugate_pairs: bool = False

    def powers(self, steps: int) -> tuple[Complexes, Complexes]:
        """(n, steps) λ^k and k λ^(k-1), by repeated multiplication."""
        eigenvalues = np.exp(self.log_eigenvalues)[:, None]
        lags = np.broadcast_to(eigenvalues, (eigenvalues.size, steps - 1))
        h = np.cumprod(np.hstack([np.ones_like(eigenvalues), lags]), axis=1)
        s = np.arange(steps) * np.hstack([np.zeros_like(eigenvalues), h[:, :-1]])
        return h, s

    def read(self, states: Complexes) -> Floats:
        """(channels, outputs, inputs, steps) from the response of every state to its own drive."""
        channel = np.zeros(len(states), np.intp) if self.channel is None else self.channel
        factor = 2 if self.conjugate_pairs else 1
        alone = (channel == np.arange(channel.max() + 1)[:, None]).astype(float)
        gain = np.exp(self.log_gain)
        return (
            factor
            * np.einsum(
                "pn,on,n,nu,nk->pouk", alone, self.readout, gain, self.readin, states, optimize=True
            ).real
        )

    def responses(self, steps: int) -> Floats:
        """(scalars, channels, outputs, inputs, steps) dy/dω of every scalar."""
        h, s = self.powers(steps)
        found = []
        for one in self.groups:
            for scalar in range(one.size):
                states = np.zeros_like(h)
                for entry in np.flatnonzero(one.scalar == scalar):
                    place = one.eigenvalue[entry]
                    states[place] += one.eigenvalue_derivative[entry] * s[place]
                    if one.log_gain_derivative is not None:
                        states[place] += one.log_gain_derivative[entry] * h[place]
                found.append(self.read(states))
        return np.array(found)

    def readin_responses(self, steps: int) -> Floats:
        """(2n, channels, outputs, 1, steps) dy/d Im B, then dy/d Re B, for a single input."""
        h, _ = self.powers(steps)
        unit = Layer(
            self.log_eigenvalues,
            self.log_gain,
            (),
            np.ones_like(self.readin),
            self.readout,
            self.channel,
            self.conjugate_pairs,
        )
        each = [np.where(np.arange(len(h))[:, None] == place, h, 0) for place in range(len(h))]
        return np.array([unit.read(turn * states) for turn in (1j, 1) for states in each])

    def readout_responses(self, steps: int) -> Floats:
        """(2n, channels, 1, inputs, steps) dy/d Im C, then dy/d Re C, for a single output."""
        h, _ = self.powers(steps)
        unit = Layer(
            self.log_eigenvalues,
            self.log_gain,
            (),
            self.readin,
            np.ones_like(self.readout),
            self.channel,
            self.conjugate_pairs,
        )
        each = [np.where(np.arange(len(h))[:, None] == place, h, 0) for place in range(len(h))]
        return np.array([unit.read(turn * states) for turn in (1j, 1) for states in each])


def expected(responses: Floats, autocorrelation: Autocorrelation, horizon: int | None) -> Floats:
    """H for isotropic inputs: the mean over the steps of a sequence, or its last step.

    Responses that reach k and l steps back are seen together by the T - max(k, l) steps that are
    old enough. Without a horizon the responses must have died out.
    """
    lags = np.arange(responses.shape[-1])
    apart = np.abs(lags[:, None] - lags[None, :])
    weight = sum(w * rho**apart for w, rho in autocorrelation)
    if horizon is not None:
        weight = weight * (horizon - np.maximum(lags[:, None], lags[None, :])) / horizon
    flat = responses.reshape(len(responses), -1, lags.size)
    return np.einsum("ack,kl,bcl->ab", flat, weight, flat, optimize=True)


def on_data(responses: Floats, data: Floats) -> Floats:
    """H on (sequences, steps) samples of a single input, the mean over all of their steps."""
    flat = responses.reshape(len(responses), 1, -1)
    seen = fftconvolve(flat, data[None], axes=2)[..., : data.shape[1]]
    seen = seen.reshape(len(responses), -1)
    return seen @ seen.T / data.size
