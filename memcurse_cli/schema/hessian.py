"""The schema `memcurse.hessian/2`: what `memcurse hessian` says, before it is drawn."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from memcurse_cli.schema.figures import HessianPicture, Quantiles, Record
from memcurse_cli.schema.report import CheckpointSummary, InputStatistics, SkippedLayer

Kind = Literal["recurrent", "B", "C", "D"]
Method = Literal["whole", "impulse responses", "partial Cholesky", "Lanczos"]


class HessianScores(Record, frozen=True):
    """How far a Hessian is from diagonal, and what steps it allows."""

    order: Annotated[int, "the number N of scalars."]
    trace: Annotated[float, "tr H."]
    diagonality: Annotated[float, "Σ H_aa² / Σ H_ab², in [1/N, 1]."]
    sharpness: Annotated[float, "the largest eigenvalue, per unit of input variance."]
    max_stable_lr: Annotated[
        float,
        "2 / (sharpness + sharpness_error), the largest step of gradient descent that is known to "
        "be stable.",
    ]
    adam_residual: Annotated[float, "λ_max(D^-½ H D^-½): 1 is diagonal, N is the worst."]
    concentration: Annotated[
        float | None,
        "coordinates that carry a top eigenvector; null where its space is too large to be found.",
    ]
    sharpness_error: Annotated[
        float, "how much larger the sharpness may be; 0 where H was formed."
    ] = 0.0
    adam_residual_error: Annotated[float, "how much larger the residual may be."] = 0.0


class HessianGroup(Record, frozen=True):
    """One stored tensor's part of the Hessian, all other parameters held fixed."""

    name: Annotated[str, "its name in the family."]
    tensor: Annotated[str, "the tensor's name in the checkpoint."]
    kind: Annotated[Kind, "``recurrent`` for parameters of λ and γ, else the matrix it belongs to."]
    size: Annotated[int, "the number of scalars."]
    scores: Annotated[
        HessianScores | None, "of its own diagonal block; None where none of it moves the output."
    ]


class BlockPair(Record, frozen=True):
    """What two groups share of the Hessian."""

    first: Annotated[str, "a group's name."]
    second: Annotated[str, "the same one's, or that of a later one."]
    norm_share: Annotated[
        float, "their elements' part of ‖H‖_F², both triangles of it: the shares sum to 1."
    ]
    mean_correlation: Annotated[
        float | None,
        "the mean |H_ab| / √(H_aa H_bb) over pairs a ≠ b that meet in a block, or None.",
    ]


class EigenvalueWeight(Record, frozen=True):
    """An eigenvalue of the recurrence that an eigenvector of the Hessian sits on."""

    index: Annotated[int, "which one of the layer."]
    modulus: Annotated[float, "|λ|."]
    time_constant: Annotated[float | None, "-1/log|λ| in steps; None from |λ| = 1 on."]
    angle: Annotated[float, "arg λ in radians, in [-π, π]."]
    weight: Annotated[
        float,
        "the share of Σ v² on scalars that move this eigenvalue, or its row of B or column of C, "
        "and no other.",
    ]


class Coordinate(Record, frozen=True):
    """One scalar that an eigenvector of the Hessian has weight on."""

    group: Annotated[str, "the name of its group."]
    index: Annotated[int, "which of the group's scalars."]
    weight: Annotated[float, "v², of a unit vector."]


class TopEigenvector(Record, frozen=True):
    """One of the directions of largest curvature."""

    eigenvalue: Annotated[float, "its curvature."]
    concentration: Annotated[
        float | None,
        "1 / Σ v⁴, the number of coordinates that carry it; d / Σ P_aa² of an eigenspace of d "
        "dimensions and projector P; null where that is not known.",
    ]
    weights: Annotated[tuple[float, ...], "Σ v² on each group, in the groups' order."]
    seats: Annotated[tuple[EigenvalueWeight, ...], "the eigenvalues it sits on, heaviest first."]
    coordinates: Annotated[
        tuple[Coordinate, ...],
        "the scalars that carry it, the heaviest first; empty where they were not taken.",
    ] = ()


class HessianSpectrum(Record, frozen=True):
    """The eigenvalues of the Hessian."""

    count: Annotated[int, "N."]
    rank: Annotated[
        int | None,
        "how many are above rounding once each scalar is scaled by its own curvature; None where "
        "not all were taken.",
    ]
    quantiles: Annotated[Quantiles | None, "None where not all were taken."]
    largest: Annotated[tuple[float, ...], "every eigenvalue, descending, up to 512 of them."]


class Conditioning(Record, frozen=True):
    """The largest eigenvalue over the median of the ``rank`` largest ones.

    About how many steps the median direction takes while the steepest one is just stable.
    """

    before: Annotated[float, "of H, which plain gradient descent sees."]
    after: Annotated[float, "of D^-½ H D^-½, what an ideal diagonal preconditioner leaves to Adam."]


class LayerHessianReport(Record, frozen=True):
    """The Hessian of one layer, or why it has none."""

    UNWRITTEN = ("picture",)

    name: Annotated[str, "the layer."]
    family: Annotated[str, "the family that read it."]
    eigenvalues: Annotated[int, "the number n of its recurrence's eigenvalues."]
    reason: Annotated[str | None, "why there is no Hessian, or None."] = None
    left_out: Annotated[str | None, "what it does not cover and why, or None."] = None
    blocks: Annotated[int, "how many diagonal blocks it falls into; all else is zero."] = 0
    largest_block: Annotated[int, "the order of the largest."] = 0
    method: Annotated[
        Method,
        "``whole`` where the blocks were formed; else how the figures of the largest ones were "
        "found. By ``partial Cholesky`` eigenvalues are lower bounds; the scores say their errors.",
    ] = "whole"
    output_second_moment: Annotated[
        float | None,
        "E|Re[C h]|², outputs summed, per unit of input variance; None by ``partial Cholesky``.",
    ] = None
    scores: Annotated[HessianScores | None, "over all groups."] = None
    groups: Annotated[tuple[HessianGroup, ...], "one by one."] = ()
    pairs: Annotated[
        tuple[BlockPair, ...], "two by two, the largest share first; empty where not taken."
    ] = ()
    spectrum: Annotated[HessianSpectrum | None, "its eigenvalues."] = None
    eigenvectors: Annotated[tuple[TopEigenvector, ...], "the top ones."] = ()
    conditioning: Annotated[
        Conditioning | None,
        "what a diagonal preconditioner makes of it; None where not every eigenvalue was taken.",
    ] = None
    picture: Annotated[
        HessianPicture | None, "the block of the largest eigenvalue, or some of its scalars."
    ] = None


class HessianInput(InputStatistics, frozen=True):
    """What the input and the loss were assumed to be."""

    readout: Annotated[
        Literal["last", "every"],
        "``every`` for a loss that is the mean over the steps, ``last`` for one at step T.",
    ]


class HessianReport(Record, frozen=True):
    """The curvature of the loss over every parameter of a recurrent layer."""

    SCHEMA: ClassVar = "memcurse.hessian/2"

    version: Annotated[str, "of memcurse."]
    checkpoint: Annotated[CheckpointSummary, "the file."]
    input: Annotated[HessianInput, "what the input and the loss were assumed to be."]
    layers: Annotated[tuple[LayerHessianReport, ...], "the recurrent layers, in the file's order."]
    skipped: Annotated[tuple[SkippedLayer, ...], "those that could not be read."] = ()
