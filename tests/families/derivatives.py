"""Check the derivatives that a family states against its own reading of perturbed tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.testing import assert_allclose
from numpy.typing import NDArray

from memcurse_cli.checkpoints.open import MemoryStore
from memcurse_cli.families.detect import detect
from memcurse_cli.families.detect import read_layer as read_noted
from memcurse_cli.families.family import Family, Match, ReadOptions
from memcurse_cli.families.recurrence import ParameterGroup, Recurrence

# Sixth-order central differences: the error is O(step⁶) and O(1e-16/step).
STEP = 1e-2
STENCIL = {-3: -1 / 60, -2: 3 / 20, -1: -3 / 4, 1: 3 / 4, 2: -3 / 20, 3: 1 / 60}


def read_layer(
    arrays: Mapping[str, NDArray],
    family: Family,
    layer: int = 0,
    *,
    config: Mapping[str, Any] | None = None,
    **assume: str,
) -> Recurrence:
    store = MemoryStore(arrays)
    store.config = config or {}
    return family.read(store, family.find(store.tensors)[layer], ReadOptions(assume=assume))


def read_found(arrays: Mapping[str, NDArray], **asked: Any) -> Recurrence:
    """The one layer that all families together find."""
    store = MemoryStore(arrays)
    ((family, match),) = detect(store.tensors)
    return read_noted(family, store, match, ReadOptions(**asked))


def check_derivatives(
    arrays: Mapping[str, NDArray],
    family: Family,
    *,
    elements: Mapping[str, slice | NDArray] | None = None,
    imaginary: tuple[str, ...] = (),
    tolerance: float = 1e-9,
    layer: int = 0,
    **assume: str,
) -> None:
    """Compare dλ/dω and d log γ/dω of every group with differences of `Family.read`.

    Every scalar of every group is moved alone, in double precision; the eigenvalues and gains that
    its entries do not name must not move at all. ``elements`` has, by the name of a group, which
    elements of the raveled tensor its scalars are, where they are not all of them in order (the
    values tell if no two are the same); ``imaginary`` the groups that are the imaginary part of a
    complex tensor; ``tolerance`` is relative to the largest derivative of a group.
    """
    arrays = {name: _double(array) for name, array in arrays.items()}
    recurrence = read_layer(arrays, family, layer, **assume)
    assert recurrence.parameters
    for group in recurrence.parameters:
        stored = arrays[group.tensor].ravel()
        flat = np.arange(stored.size)
        if group.name in (elements or {}):
            flat = flat[(elements or {})[group.name]]
        elif group.size != stored.size and np.unique(stored).size == stored.size:
            order = np.argsort(stored)  # drawn values differ, so that each tells its place
            flat = order[np.searchsorted(stored, group.values, sorter=order) % stored.size]
        assert flat.size == group.size
        stored = stored[flat]
        part = stored.imag if group.name in imaginary else stored.real
        assert_allclose(group.values, part, rtol=0, atol=0)
        unit = 1j if group.name in imaginary else 1.0

        def moved(element: int, steps: int, name: str = group.tensor, unit: complex = unit) -> Any:
            tensor = arrays[name].copy()
            tensor.reshape(-1)[element] += steps * STEP * unit
            return read_layer({**arrays, name: tensor}, family, layer, **assume)

        _check_group(recurrence, group, flat, moved, tolerance)


def _check_group(
    recurrence: Recurrence,
    group: ParameterGroup,
    flat: NDArray,
    moved: Callable[[int, int], Recurrence],
    tolerance: float,
) -> None:
    stated_eigenvalue = np.zeros((group.size, recurrence.size), dtype=np.complex128)
    stated_gain = np.zeros_like(stated_eigenvalue)
    # A scalar may move one eigenvalue in several entries: they add.
    np.add.at(stated_eigenvalue, (group.scalar, group.eigenvalue), group.eigenvalue_derivative)
    if group.log_gain_derivative is not None:
        np.add.at(stated_gain, (group.scalar, group.eigenvalue), group.log_gain_derivative)
    measured_eigenvalue, measured_gain = np.zeros((2, *stated_gain.shape), stated_gain.dtype)
    for scalar, element in enumerate(flat):
        for offset, weight in STENCIL.items():
            other = moved(element, offset)
            measured_eigenvalue[scalar] += weight / STEP * np.exp(other.log_eigenvalues)
            # The difference of logarithms, so that a jump of the angle by 2π does not count.
            measured_gain[scalar] += weight / STEP * _unwrapped(other.log_gain, recurrence.log_gain)
    compared = ((stated_eigenvalue, measured_eigenvalue), (stated_gain, measured_gain))
    for stated, measured in compared:
        scale = max(float(np.abs(measured).max()), 1e-3)
        assert_allclose(stated, measured, rtol=0, atol=tolerance * scale, err_msg=group.name)


def _unwrapped(log_gain: NDArray, reference: NDArray) -> NDArray:
    turn = (log_gain - reference).imag
    return log_gain - reference - 2j * np.pi * np.round(turn / (2 * np.pi))


def _double(array: NDArray) -> NDArray:
    return np.array(array, np.complex128 if np.iscomplexobj(array) else np.float64)


def match_of(arrays: Mapping[str, NDArray], family: Family) -> list[Match]:
    return family.find(MemoryStore(arrays).tensors)
