"""The one data type: all that the theory needs to know of a recurrent layer.

A layer is ``n`` scalar recurrences ``h[t+1] = λ h[t] + γ x[t+1]`` (a dense layer in the basis of
its eigenvectors), the parameters that move λ and γ, and B and C where the checkpoint has them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from memcurse_cli.families.gate_inputs import Drive
    from memcurse_cli.theory.dense.bases import Eigenbasis
    from memcurse_cli.theory.mean_field import GatedNetwork

Floats = NDArray[np.float64]
Complexes = NDArray[np.complex128]
Integers = NDArray[np.intp]


@dataclass(frozen=True)
class ParameterGroup:
    """The scalars of one tensor, and how each of them moves the recurrence.

    The Jacobian is sparse and kept by coordinates. Entry ``e`` says that one unit of scalar
    ``scalar[e]`` changes the eigenvalue ``eigenvalue[e]`` by ``eigenvalue_derivative[e]`` and the
    logarithm of its gain by ``log_gain_derivative[e]``. A tied parameter (Mamba's ``dt_bias``,
    S4's ``log_dt``) is one scalar with several entries.

    Attributes:
        name: the parameter's name in its family, e.g. ``nu_log``.
        tensor: the name of the tensor in the checkpoint.
        values: (size,) the stored values, one per scalar.
        dtype: the stored type, as `TensorSpec.dtype`.
        scalar: (entries,) index into ``values``.
        eigenvalue: (entries,) index into the recurrence's eigenvalues.
        eigenvalue_derivative: (entries,) complex dλ/dω.
        log_gain_derivative: (entries,) complex d log γ/dω, or None where γ does not depend on ω.
        keeps_stable: no value of this group brings a stable eigenvalue to |λ| >= 1, though other
            groups of the layer may (S5's step size, beside a Re Λ of either sign).
        tensor_largest: the largest |ω| of the whole tensor, where that is not in the group.
    """

    name: str
    tensor: str
    values: Floats
    dtype: str
    scalar: Integers
    eigenvalue: Integers
    eigenvalue_derivative: Complexes
    log_gain_derivative: Complexes | None = None
    keeps_stable: bool = False
    tensor_largest: float | None = None

    @property
    def size(self) -> int:
        """The number of scalars."""
        return self.values.size


@dataclass(frozen=True)
class ProjectionGroup:
    """The scalars of one stored part of B, C or D, and the element that each of them moves.

    Entry ``e`` says that one unit of scalar ``scalar[e]`` changes the matrix at (``row[e]``,
    ``column[e]``) by ``derivative[e]``. B that several channels share is tied: one scalar has an
    entry in each of them. A Hessian at a perfect fit needs no value of D, so that none is kept.

    Attributes:
        name, tensor, dtype: as of `ParameterGroup`, e.g. ``B_re``.
        matrix: B (n, inputs), C (outputs, n), or D (outputs, inputs), whose columns are channels
            where each channel has an input of its own.
        size: the number of scalars.
        scalar, row, column: (entries,) indices.
        derivative: (entries,) complex; 1 for a real part, i for an imaginary one.
    """

    name: str
    tensor: str
    dtype: str
    matrix: Literal["B", "C", "D"]
    size: int
    scalar: Integers
    row: Integers
    column: Integers
    derivative: Complexes


@dataclass(frozen=True)
class DenseDynamics:
    """A real dense recurrence ``h[t+1] = A h[t] + B x[t+1]`` beside its eigendecomposition.

    Attributes:
        matrix: (n, n) real A, row = target.
        tensor, dtype: as of `ParameterGroup`.
        eigenvectors: (n, n) complex P with ``A = P diag(λ) P⁻¹``, columns of norm 1.
        activation: ``linear``, ``tanh`` or ``relu``; a non-linear one is linearised at ``slope``.
        scale: dA/dW for the stored W, e.g. the leak α of ``A = (1-α) I + α W``.
        bias: (n,) what is added inside a non-linear activation, all tensors together; None where
            it is not known.
        heads: how many blocks there are like this one whose outputs add up.
        tensor_largest: the largest |ω| of the whole tensor, where that is not in W.
        slope: of the activation, which ``matrix`` is multiplied with.
    """

    matrix: Floats
    tensor: str
    dtype: str
    eigenvectors: Complexes
    activation: str
    scale: float = 1.0
    bias: Floats | None = None
    heads: int = 1
    tensor_largest: float | None = None
    slope: float = 1.0


@dataclass(frozen=True)
class HiddenSpectra:
    """The spectra of a gated layer's hidden weights.

    Attributes:
        gates: (H,) complex eigenvalues of the hidden matrix of each gate and candidate.
        jacobian: (order,) complex eigenvalues of the Jacobian of one step of the whole state, at
            zero input and zero state; None where it is left out.
        reason: why something is missing, or None.
        network: all weights and biases of a GRU or an LSTM whose gates are logistic sigmoids, with
            no projection and no peephole; None for other layers.
    """

    gates: Mapping[str, Complexes]
    jacobian: Complexes | None
    reason: str | None = None
    network: GatedNetwork | None = None


@dataclass(frozen=True)
class RankOneCorrection:
    """An input-dependent rank-one term that is added to or multiplied with diag(λ).

    It vanishes at zero input, where diag(λ) is the whole transition. With an input, one eigenvalue
    per head comes down; the others stay between the smallest and the largest λ of their head then.

    Attributes:
        term: the term, with the range of what stands in it.
        lowest: how far down the one eigenvalue can come, whatever the input.
        count: how many such terms a step multiplies, each of norm 1 at most. Of several, as many
            eigenvalues leave the λ of their head, to anywhere in the unit disk.
    """

    term: str
    lowest: float
    count: int = 1


@dataclass(frozen=True)
class Recurrence:
    """One recurrent layer, nominal: input-dependent gates stand at zero input.

    Attributes:
        name: the layer's name in the checkpoint.
        family: the name of the family that read it.
        tensors: the tensors that it was read from.
        log_eigenvalues: (n,) complex log λ per step; exact for decays down to 1e-300.
        log_gain: (n,) complex log γ; zeros where the layer has no gain of its own.
        parameters: the recurrent parameter groups; empty for a dense layer.
        readin: (n, inputs) complex B, without γ, or None where not in the checkpoint or where it
            depends on the input.
        readout: (outputs, n) complex C, likewise.
        channel: (n,) index of the single-input channel that each eigenvalue belongs to (S4), or
            None where every eigenvalue sees every input. States of two channels never meet in an
            output.
        conjugate_pairs: only one of each conjugate pair is stored and ``y = 2 Re[C h]``;
            otherwise ``y = Re[C h]``.
        multiplicity: how many identical states each eigenvalue drives (Mamba-2: head × state).
        input_dependent: λ or γ depends on the input; the numbers are those at zero input.
        stable_by_construction: no value of the parameters gives |λ| ≥ 1, or |λ| > 1 in a layer
            that is ``unitary``.
        unitary: |λ| = 1 for every eigenvalue, by design: nothing decays by itself.
        assumptions: what the checkpoint does not say and was assumed, one sentence each.
        dense: the dense matrix, or None for a diagonal layer.
        hidden_feedback: a gate or the candidate also sees the hidden state through a dense
            matrix, so that the state has memory that is not in λ.
        hidden: the spectra of these matrices, where they were asked for; a family that cannot give
            them always says why.
        rank_one: the rank-one term of the transition that λ leaves out, or None.
        projections: what the stored parts of B, C and D move; empty where the family does not
            say, and without a Hessian.
        gate: what drives λ and γ beside their biases, or why there are no figures of it, where
            that was asked for; None where the family does not say, or the weights are not in the
            checkpoint.
        activation: of a diagonal layer, taken with slope 1; a dense one has it in ``dense``.
    """

    name: str
    family: str
    tensors: tuple[str, ...]
    log_eigenvalues: Complexes
    log_gain: Complexes
    parameters: tuple[ParameterGroup, ...]
    readin: Complexes | None = None
    readout: Complexes | None = None
    channel: Integers | None = None
    conjugate_pairs: bool = False
    multiplicity: int = 1
    input_dependent: bool = False
    stable_by_construction: bool = False
    assumptions: tuple[str, ...] = field(default=())
    dense: DenseDynamics | None = None
    hidden_feedback: bool = False
    hidden: HiddenSpectra | None = None
    rank_one: RankOneCorrection | None = None
    unitary: bool = False
    projections: tuple[ProjectionGroup, ...] = ()
    gate: Drive | None = None
    activation: str = "linear"

    @cached_property
    def eigenbasis(self) -> Eigenbasis:
        """The eigenbasis of a dense layer: P is inverted once, whoever asks.

        Raises:
            ValueError: the layer is diagonal.
        """
        if self.dense is None:
            raise ValueError("a diagonal layer has no eigenbasis of its own")
        from memcurse_cli.theory.dense.bases import Eigenbasis

        return Eigenbasis(self.log_eigenvalues, self.dense.eigenvectors)

    @property
    def size(self) -> int:
        """The number of eigenvalues n."""
        return self.log_eigenvalues.size
