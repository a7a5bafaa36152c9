"""Several layers of one family in one file: beside each other, and stacked along an axis."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from families.derivatives import check_derivatives, read_layer
from numpy.testing import assert_allclose
from numpy.typing import NDArray

from memcurse_cli.checkpoints.memory import MemoryStore
from memcurse_cli.checkpoints.store import TensorSpec
from memcurse_cli.families.detect import detect
from memcurse_cli.families.family import Family, ReadOptions
from memcurse_cli.families.recurrence import Recurrence
from memcurse_cli.families.state_space.diagonal import LRU
from memcurse_cli.families.state_space.s5 import S5

N, H, MEMBERS = 4, 3, 3


def lru_layer(seed: int) -> dict[str, NDArray]:
    rng = np.random.default_rng(seed)
    return {
        **{role: rng.normal(size=N) - 1 for role in ("nu_log", "theta_log", "gamma_log")},
        **{role: rng.normal(size=(N, H)) for role in ("B_re", "B_im")},
        **{role: rng.normal(size=(H, N)) for role in ("C_re", "C_im")},
        "D": rng.normal(size=H),
    }


def s5_layer(seed: int) -> dict[str, NDArray]:
    rng = np.random.default_rng(seed)
    return {
        "Lambda_re": -rng.uniform(0.2, 1, N),
        "Lambda_im": rng.normal(size=N),
        "log_step": rng.uniform(-2, -1, (N, 1)),
        "B": rng.normal(size=(N, H, 2)),
        "C": rng.normal(size=(H, N, 2)),
        "D": rng.normal(size=H),
    }


LAYERS = {"lru": (LRU(), lru_layer), "s5": (S5(), s5_layer)}


def assert_same(first: Recurrence, second: Recurrence) -> None:
    assert_allclose(first.log_eigenvalues, second.log_eigenvalues, rtol=0, atol=0)
    assert_allclose(first.log_gain, second.log_gain, rtol=0, atol=0)
    assert_allclose(first.readin, second.readin, rtol=0, atol=0)
    assert_allclose(first.readout, second.readout, rtol=0, atol=0)
    assert [group.size for group in first.parameters] == [group.size for group in second.parameters]
    assert [each.matrix for each in first.projections] == [
        each.matrix for each in second.projections
    ]


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("separator", [".", "/"])
def test_two_agents_are_two_layers(name: str, separator: str) -> None:
    family, layer = LAYERS[name]
    agents = {"actor": layer(1), "critic": layer(2), f"target{separator}critic": layer(3)}
    arrays = {
        separator.join((agent, "core", role)): values
        for agent, each in agents.items()
        for role, values in each.items()
    }
    store = MemoryStore(arrays)
    found = detect(store.tensors)
    assert [match.layer for _, match in found] == [f"{agent}{separator}core" for agent in agents]
    for (reader, match), single in zip(found, agents.values(), strict=True):
        assert reader.name == name
        alone = read_layer(single, family)
        assert_same(reader.read(store, match, ReadOptions()), alone)


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("members", [1, MEMBERS])
def test_an_ensemble_is_as_many_layers(name: str, members: int) -> None:
    family, layer = LAYERS[name]
    singles = [layer(seed) for seed in range(members)]
    arrays = {f"seq.{role}": np.stack([each[role] for each in singles]) for role in singles[0]}
    found = detect(MemoryStore(arrays).tensors)
    assert [(each.name, match.layer) for each, match in found] == [
        (name, f"seq[{index}]") for index in range(members)
    ]
    for index, single in enumerate(singles):
        assert_same(read_layer(arrays, family, index), read_layer(single, family))


@pytest.mark.parametrize(("family", "layer"), LAYERS.values(), ids=LAYERS)
def test_derivatives_of_one_member(
    family: Family, layer: Callable[[int], dict[str, NDArray]]
) -> None:
    singles = [layer(seed) for seed in range(2)]
    arrays = {role: np.stack([each[role] for each in singles]) for role in singles[0]}
    second = dict.fromkeys(
        (group.name for group in read_layer(arrays, family, 1).parameters),
        slice(N, 2 * N),
    )
    check_derivatives(arrays, family, elements=second, layer=1)


@pytest.mark.parametrize("role", ["B_re", "nu_log"])
def test_what_is_not_stacked_throughout_is_one_layer(role: str) -> None:
    arrays = {name: np.stack([values] * 2) for name, values in lru_layer(0).items()}
    arrays[role] = arrays[role][0]
    (found,) = detect(MemoryStore(arrays).tensors)
    assert found[1].layer == "lru"


def test_a_header_of_a_million_members_is_not_believed() -> None:
    tensors = {
        role: TensorSpec((10**6, *values.shape), "float32", 0)
        for role, values in lru_layer(0).items()
    }
    assert len(LRU().find(tensors)) == 1
