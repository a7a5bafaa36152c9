"""Hessians at a perfect fit from impulse responses J_a(k) = dy/dω_a alone.

With ``y[t] = Σ_k K(k) x[t-k]`` the Hessian of ½ E|y - y*|² at ``y = y*`` is ``E[J_a J_b]``, in
expectation over an input of known autocorrelation or on given data. Nothing here knows a closed
form; every parameter of a diagonal layer is covered, those of B, C and D too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from theory.brute_force import covariance, impulse_responses

from memcurse_cli.theory.autocorrelation import WHITE, Autocorrelation
from memcurse_cli.theory.hessian import LayerHessian
from memcurse_cli.theory.sensitivity import ParameterJacobian, ProjectionJacobian

Complexes = NDArray[np.complex128]
Floats = NDArray[np.float64]
Integers = NDArray[np.intp]


def group(
    eigenvalue_derivative: NDArray, log_gain_derivative: NDArray | None = None
) -> ParameterJacobian:
    """One scalar for each eigenvalue."""
    every = np.arange(len(eigenvalue_derivative))
    rate = None if log_gain_derivative is None else log_gain_derivative.astype(complex)
    return ParameterJacobian(every.size, every, every, eigenvalue_derivative.astype(complex), rate)


def projection(
    matrix: Literal["B", "C", "D"], shape: tuple[int, int], derivative: complex = 1
) -> ProjectionJacobian:
    """One scalar for each element, row by row."""
    row, column = np.indices(shape).reshape(2, -1)
    return ProjectionJacobian(
        row.size, np.arange(row.size), matrix, row, column, np.full(row.size, complex(derivative))
    )


@dataclass(frozen=True)
class Layer:
    """A diagonal layer ``y = factor Re[C h]``; its fields are those of a recurrence."""

    log_eigenvalues: Complexes
    log_gain: Complexes
    groups: Sequence[ParameterJacobian]
    readin: Complexes
    readout: Complexes
    channel: Integers | None = None
    conjugate_pairs: bool = False
    projections: Sequence[ProjectionJacobian] = ()

    def hessian(
        self, autocorrelation: Autocorrelation = WHITE, horizon: int | None = None
    ) -> LayerHessian:
        """What is tested, of the same layer."""
        return LayerHessian(
            self.log_eigenvalues,
            self.log_gain,
            self.groups,
            self.readin,
            self.readout,
            self.projections,
            channel=self.channel,
            conjugate_pairs=self.conjugate_pairs,
            autocorrelation=autocorrelation,
            horizon=horizon,
        )

    def read(
        self, states: Complexes, readin: Complexes | None = None, readout: Complexes | None = None
    ) -> Floats:
        """(channels, outputs, inputs, steps) from the response of every state to its own drive."""
        readin = self.readin if readin is None else readin
        readout = self.readout if readout is None else readout
        channel = np.zeros(len(states), np.intp) if self.channel is None else self.channel
        factor = 2 if self.conjugate_pairs else 1
        alone = (channel == np.arange(channel.max() + 1)[:, None]).astype(float)
        gain = np.exp(self.log_gain)
        return (
            factor
            * np.einsum(
                "pn,on,n,nu,nk->pouk", alone, readout, gain, readin, states, optimize=True
            ).real
        )

    def responses(self, steps: int) -> Floats:
        """(scalars, channels, outputs, inputs, steps) dy/dω of every scalar."""
        h, s = impulse_responses(np.exp(self.log_eigenvalues), steps)
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
        found += [
            self.projected(one, scalar, h) for one in self.projections for scalar in range(one.size)
        ]
        return np.array(found)

    def projected(self, one: ProjectionJacobian, scalar: int, h: Complexes) -> Floats:
        """(channels, outputs, inputs, steps) dy/dω of a scalar of B, C or D."""
        entries = np.flatnonzero(one.scalar == scalar)
        at = one.row[entries], one.column[entries]
        if one.matrix == "D":
            found = self.read(np.zeros_like(h))
            if self.channel is None:
                found[0, *at, 0] = one.derivative[entries].real
            else:
                found[at[1], at[0], 0, 0] = one.derivative[entries].real
            return found
        change = np.zeros_like(self.readin if one.matrix == "B" else self.readout)
        change[at] = one.derivative[entries]
        return self.read(h, readin=change) if one.matrix == "B" else self.read(h, readout=change)


def expected(responses: Floats, autocorrelation: Autocorrelation, *, every: bool = False) -> Floats:
    """H for isotropic inputs: the last step of a sequence, or the mean over its steps."""
    flat = responses.reshape(len(responses), -1, responses.shape[-1])
    seen = covariance(autocorrelation, responses.shape[-1], every=every)
    return np.einsum("ack,kl,bcl->ab", flat, seen, flat, optimize=True)
