"""Several layers in one file: stacked along an axis, and under several names."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch
from families.derivatives import read_layer
from families.examples import drawn
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_array_equal
from torch import nn

from memcurse_cli.checkpoints.open import MemoryStore
from memcurse_cli.checkpoints.store import TensorSpec
from memcurse_cli.diagnosis.inspection import inspect
from memcurse_cli.families.detect import detect
from memcurse_cli.families.family import ReadOptions
from memcurse_cli.families.recurrence import Recurrence
from memcurse_cli.families.state_space.diagonal import LRU
from memcurse_cli.families.state_space.s4d import S5

MEMBERS = 3


LAYERS = {"lru": LRU(), "s5": S5()}


def assert_same(first: Recurrence, second: Recurrence) -> None:
    for name in ("log_eigenvalues", "log_gain", "readin", "readout"):
        assert_array_equal(getattr(first, name), getattr(second, name))
    for one, other in zip(first.parameters, second.parameters, strict=True):
        assert_array_equal(one.values, other.values)
        assert_array_equal(one.eigenvalue_derivative, other.eigenvalue_derivative)
    matrices = [[each.matrix for each in layer.projections] for layer in (first, second)]
    assert matrices[0] == matrices[1]


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("separator", [".", "/"])
def test_two_agents_are_two_layers(name: str, separator: str) -> None:
    family = LAYERS[name]
    agents = {
        agent: drawn(name, seed)
        for seed, agent in enumerate(("actor", "critic", f"target{separator}critic"))
    }
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
    family = LAYERS[name]
    singles = [drawn(name, seed) for seed in range(members)]
    arrays = {f"seq.{role}": np.stack([each[role] for each in singles]) for role in singles[0]}
    found = detect(MemoryStore(arrays).tensors)
    assert [(each.name, match.layer) for each, match in found] == [
        (name, f"seq[{index}]") for index in range(members)
    ]
    for index, single in enumerate(singles):
        assert_same(read_layer(arrays, family, index), read_layer(single, family))


@pytest.mark.parametrize("role", ["B_re", "nu_log"])
def test_what_is_not_stacked_throughout_is_one_layer(role: str) -> None:
    arrays = {name: np.stack([values] * 2) for name, values in drawn("lru").items()}
    arrays[role] = arrays[role][0]
    (found,) = detect(MemoryStore(arrays).tensors)
    assert found[1].layer == "lru"


def test_a_header_of_a_million_members_is_not_believed() -> None:
    tensors = {
        role: TensorSpec((10**6, *values.shape), "float32", 0)
        for role, values in drawn("lru").items()
    }
    assert len(LRU().find(tensors)) == 1


def found_in(modules: dict[str, str], *more: str) -> dict[str, tuple[str, ...]]:
    """The layers of GRUs, each with the tensors of the module that it names, and their ties."""
    specs = {"weight_hh_l0": (9, 3), "weight_ih_l0": (9, 2), "bias_ih_l0": (9,), "bias_hh_l0": (9,)}
    tensors = {
        f"{module}.{name}": TensorSpec(shape, "float32", 4)
        for module in modules
        for name, shape in specs.items()
    }
    tensors |= {name: TensorSpec((3, 3), "float32", 36) for name in more}
    aliases = {
        f"{module}.{name}": f"{holder}.{name}"
        for module, holder in modules.items()
        for name in specs
        if module != holder
    }
    found = detect(tensors, aliases=aliases)
    return {match.layer: match.tied for _, match in found}


def test_a_module_with_a_tensor_of_its_own_is_a_layer_of_its_own() -> None:
    modules = {"a": "a", "b": "a"}
    assert found_in(modules, "head.weight", "a.out.weight") == {"a.l0": ("b.l0",)}
    assert found_in(modules, "b.out.weight") == {"a.l0": (), "b.l0": ()}
    # Another layer in the same module has its own tensors, and is no part of this one.
    assert found_in(modules, "b.weight_hh_l1") == {"a.l0": ("b.l0",), "b.l1": ()}


@given(st.lists(st.integers(0, 4), min_size=1, max_size=8))
def test_ties_are_the_classes_of_their_holders(holders: list[int]) -> None:
    first: dict[int, str] = {}
    modules = {f"m{index}": first.setdefault(h, f"m{index}") for index, h in enumerate(holders)}
    found = found_in(modules)
    assert list(found) == [f"{name}.l0" for name in first.values()]
    for layer, tied in found.items():
        holder = layer.removesuffix(".l0")
        others = [m for m, held in modules.items() if held == holder and m != holder]
        assert tied == tuple(f"{module}.l0" for module in others)


def test_heads_of_one_module_are_not_taken_for_one_another() -> None:
    # Several layers are read from the same tensors, by their index.
    names = ("nu_log", "theta_log", "gamma_log")
    tensors = {f"{m}.{n}": TensorSpec((2, 4), "float32", 32) for m in "ab" for n in names}
    aliases = {f"b.{name}": f"a.{name}" for name in names}
    apart = [match.layer for _, match in detect(tensors)]
    assert len(apart) == 4
    tied = {match.layer: match.tied for _, match in detect(tensors, aliases=aliases)}
    assert tied == {"a[0]": ("b[0]",), "a[1]": ("b[1]",)}


class Policy(nn.Module):
    """A core that actor and critic share, as a feature extractor that is registered thrice."""

    def __init__(self) -> None:
        super().__init__()
        self.core = nn.Sequential(nn.GRU(3, 4))
        self.pi_core = self.vf_core = self.core
        self.actor, self.critic = nn.Linear(4, 2), nn.Linear(4, 1)


def saved(tmp_path: Path, kind: str, model: nn.Module) -> Path:
    path = tmp_path / f"model.{kind}"
    if kind == "pt":
        torch.save(model.state_dict(), path)
    else:
        safetensors.torch.save_model(model, str(path))
    return path


@pytest.mark.parametrize("kind", ["pt", "safetensors"])
def test_the_report_has_a_shared_core_once_and_says_so(tmp_path: Path, kind: str) -> None:
    path = saved(tmp_path, kind, Policy())
    report = inspect(path)
    assert len(report.layers) == 1
    assert report.layers[0].name == "core.0.l0"
    assert report.checkpoint.notes[-1] == (
        "pi_core.0.l0, vf_core.0.l0 have the same tensors as core.0.l0: reported once"
    )
    assert report.checkpoint.tensors == 8
    assert inspect(path, layers=["vf_core*"]).layers == report.layers


def test_attention_that_layers_share_is_counted_once(tmp_path: Path) -> None:
    attention = nn.ModuleDict({part: nn.Linear(4, 4) for part in ("q_proj", "k_proj", "v_proj")})
    own = nn.ModuleDict(attention)
    own["q_proj"] = nn.Linear(4, 4)
    model = nn.ModuleDict({"rnn": nn.RNN(4, 4), "one": attention, "two": attention, "own": own})
    for kind in ("pt", "safetensors"):
        (others,) = inspect(saved(tmp_path, kind, model)).not_recurrent
        assert set(others.names) == {"one", "own"}


def test_adams_steps_on_a_weight_under_its_second_name(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = nn.ModuleDict({"a": nn.RNN(3, 4), "b": nn.RNN(3, 4)})
    model["b"].weight_hh_l0 = model["a"].weight_hh_l0
    optimiser = torch.optim.Adam(model.parameters())
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter)
    optimiser.step()
    content = {"model": model.state_dict(), "optimizer": optimiser.state_dict()}
    torch.save(content, tmp_path / "train.pt")
    report = inspect(tmp_path / "train.pt")
    first, second = (layer.adam[0] for layer in report.layers)
    assert (first.tensor, second.tensor) == ("a.weight_hh_l0", "b.weight_hh_l0")
    assert second.effective_step == first.effective_step
    assert report.optimizer.weights == 7
