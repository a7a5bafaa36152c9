"""What holds for every family: bad values and shapes are refused, or nothing is made of them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from families.test_neighbours import BY_NAME, assert_marked, small
from numpy.typing import NDArray

from memcurse_cli.checkpoints.memory import MemoryStore
from memcurse_cli.checkpoints.open import open_checkpoint
from memcurse_cli.errors import MemcurseError, NoRecurrenceError, TensorError
from memcurse_cli.families.detect import detect
from memcurse_cli.families.family import ReadOptions
from memcurse_cli.families.layers import read_layer
from memcurse_cli.families.recurrence import Recurrence
from memcurse_cli.families.registry import all_families

NAMES = [family.name for family in all_families()]


def read(arrays: Mapping[str, NDArray], family: str) -> Recurrence | MemcurseError:
    """The first layer of a family, or why it cannot be read."""
    store = MemoryStore(arrays)
    try:
        reader, match = detect(store.tensors, family if family in BY_NAME else None)[0]
        return read_layer(reader, store, match, ReadOptions())
    except (TensorError, NoRecurrenceError) as error:
        return error


@pytest.mark.parametrize("family", NAMES)
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_value_that_is_not_finite_is_named(family: str, bad: float) -> None:
    arrays = small(family)
    for name, values in arrays.items():
        found = read(arrays | {name: np.full_like(values, bad)}, family)
        if isinstance(found, TensorError):
            assert name in str(found)
            assert ("NaN" if np.isnan(bad) else "inf") in str(found)
            continue
        # What drives the gates alone, or only tells by its shape, is not read.
        assert isinstance(found, Recurrence)
        figures = [found.log_eigenvalues, found.log_gain, found.readin, found.readout]
        figures += [group.values for group in found.parameters]
        assert all(np.isfinite(each).all() for each in figures if each is not None), name


@pytest.mark.parametrize("family", NAMES)
def test_a_tensor_of_another_shape_is_refused_or_read(family: str) -> None:
    arrays = small(family)
    for name, values in arrays.items():
        longer, wider = (np.repeat(values, 2, axis=axis) for axis in (0, -1))
        for other in (longer, wider, values[None], values[:0], values.ravel()[0]):
            found = read(arrays | {name: other}, family)
            if isinstance(found, TensorError):
                assert any(each in str(found) for each in arrays), str(found)


@pytest.mark.parametrize("family", NAMES)
def test_the_names_of_a_layer_have_the_marks_of_its_family(family: str) -> None:
    assert_marked(MemoryStore(small(family)).tensors)


def test_the_marks_of_the_original_layers(paper: Path) -> None:
    for path in sorted(paper.rglob("*.npz")):
        with open_checkpoint(path) as store:
            assert_marked(store.tensors)
