"""Work on a device, with torch's CPU in the place of a GPU."""

from __future__ import annotations

import importlib.util

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from theory.matrices import jordan, system
from theory.non_normal import far_from_normal
from theory.test_hessian import memories

from memcurse_cli import inspect
from memcurse_cli.errors import UsageError
from memcurse_cli.theory import devices
from memcurse_cli.theory.autocorrelation import Autocorrelation
from memcurse_cli.theory.dense import bases
from memcurse_cli.theory.dense.bases import DoublingStein, resolvent_on_circle, uncertainty
from memcurse_cli.theory.dense.sensitivity import sensitivity_by_frequencies
from memcurse_cli.theory.devices import validate_device, work_on
from memcurse_cli.theory.linalg import eigendecompose, eigenvalues


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The devices that were looked for; torch's CPU is found, as strict as a GPU."""
    names: list[str] = []

    def find(device: str) -> torch.device:
        names.append(device)
        return torch.device("cpu")

    def refuse(self: torch.Tensor, *given: object) -> None:
        raise TypeError("a tensor on a GPU is no array")

    monkeypatch.setattr(torch.Tensor, "__array__", refuse)
    monkeypatch.setattr(devices, "find_gpu", find)
    monkeypatch.setattr(devices, "CROSSOVER", 8)
    monkeypatch.setattr(devices, "WORTH", 8)
    return names


def matrix(size: int, batch: tuple[int, ...] = ()) -> np.ndarray:
    return np.random.default_rng(size).normal(size=(*batch, size, size))


@pytest.mark.parametrize(
    ("device", "size", "batch", "moves"),
    [
        ("auto", 7, (), False),
        ("auto", 8, (), True),
        ("auto", 7, (100,), False),
        ("auto", 8, (2,), False),
        ("cpu", 8, (), False),
        ("cuda", 2, (), True),
        ("cuda", 8, (2, 2), True),
        ("cuda:1", 2, (), True),
        ("cuda", 7, (100,), False),
    ],
)
def test_where_eigendecompositions_run_and_what_they_find(
    asked: list[str], device: str, size: int, batch: tuple[int, ...], moves: bool
) -> None:
    """On a GPU in double precision too, whatever precision a matrix is stored in."""
    whole = matrix(size, batch).astype(np.float32)
    with work_on(device):
        asked.clear()
        values, vectors = eigendecompose(whole)
        assert asked == [device] * moves  # looking for a GPU takes long
        alone = eigenvalues(whole)
    assert values.dtype == vectors.dtype == alone.dtype == np.complex128
    again = vectors * values[..., None, :] @ np.linalg.inv(vectors)
    assert_allclose(again, whole, atol=1e-12 if moves else 1e-5)
    assert_allclose(np.linalg.norm(vectors, axis=-2), 1, rtol=1e-6)
    assert_allclose(np.sort(alone), np.sort(values), rtol=1e-5)


def test_a_gpu_that_cannot_be_had_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Unless the choice is automatic: the processor takes over."""
    monkeypatch.setattr(devices, "CROSSOVER", 8)

    def refusal(device: str) -> str:
        with pytest.raises(UsageError) as caught, work_on(device):
            pass
        return str(caught.value)

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert "torch sees 2 CUDA GPUs, numbered from 0" in refusal("cuda:2")
    assert devices.find_gpu("cuda:1") == torch.device("cuda:1")
    assert devices.find_gpu("auto") == devices.find_gpu("cuda") == torch.device("cuda:0")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    for device in ("cuda", "cuda:0"):
        expected = f"--device {device}: torch sees no CUDA GPU; use --device cpu"
        assert refusal(device) == expected
        with pytest.raises(UsageError, match="torch sees no CUDA GPU"):
            inspect({"W": np.eye(2)}, device=device)
    eigendecompose(matrix(8))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    eigendecompose(matrix(8))
    assert "torch is not installed" in refusal("cuda")
    assert "memcurse-cli[gpu]" in refusal("cuda")


def test_a_gpu_that_is_too_small_is_one_line(asked: list[str]) -> None:
    too_small = pytest.raises(UsageError, match="GPU's memory is too small; use --device cpu")
    with too_small, work_on("cuda"):
        raise torch.OutOfMemoryError
    with pytest.raises(RuntimeError, match="another"), work_on("cuda"):
        raise RuntimeError("another")


@pytest.mark.parametrize("device", ["", "gpu", "CPU", "cuda:", "cuda:-1", "cuda:x", "cpu:0", "tpu"])
def test_an_unknown_device_is_named_with_the_choices(device: str) -> None:
    for refuse in (validate_device, lambda name: work_on(name).__enter__()):
        with pytest.raises(UsageError, match=f"unknown device '{device}'; choose auto, cpu, cuda"):
            refuse(device)


@pytest.mark.parametrize("of", ["real", "complex", "conjugated"])
def test_what_goes_there_comes_back(asked: list[str], of: str) -> None:
    whole = matrix(8) + (1j * matrix(9)[:8, :8] if of != "real" else 0)
    with work_on("cuda"):
        (moved,) = devices.arrays_on_device(8, whole[::-1])
        assert isinstance(moved, torch.Tensor)
        assert devices.arrays_on_device(7, whole) == (whole,)
    if of == "conjugated":
        moved, whole = moved.conj().imag, whole.conj().imag
    back = devices.fetched(moved)
    assert isinstance(back, np.ndarray)
    np.testing.assert_array_equal(back, whole[::-1])
    with work_on("auto"):
        assert devices.arrays_on_device(8, whole) == (whole,)


@pytest.fixture
def tensors(asked: list[str], monkeypatch: pytest.MonkeyPatch) -> list[torch.Tensor]:
    """What was brought to the device."""
    moved: list[torch.Tensor] = []

    def watched(array: np.ndarray, place: torch.device) -> torch.Tensor:
        moved.append(move(array, place))
        return moved[-1]

    move = devices._moved
    monkeypatch.setattr(devices, "_moved", watched)
    return moved


def test_stein_equations_and_resolvents(tensors: list[torch.Tensor]) -> None:
    stored, source = far_from_normal(2, 0), matrix(12)

    def found() -> list[np.ndarray]:
        solver = DoublingStein(stored)
        figures = [solver.forward(source), solver.adjoint(source)]
        figures += sensitivity_by_frequencies(system(stored, source[:, :2], source[:3]))
        return [*figures, np.array(resolvent_on_circle(stored))]

    with work_on("cpu"):
        expected = found()
    assert not tensors
    with work_on("cuda"):
        there = found()
    assert len(tensors) > 5
    allowed = uncertainty(stored)
    assert allowed < 1e-6
    for one, other in zip(there, expected, strict=True):
        assert isinstance(one, np.ndarray)
        assert_allclose(one, other, rtol=allowed, atol=allowed * np.abs(other).max())
    with work_on("cuda"):
        assert resolvent_on_circle(jordan(3, 1.0)) == np.inf
        with pytest.raises(ArithmeticError, match="not finite"):
            bases.resolvents(np.full((2, 2), np.nan), np.ones(1, complex))


@pytest.mark.parametrize("horizon", [None, 200])
def test_columns_of_a_large_hessian(tensors: list[torch.Tensor], horizon: int | None) -> None:
    mixture = Autocorrelation((0.4, 0.6), (0.8, 0.9), (1.1, 0.0))
    (block,) = memories(40).hessian(mixture, horizon).large_blocks(0)
    chosen = np.arange(0, 120, 7)
    with work_on("auto"):
        expected = block.columns(chosen)
    assert not tensors
    with work_on("cuda"):
        found = block.columns(chosen)
    assert len(tensors) >= 5
    assert_allclose(found, expected, atol=1e-12 * np.abs(expected).max())


def test_the_responses_of_a_large_hessian(tensors: list[torch.Tensor]) -> None:
    (block,) = memories(40).hessian(horizon=200).large_blocks(0)

    def found() -> tuple[np.ndarray, ...]:
        factors = block.factorise()
        return factors.plain.gram, factors.scaled.gram, factors.plain.times(np.eye(200)[:, :3])

    with work_on("auto"):
        expected = found()
    assert not tensors
    with work_on("cuda"):
        there = found()
    assert len(tensors) >= 10
    for one, other in zip(there, expected, strict=True):
        assert_allclose(one, other, atol=1e-12 * np.abs(other).max())


@pytest.mark.parametrize("cell", [torch.nn.LSTM, torch.nn.GRU, torch.nn.RNN])
@pytest.mark.parametrize("bias", [True, False])
def test_a_plain_cell_is_run(
    tensors: list[torch.Tensor], cell: type[torch.nn.RNNBase], bias: bool
) -> None:
    """The same draws, so that the figures are the same to rounding."""
    torch.manual_seed(0)
    state = {name: tensor.numpy() for name, tensor in cell(3, 6, bias=bias).state_dict().items()}
    expected, found = (
        inspect(state, simulate=True, horizon=20, device=device).layers[0].simulation
        for device in ("cpu", "cuda")
    )
    assert any(tensor.ndim == 3 for tensor in tensors)  # the signs of every sequence
    assert expected is not None
    assert found is not None
    for one, other in (
        (found.second_moment, expected.second_moment),
        (found.exponent, expected.exponent),
        *(
            (a.sensitivity, b.sensitivity)
            for a, b in zip(found.groups, expected.groups, strict=True)
        ),
    ):
        assert one.value == pytest.approx(other.value, rel=1e-9)
    assert found.saturated == expected.saturated
