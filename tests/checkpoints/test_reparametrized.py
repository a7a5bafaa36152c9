"""Weights that are stored as parts, against what torch's own module multiplies with."""

from __future__ import annotations

import copy
from collections.abc import Callable

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from torch.nn.utils import parametrizations, parametrize, prune

from memcurse_cli.checkpoints.memory import MemoryStore
from memcurse_cli.checkpoints.optimizer.state import adam_state
from memcurse_cli.errors import CheckpointError

H, INPUTS = 5, 3
NAME = "weight_hh_l0"
KINDS = [torch.nn.RNN, torch.nn.GRU, torch.nn.LSTM]


def old(
    function: Callable[..., object], **options: int | None
) -> Callable[[torch.nn.Module], None]:
    """One of the normalisations that work by a hook before the forward pass."""

    def apply(module: torch.nn.Module) -> None:
        with pytest.warns(FutureWarning):
            function(module, NAME, **options)

    return apply


WAYS: dict[str, Callable[[torch.nn.Module], object]] = {
    "weight_norm": lambda module: parametrizations.weight_norm(module, NAME),
    "weight_norm by column": lambda module: parametrizations.weight_norm(module, NAME, dim=1),
    "weight_norm as a whole": lambda module: parametrizations.weight_norm(module, NAME, dim=None),
    "old weight_norm": old(torch.nn.utils.weight_norm),
    "old weight_norm by column": old(torch.nn.utils.weight_norm, dim=1),
    "old weight_norm as a whole": old(torch.nn.utils.weight_norm, dim=None),
    "spectral_norm": lambda module: parametrizations.spectral_norm(module, NAME),
    "spectral_norm by column": lambda module: parametrizations.spectral_norm(module, NAME, dim=1),
    "old spectral_norm": lambda module: torch.nn.utils.spectral_norm(module, NAME),
    "pruning": lambda module: prune.random_unstructured(module, NAME, amount=0.4),
}


def moved(module: torch.nn.Module) -> torch.nn.Module:
    """The module with every stored parameter moved, as training would."""
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(0.1 * torch.rand_like(parameter))
    return module.eval()


def arrays_of(module: torch.nn.Module) -> dict[str, np.ndarray]:
    return {f"net.{name}": tensor.numpy() for name, tensor in module.state_dict().items()}


def weight_of(module: torch.nn.Module) -> np.ndarray:
    """The hidden weight as the module uses it once it has run."""
    module(torch.zeros(1, INPUTS, dtype=torch.float64))
    return np.asarray(module.weight_hh_l0.detach())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("way", WAYS)
def test_the_weight_is_what_torch_makes_of_its_parts(
    kind: type[torch.nn.RNNBase], way: str
) -> None:
    module = kind(INPUTS, H, dtype=torch.float64)
    WAYS[way](module)
    moved(module)
    store = MemoryStore(arrays_of(module))
    plain = [f"net.{name}" for name in kind(INPUTS, H).state_dict()]
    assert sorted(store.tensors) == sorted(plain)
    name = f"net.{NAME}"
    assert store.tensors[name].shape == (*module.weight_ih_l0.shape[:1], H)
    assert_allclose(store.read(name), weight_of(module), rtol=1e-13)
    (note,) = store.notes
    assert name in note
    assert "sensitivities are those of the weight itself" in note


@pytest.mark.parametrize("shape", [(4 * H, H), (H, 4 * H), (H, H)])
@pytest.mark.parametrize("trivial", [True, False])
def test_reflections_are_torch_s(shape: tuple[int, int], trivial: bool) -> None:
    torch.manual_seed(0)
    module = torch.nn.Module()
    module.weight = torch.nn.Parameter(torch.linalg.qr(torch.randn(*shape).double())[0])
    if shape[0] < shape[1]:
        module.weight = torch.nn.Parameter(torch.randn(*shape).double())
        torch.nn.init.orthogonal_(module.weight)
    parametrizations.orthogonal(module, "weight", "householder", use_trivialization=trivial)
    with torch.no_grad():
        original = module.parametrizations.weight.original
        original.add_(0.2 * torch.randn(*shape).double().tril(-1))
    store = MemoryStore(arrays_of(module))
    if trivial and shape[0] == shape[1]:  # the orthogonal RNN's own
        assert "net.weight" not in store.tensors
        return
    assert_allclose(store.read("net.weight"), module.weight.detach().numpy(), atol=1e-14)


def test_a_parametrisation_without_a_name_is_refused_when_it_is_read() -> None:
    class Halved(torch.nn.Module):
        def forward(self, weight: torch.Tensor) -> torch.Tensor:
            return weight / 2

    module = torch.nn.LSTM(INPUTS, H)
    parametrize.register_parametrization(module, NAME, Halved())
    store = MemoryStore(arrays_of(module))
    assert store.tensors[f"net.{NAME}"].shape == (4 * H, H)
    with pytest.raises(CheckpointError, match="remove_parametrizations"):
        store.read(f"net.{NAME}")


def test_a_pruned_bias_and_one_that_is_whole() -> None:
    module = torch.nn.GRU(INPUTS, H)
    prune.random_unstructured(module, "bias_hh_l0", amount=0.5)
    store = MemoryStore(arrays_of(module))
    expected = module.bias_hh_l0.detach().numpy()
    assert not expected.all()
    assert_allclose(store.read("net.bias_hh_l0"), expected)
    assert_allclose(store.read("net.bias_ih_l0"), module.bias_ih_l0.detach().numpy())


@pytest.mark.parametrize("wrapped", ["rnns.0.module.", "rnns.0."])
@pytest.mark.parametrize("kept", [True, False])
def test_weights_before_dropout(wrapped: str, kept: bool) -> None:
    """fastai keeps weight_hh_l0_raw above the module that it wraps, Salesforce in it."""
    random = np.random.default_rng(0)
    raw = random.normal(size=(4 * H, H))
    arrays = {
        f"{wrapped}weight_ih_l0": random.normal(size=(4 * H, INPUTS)),
        f"{wrapped}bias_hh_l0": random.normal(size=4 * H),
        "rnns.0.weight_hh_l0_raw": raw,
    }
    if kept:
        arrays[f"{wrapped}weight_hh_l0"] = 2 * raw * (random.random(size=raw.shape) < 0.5)
    store = MemoryStore(arrays)
    assert_allclose(store.read(f"{wrapped}weight_hh_l0"), raw)
    assert "rnns.0.weight_hh_l0_raw" not in store.tensors
    assert "before dropout" in store.notes[0]


def test_names_that_only_look_like_parts_stay() -> None:
    random = np.random.default_rng(0)
    shapes = {
        "cell.W_g": (H, 1),  # a gate that is called g, beside a value's matrix
        "cell.W_v": (H, INPUTS),
        "conv.weight_g": (2, 2),
        "conv.weight_v": (H, INPUTS),
        "data_orig": (3, 3),
        "image_raw": (3, 3),
        "masked_orig": (3, 3),
        "masked_mask": (2, 3),
        "parametrizations.both.original": (H, H),
        "parametrizations.both.0._u": (H,),
        "parametrizations.both.0._v": (H,),
        "parametrizations.both.1.base": (H, H),
    }
    store = MemoryStore({name: random.normal(size=shape) for name, shape in shapes.items()})
    assert set(store.tensors) == set(shapes)
    assert store.notes == ()


def test_a_spectral_norm_of_zero_is_refused() -> None:
    arrays = {"weight_orig": np.ones((2, 3)), "weight_u": np.zeros(2), "weight_v": np.ones(3)}
    with pytest.raises(CheckpointError, match="a spectral norm of zero"):
        MemoryStore(arrays).read("weight")


def test_a_row_of_zeros_stays_zero() -> None:
    direction = np.array([[3.0, 4.0], [0.0, 0.0]])
    store = MemoryStore({"weight_g": np.array([[10.0], [2.0]]), "weight_v": direction})
    assert_allclose(store.read("weight"), [[6.0, 8.0], [0.0, 0.0]])


def test_adam_s_state_still_counts_the_stored_parameters() -> None:
    module = torch.nn.LSTM(INPUTS, H)
    parametrizations.weight_norm(module, NAME)
    optimizer = torch.optim.Adam(module.parameters())
    module(torch.ones(2, INPUTS))[0].sum().backward()
    optimizer.step()
    # As model.parameters() numbers them: the parts come after what is not parametrised.
    store = MemoryStore({"model": module.state_dict(), "optimizer": optimizer.state_dict()})
    state = adam_state(store)
    assert state is not None
    assert {"bias_hh_l0", "bias_ih_l0"} <= state.slots.keys()
    assert state.slots["bias_hh_l0"].second_moment.spec.shape == (4 * H,)


def test_a_copy_keeps_the_file_untouched() -> None:
    module = torch.nn.RNN(INPUTS, H)
    parametrizations.weight_norm(module, NAME)
    arrays = arrays_of(module)
    before = copy.deepcopy(arrays)
    store = MemoryStore(arrays)
    store.read(f"net.{NAME}")
    assert set(store.stored) == set(before)
    assert all(np.array_equal(arrays[name], before[name]) for name in before)
