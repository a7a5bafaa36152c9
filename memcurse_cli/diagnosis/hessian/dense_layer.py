"""From one dense layer to the report on its Hessian over the entries of its matrix."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from memcurse_cli.diagnosis.hessian.layer import (
    EXPLODES,
    LEAST_WEIGHT,
    SEATS,
    diagnose_hessian,
    seat,
    summarise,
    summarise_spectrum,
)
from memcurse_cli.diagnosis.hessian.picture import picture, picture_of_some
from memcurse_cli.diagnosis.hessian.scores import dense_hessian_reason, dense_layer_hessian
from memcurse_cli.diagnosis.settings import Settings
from memcurse_cli.families.recurrence import DenseDynamics, Recurrence
from memcurse_cli.schema.hessian import (
    BlockPair,
    Conditioning,
    HessianGroup,
    HessianPicture,
    HessianSpectrum,
    LayerHessianReport,
    Seat,
    TopEigenvector,
)
from memcurse_cli.schema.report import finite
from memcurse_cli.theory.dense.eigenbasis import Eigenbasis
from memcurse_cli.theory.dense.hessian import DenseHessian, dense_hessian_scores
from memcurse_cli.theory.dense.sensitivity import EIGENBASIS_CONDITION
from memcurse_cli.theory.hessian.diagonality import DiagonalityScores, DiagonalityTally, Eigenpair

Floats = NDArray[np.float64]

_LEFT_OUT = "B, C and D: it is over the entries of the matrix"
_OF_HEADS = (
    ", and what it shares with those of the other heads, whose outputs add to this one's: over all"
    " heads it is less diagonal than said"
)
FLAT = 1e-12  # a plane of less is a line
WHOLE_ORDER = 1024  # entries of A up to which H is formed
DRAWN_SIDE, FEWEST_DRAWN = 16, 8
"""Rows and columns of A whose entries are drawn: a product with H for each pair."""
DRAWN_CHEAPLY = 256
"""Units up to which that takes no longer than the figures."""


def layer_hessian_report(recurrence: Recurrence, settings: Settings) -> LayerHessianReport:
    """Every figure of a layer's Hessian, dense or not, or the reason why there are none."""
    if recurrence.dense is None:
        return diagnose_hessian(recurrence, settings)
    return diagnose_dense_hessian(recurrence, recurrence.dense, settings)


def diagnose_dense_hessian(
    recurrence: Recurrence, dynamics: DenseDynamics, settings: Settings
) -> LayerHessianReport:
    """Every figure of a dense layer's Hessian, or the reason why there are none.

    It is over the entries of the stored matrix. Up to 32 units H is formed; beyond them its
    largest eigenvalues come from products with it.
    """
    name, family, size = recurrence.name, recurrence.family, recurrence.size
    reason = dense_hessian_reason(recurrence, settings)
    if reason is not None:
        return LayerHessianReport(name, family, size, reason)
    try:
        hessian = dense_layer_hessian(recurrence, dynamics, settings)
        found = _whole(hessian) if hessian.order <= WHOLE_ORDER else _by_products(hessian)
    except OverflowError:
        return LayerHessianReport(name, family, size, EXPLODES)
    except ArithmeticError as error:
        return LayerHessianReport(name, family, size, str(error))
    if found is None:
        reason = "it is zero: no entry of the matrix changes the output"
        return LayerHessianReport(name, family, size, reason)
    matrix = dynamics.tensor.rpartition(".")[2]
    summary = summarise(found.scores)
    seats = _Seats(recurrence.log_eigenvalues, recurrence.eigenbasis)
    return LayerHessianReport(
        name=name,
        family=family,
        eigenvalues=size,
        left_out=_LEFT_OUT if dynamics.heads == 1 else _LEFT_OUT + _OF_HEADS,
        blocks=1,
        largest_block=hessian.order,
        method="Lanczos" if found.matrix is None else "whole",
        output_second_moment=hessian.output_second_moment,
        scores=summary,
        groups=(HessianGroup(matrix, dynamics.tensor, "recurrent", hessian.order, summary),),
        pairs=(BlockPair(matrix, matrix, 1.0, None),),
        spectrum=found.spectrum,
        eigenvectors=tuple(
            # Of an eigenspace no vector stands out, nor what it would move.
            TopEigenvector(
                pair.value,
                finite(pair.concentration),
                (1.0,),
                seats.of(pair.vector.reshape(size, size)) if pair.dimension == 1 else (),
            )
            for pair in found.top
        ),
        conditioning=found.conditioning,
        picture=_picture(hessian, found, matrix),
    )


@dataclass(frozen=True)
class _Figures:
    """What either way of looking at H comes to."""

    scores: DiagonalityScores
    spectrum: HessianSpectrum
    conditioning: Conditioning | None
    top: list[Eigenpair]
    matrix: Floats | None


def _whole(hessian: DenseHessian) -> _Figures | None:
    """From the matrix itself."""
    matrix = hessian.to_matrix()
    tally = DiagonalityTally(spectra=True)
    tally.add(matrix[None])
    scores = tally.scores()
    if scores is None:
        return None
    return _Figures(scores, *summarise_spectrum(tally, hessian.order), tally.top, matrix)


def _by_products(hessian: DenseHessian) -> _Figures | None:
    found = dense_hessian_scores(hessian)
    if found is None:
        return None
    largest = tuple(pair.value for pair in found.top)
    spectrum = HessianSpectrum(hessian.order, None, None, largest)
    return _Figures(found.scores, spectrum, None, found.top, None)


def _picture(hessian: DenseHessian, found: _Figures, name: str) -> HessianPicture:
    """H itself, or its rows and columns for every entry where some rows and columns of A meet."""
    if found.matrix is not None:
        title = f"{len(found.matrix):,} parameters"
        return picture(title, found.matrix, np.zeros(len(found.matrix), np.intp), [name])
    size = len(hessian.diagonal)
    side = min(DRAWN_SIDE if size <= DRAWN_CHEAPLY else FEWEST_DRAWN, size)
    taken = np.rint(np.linspace(0, size - 1, side)).astype(np.intp)
    grid = np.ix_(taken, taken)
    columns = []
    for row in taken:
        for column in taken:
            change = np.zeros((size, size))
            change[row, column] = 1.0
            columns.append(hessian.apply(change)[grid].ravel())
    matrix = np.array(columns)
    title = (
        f"{len(matrix):,} of {hessian.order:,} parameters, where {side} rows and columns of the"
        " matrix, evenly taken, meet"
    )
    values = np.array([pair.value for pair in found.top])
    vectors = np.array([pair.vector.reshape(size, size)[grid].ravel() for pair in found.top])
    group = np.zeros(len(matrix), np.intp)
    return picture_of_some(title, (matrix + matrix.T) / 2, group, [name], values, vectors)


class _Seats:
    """How much of a change of A lies along the gradient of each eigenvalue.

    ``dλ_k = q_k dA p_k``, so that the real directions that move λ_k are spanned by the real and
    the imaginary part of q_kᵀp_kᵀ; the rest of a change leaves it where it is.
    """

    def __init__(self, log_eigenvalues: NDArray[np.complex128], basis: Eigenbasis) -> None:
        self.log_eigenvalues, self.basis = log_eigenvalues, basis
        self.usable = basis.condition < EIGENBASIS_CONDITION

    def of(self, vector: Floats) -> tuple[Seat, ...]:
        """The eigenvalues that a unit change moves the most for its size, the heaviest first."""
        if not self.usable:
            return ()
        weights = self._weights(vector)
        heaviest = np.argsort(-weights, kind="stable")[:SEATS]
        return tuple(
            seat(self.log_eigenvalues, int(self.basis.half[place]), float(weights[place]))
            for place in heaviest
            if weights[place] >= LEAST_WEIGHT
        )

    def _weights(self, vector: Floats) -> Floats:
        """(h,) the squared norm of the projection onto the plane, or the line, of each λ."""
        rows, columns = self.basis.rows, self.basis.columns
        moved = np.sum((rows @ vector) * columns.T, axis=1)
        # With g = q pᵀ: |g|² is the sum, and g·g the difference, of the parts' squared norms.
        size = np.sum(np.abs(rows) ** 2, axis=1) * np.sum(np.abs(columns) ** 2, axis=0)
        square = np.sum(rows**2, axis=1) * np.sum(columns**2, axis=0)
        plane = size**2 - np.abs(square) ** 2
        pair = plane > FLAT * size**2
        inside = 2 * (np.abs(moved) ** 2 * size - (moved.conj() ** 2 * square).real)
        weights = np.abs(moved) ** 2 / size
        weights[pair] = inside[pair] / plane[pair]
        return np.asarray(weights)
