"""The schema `memcurse.hessian/1`: what `memcurse hessian` says, before it is drawn.

Every class but the picture turns into the JSON object of the same fields. A number that does not
exist is None here and null there.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Literal

from memcurse_cli.schema.figures import NEVER, Components, HessianPicture, Quantiles
from memcurse_cli.schema.report import CheckpointSummary, SkippedLayer

Kind = Literal["recurrent", "B", "C", "D"]
Method = Literal["whole", "partial Cholesky", "Lanczos"]


@dataclass(frozen=True)
class HessianScores:
    """How far a Hessian is from diagonal, and what steps it allows.

    Attributes:
        order: the number N of scalars.
        trace: tr H.
        diagonality: Σ H_aa² / Σ H_ab², in [1/N, 1].
        sharpness: the largest eigenvalue, per unit of input variance.
        max_stable_lr: 2 / (sharpness + sharpness_error), the largest step of gradient descent that
            is known to be stable.
        adam_residual: λ_max(D^-½ H D^-½): 1 is diagonal, N is the worst.
        concentration: coordinates that carry a top eigenvector; null where an eigenspace is too
            large to be found whole.
        sharpness_error: how much larger the sharpness may be; 0 where H was formed.
        adam_residual_error: how much larger the residual may be.
    """

    order: int
    trace: float
    diagonality: float
    sharpness: float
    max_stable_lr: float
    adam_residual: float
    concentration: float | None
    sharpness_error: float = 0.0
    adam_residual_error: float = 0.0


@dataclass(frozen=True)
class HessianGroup:
    """One stored tensor's part of the Hessian, all other parameters held fixed.

    Attributes:
        name: its name in the family.
        tensor: the tensor's name in the checkpoint.
        kind: ``recurrent`` for parameters of λ and γ, else the matrix it belongs to.
        size: the number of scalars.
        scores: those of its own diagonal block; None where no scalar of it moves the output.
    """

    name: str
    tensor: str
    kind: Kind
    size: int
    scores: HessianScores | None


@dataclass(frozen=True)
class BlockPair:
    """What two groups share of the Hessian.

    Attributes:
        first: a group's name.
        second: the same one's, or that of a later one.
        norm_share: their elements' part of ‖H‖_F², both triangles of it: the shares sum to 1.
        mean_correlation: the mean |H_ab| / √(H_aa H_bb) over pairs a ≠ b that meet in a block;
            None where there are none.
    """

    first: str
    second: str
    norm_share: float
    mean_correlation: float | None


@dataclass(frozen=True)
class Seat:
    """An eigenvalue of the recurrence that an eigenvector of the Hessian sits on.

    Attributes:
        index: which one of the layer.
        modulus: |λ|.
        time_constant: -1/log|λ| in steps; None from |λ| = 1 on.
        angle: arg λ in radians, in [-π, π].
        weight: the share of Σ v² on scalars that move this eigenvalue, or its row of B or column
            of C, and no other.
    """

    index: int
    modulus: float
    time_constant: float | None
    angle: float
    weight: float


@dataclass(frozen=True)
class Coordinate:
    """One scalar that an eigenvector of the Hessian has weight on.

    Attributes:
        group: the name of its group.
        index: which of the group's scalars.
        weight: v², of a unit vector.
    """

    group: str
    index: int
    weight: float


@dataclass(frozen=True)
class TopEigenvector:
    """One of the directions of largest curvature.

    Attributes:
        eigenvalue: its curvature.
        concentration: 1 / Σ v⁴, the number of coordinates that carry it; d / Σ P_aa² of an
            eigenspace of d dimensions and projector P; null where that is not known.
        weights: Σ v² on each group, in the groups' order.
        seats: the eigenvalues that it sits on, the heaviest first.
        coordinates: the scalars that carry it, the heaviest first; empty where they were not
            taken.
    """

    eigenvalue: float
    concentration: float | None
    weights: tuple[float, ...]
    seats: tuple[Seat, ...]
    coordinates: tuple[Coordinate, ...] = ()


@dataclass(frozen=True)
class HessianSpectrum:
    """The eigenvalues of the Hessian.

    Attributes:
        count: N.
        rank: how many are above rounding once each scalar is scaled by its own curvature; None
            where not all were taken.
        quantiles: None where not all were taken.
        largest: every eigenvalue, descending, up to 512 of them.
    """

    count: int
    rank: int | None
    quantiles: Quantiles | None
    largest: tuple[float, ...]


@dataclass(frozen=True)
class Conditioning:
    """The largest eigenvalue over the median of the ``rank`` largest ones.

    About how many steps the median direction takes while the steepest one is just stable.

    Attributes:
        before: of H, which plain gradient descent sees.
        after: of D^-½ H D^-½, which an ideal diagonal preconditioner leaves to Adam.
    """

    before: float
    after: float


@dataclass(frozen=True)
class LayerHessianReport:
    """The Hessian of one layer, or why it has none.

    Attributes:
        name: the layer.
        family: the family that read it.
        eigenvalues: the number n of its recurrence's eigenvalues.
        reason: why there is no Hessian, or None.
        left_out: what it does not cover and why, or None.
        blocks: how many diagonal blocks it falls into; everything outside them is zero.
        largest_block: the order of the largest.
        method: ``whole`` where the blocks were formed; else how the figures of the largest ones
            were found, whose eigenvalues are lower bounds with the errors that the scores say.
        output_second_moment: E|Re[C h]|², all outputs summed, per unit of input variance; None
            where a block was not formed.
        scores: over all groups.
        groups: one by one.
        pairs: two by two, the largest share first; empty where they were not taken.
        spectrum: its eigenvalues.
        eigenvectors: the top ones.
        conditioning: what a diagonal preconditioner makes of it; None where not every eigenvalue
            was taken.
        picture: the block of the largest eigenvalue, or some of its scalars.
    """

    name: str
    family: str
    eigenvalues: int
    reason: str | None = None
    left_out: str | None = None
    blocks: int = 0
    largest_block: int = 0
    method: Method = "whole"
    output_second_moment: float | None = None
    scores: HessianScores | None = None
    groups: tuple[HessianGroup, ...] = ()
    pairs: tuple[BlockPair, ...] = ()
    spectrum: HessianSpectrum | None = None
    eigenvectors: tuple[TopEigenvector, ...] = ()
    conditioning: Conditioning | None = None
    picture: HessianPicture | None = field(default=None, compare=False, repr=False, metadata=NEVER)


@dataclass(frozen=True)
class HessianInput:
    """What the input and the loss were assumed to be.

    Attributes:
        autocorrelation: (weight, ρ) of each part of each input's R(Δ) = Σ weight ρ^|Δ| cos(ωΔ),
            and (weight, ρ, ω) of a part with a frequency.
        horizon: the number of steps T, or None for an infinite sequence.
        horizon_source: ``option``, ``checkpoint`` or None.
        readout: ``every`` for a loss that is the mean over the steps, ``last`` for one at step T.
    """

    autocorrelation: Components
    horizon: int | None
    horizon_source: str | None
    readout: Literal["last", "every"]


@dataclass(frozen=True)
class HessianReport:
    """The Hessians of a checkpoint's layers.

    Attributes:
        version: of memcurse.
        checkpoint: the file.
        input: what the input and the loss were assumed to be.
        layers: the recurrent layers, in the checkpoint's order.
        skipped: those that could not be read.
    """

    SCHEMA: ClassVar = "memcurse.hessian/1"

    version: str
    checkpoint: CheckpointSummary
    input: HessianInput
    layers: tuple[LayerHessianReport, ...]
    skipped: tuple[SkippedLayer, ...] = ()
