"""The one data type: all that the theory needs to know of a recurrent layer.

A layer is ``n`` scalar recurrences ``h[t+1] = λ h[t] + γ x[t+1]`` (a dense layer in the basis of
its eigenvectors), the parameters that move λ and γ, and B and C where the checkpoint has them.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from memcurse_cli.theory.sensitivity import ParameterJacobian, ProjectionJacobian

if TYPE_CHECKING:
    from memcurse_cli.families.gate_inputs import Drive
    from memcurse_cli.theory.dense.bases import Eigenbasis
    from memcurse_cli.theory.mean_field import GatedNetwork
    from memcurse_cli.theory.simulation import CellDynamics

Floats = NDArray[np.float64]
Complexes = NDArray[np.complex128]
Integers = NDArray[np.intp]


class ParameterGroup(ParameterJacobian, frozen=True, kw_only=True):
    """The scalars of one tensor, and how each of them moves the recurrence."""

    name: str  # in its family, e.g. ``nu_log``
    tensor: str  # in the checkpoint
    values: Floats  # (size,) as stored, one per scalar
    dtype: str  # as stored: `TensorSpec.dtype`
    # No value of this group brings a stable eigenvalue to |λ| >= 1, though other groups of the
    # layer may (S5's step size, beside a Re Λ of either sign).
    keeps_stable: bool = False
    tensor_largest: float | None = None  # largest |ω| of the whole tensor, if not in the group


class ProjectionGroup(ProjectionJacobian, frozen=True, kw_only=True):
    """The scalars of one stored part of B, C or D, and the element that each of them moves.

    B that several channels share is tied: one scalar has an entry in each of them. A Hessian at a
    perfect fit needs no value of D, so that none is kept.
    """

    name: str  # as of `ParameterGroup`, e.g. ``B_re``
    tensor: str
    dtype: str


class DenseDynamics(Struct, frozen=True):
    """A real dense recurrence ``h[t+1] = A h[t] + B x[t+1]`` beside its eigendecomposition."""

    matrix: Floats  # (n, n) A, row = target
    tensor: str
    dtype: str
    eigenvectors: Complexes  # (n, n) P with ``A = P diag(λ) P⁻¹``, columns of norm 1
    activation: str  # ``linear``, ``tanh`` or ``relu``; linearised at ``slope``
    scale: float = 1.0  # dA/dW for the stored W, e.g. the leak α of ``A = (1-α) I + α W``
    bias: Floats | None = None  # (n,) inside the activation, of all tensors; None if not known
    heads: int = 1  # how many blocks there are like this one whose outputs add up
    tensor_largest: float | None = None  # largest |ω| of the whole tensor, if not in W
    slope: float = 1.0  # of the activation, which ``matrix`` is multiplied with


class HiddenSpectra(Struct, frozen=True):
    """The spectra of a gated layer's hidden weights."""

    gates: Mapping[str, Complexes]  # (H,) of the hidden matrix of each gate and candidate
    # (order,) of the Jacobian of one step of the whole state, at zero input and zero state.
    jacobian: Complexes | None
    reason: str | None = None  # why something is missing
    # All weights and biases of a GRU or LSTM of sigmoid gates, no projection and no peephole.
    network: GatedNetwork | None = None


class RankOneCorrection(Struct, frozen=True):
    """An input-dependent rank-one term that is added to or multiplied with diag(λ).

    It vanishes at zero input, where diag(λ) is the whole transition. With an input, one eigenvalue
    per head comes down; the others stay between the smallest and the largest λ of their head then.
    """

    term: str  # with the range of what stands in it
    lowest: float  # how far down the one eigenvalue can come, whatever the input
    # How many such terms a step multiplies, each of norm 1 at most. Of several, as many
    # eigenvalues leave the λ of their head, to anywhere in the unit disk.
    count: int = 1


class Recurrence(Struct, frozen=True, dict=True):
    """One recurrent layer, nominal: input-dependent gates stand at zero input."""

    name: str  # the layer's, in the checkpoint
    family: str  # the name of the family that read it
    tensors: tuple[str, ...]  # those that it was read from
    log_eigenvalues: Complexes  # (n,) log λ per step; exact for decays down to 1e-300
    log_gain: Complexes  # (n,) log γ; zeros where the layer has no gain of its own
    parameters: tuple[ParameterGroup, ...]  # empty for a dense layer
    # (n, inputs) B, without γ, and (outputs, n) C; None where not stored or input-dependent.
    readin: Complexes | None = None
    readout: Complexes | None = None
    # (n,) the single-input channel of each eigenvalue (S4), or None where every one sees every
    # input. States of two channels never meet in an output.
    channel: Integers | None = None
    # One of each pair is stored and ``y = 2 Re[C h]``; otherwise ``y = Re[C h]``.
    conjugate_pairs: bool = False
    multiplicity: int = 1  # identical states that each eigenvalue drives (Mamba-2: head × state)
    input_dependent: bool = False  # λ or γ depends on the input; the numbers are at zero input
    # No value of the parameters gives |λ| ≥ 1, or |λ| > 1 in a layer that is ``unitary``.
    stable_by_construction: bool = False
    assumptions: tuple[str, ...] = ()  # one sentence each
    dense: DenseDynamics | None = None  # None for a diagonal layer
    # A gate or the candidate sees the state through a dense matrix: memory that is not in λ.
    hidden_feedback: bool = False
    # Where they were asked for; a family that cannot give them always says why.
    hidden: HiddenSpectra | None = None
    rank_one: RankOneCorrection | None = None  # the term of the transition that λ leaves out
    unitary: bool = False  # |λ| = 1 by design: nothing decays by itself
    projections: tuple[ProjectionGroup, ...] = ()  # empty, the layer has no Hessian
    # What drives λ and γ beside their biases, or why there are no figures of it, where that was
    # asked for; None where the family does not say, or the weights are not in the checkpoint.
    gate: Drive | None = None
    activation: str = "linear"  # of a diagonal layer, taken with slope 1
    dynamics: CellDynamics | None = None  # of a cell that can be run

    @cached_property
    def eigenbasis(self) -> Eigenbasis:
        """The eigenbasis of a dense layer: P is inverted once, whoever asks."""
        from memcurse_cli.theory.dense.bases import Eigenbasis

        assert self.dense is not None
        return Eigenbasis(self.log_eigenvalues, self.dense.eigenvectors)

    @property
    def is_linear(self) -> bool:
        """Whether closed forms hold: no gate sees the state, no activation stands between steps."""
        return self.dynamics is None and (self.dense is None or self.dense.activation == "linear")

    @property
    def size(self) -> int:
        """The number of eigenvalues n."""
        return self.log_eigenvalues.size
