"""What a family says of B, C and D against its own reading of moved tensors."""

from __future__ import annotations

import numpy as np
import pytest
from families.derivatives import read_layer
from families.examples import drawn
from families.test_oscillators import layer_of
from families.test_s4d import minimal, version_3, version_4
from numpy.typing import NDArray

from memcurse_cli.families.family import Family
from memcurse_cli.families.recurrence import ProjectionGroup, Recurrence
from memcurse_cli.families.state_space.diagonal import LRU, ComplexDiagonalRNN
from memcurse_cli.families.state_space.oscillators import LinOSS
from memcurse_cli.families.state_space.s4d import S4D, S5

RNG = np.random.default_rng(0)
SIZE, INPUTS = 4, 3


def normal(*shape: int) -> NDArray:
    return RNG.normal(size=shape)


LAYERS: list[tuple[str, Family, dict[str, NDArray]]] = [
    ("two-tensors", LRU(), drawn("lru")),
    (
        "complex-and-transposed",
        ComplexDiagonalRNN(),
        {
            "lambda": 0.5 * np.exp(1j * normal(SIZE)),
            "B": normal(INPUTS, SIZE) + 1j * normal(INPUTS, SIZE),
            "C": normal(SIZE) + 1j * normal(SIZE),
        },
    ),
    (
        "real",
        LRU(),
        {name: drawn("lru")[name] for name in ("nu_log", "theta_log", "gamma_log")}
        | {"B": normal(SIZE, INPUTS), "C": normal(INPUTS, SIZE)},
    ),
    ("s5", S5(), drawn("s5")),
    ("s4d-minimal", S4D(), {**minimal(), "D": normal(3)}),
    ("s4d-3", S4D(), {**version_3(), "D": normal(2, 3)}),
    ("s4d-4", S4D(), version_4()),
    ("s4d-4-shared", S4D(), version_4(1)),
    ("s4d-4-real", S4D(), version_4(real=True)),
    ("linoss", LinOSS(), layer_of()),
]


def declared(group: ProjectionGroup, shape: tuple[int, ...]) -> list[NDArray]:
    """The change of the matrix by each scalar."""
    changes = np.zeros((group.size, *shape), np.complex128)
    np.add.at(changes, (group.scalar, group.row, group.column), group.derivative)
    return list(changes)


def seen(arrays: dict[str, NDArray], family: Family, tensor: str, matrix: str) -> list[NDArray]:
    """The change of the matrix by each stored real number of a tensor."""
    changes = []
    for unit in (1, 1j) if np.iscomplexobj(arrays[tensor]) else (1,):
        for index in np.ndindex(arrays[tensor].shape):
            ends = []
            for step in (-0.5, 0.5):
                moved = {**arrays, tensor: arrays[tensor].copy()}
                moved[tensor][index] += step * unit
                ends.append(matrix_of(read_layer(moved, family), matrix))
            changes.append(ends[1] - ends[0])
    return changes


def matrix_of(recurrence: Recurrence, matrix: str) -> NDArray:
    return recurrence.readin if matrix == "B" else recurrence.readout


@pytest.mark.parametrize(
    ("family", "arrays"), [layer[1:] for layer in LAYERS], ids=[layer[0] for layer in LAYERS]
)
def test_every_stored_number_is_a_scalar(family: Family, arrays: dict[str, NDArray]) -> None:
    recurrence = read_layer(arrays, family)
    groups = [group for group in recurrence.projections if group.matrix != "D"]
    tensors = {group.tensor: group.matrix for group in groups}
    assert set(tensors) == {
        name for name in arrays if name.rpartition(".")[2].partition("_")[0] in ("B", "C")
    }
    for tensor, matrix in tensors.items():
        shape = matrix_of(recurrence, matrix).shape
        own = [group for group in groups if group.tensor == tensor]
        wanted = np.array(seen(arrays, family, tensor, matrix)).reshape(-1, np.prod(shape))
        found = np.array([change for group in own for change in declared(group, shape)])
        found = found.reshape(wanted.shape)
        nearest = np.abs(wanted[:, None] - found[None]).max(axis=2) < 1e-12
        assert np.array_equal(nearest.sum(axis=0), np.ones(len(found)))
        assert np.array_equal(nearest.sum(axis=1), np.ones(len(found)))
