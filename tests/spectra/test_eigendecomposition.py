from __future__ import annotations

import importlib.machinery
import sys
import types

import numpy as np
import pytest

from memcurse_cli.errors import UsageError
from memcurse_cli.spectra import eigendecomposition
from memcurse_cli.spectra.eigendecomposition import (
    eigendecompose,
    eigenvalues,
    validate_device,
)


class Tensor:
    """What torch hands out, as far as it is used."""

    def __init__(self, array: np.ndarray, device: str = "cpu") -> None:
        self.array, self.device = array, device

    def to(self, device: str) -> Tensor:
        return Tensor(self.array, device)

    def cpu(self) -> Tensor:
        return Tensor(self.array)

    def numpy(self) -> np.ndarray:
        assert self.device == "cpu"
        return self.array


class Torch(types.ModuleType):
    """A torch that sees some GPUs and remembers what ran on them."""

    def __init__(self, gpus: int) -> None:
        super().__init__("torch")
        self.__spec__ = importlib.machinery.ModuleSpec("torch", None)
        self.ran: list[tuple[str, tuple[int, ...], np.dtype]] = []
        self.asked = 0
        self.gpus = gpus
        self.cuda = types.SimpleNamespace(is_available=self.available, device_count=lambda: gpus)
        self.linalg = types.SimpleNamespace(eig=self.eig, eigvals=lambda a: self.eig(a)[0])
        self.device = str
        self.from_numpy = Tensor

    def available(self) -> bool:
        self.asked += 1
        return self.gpus > 0

    def eig(self, matrix: Tensor) -> tuple[Tensor, Tensor]:
        self.ran.append((matrix.device, matrix.array.shape, matrix.array.dtype))
        values, vectors = np.linalg.eig(matrix.array)
        return (
            Tensor(values.astype(complex), matrix.device),
            Tensor(vectors.astype(complex), matrix.device),
        )


@pytest.fixture
def torch(monkeypatch: pytest.MonkeyPatch) -> Torch:
    module = Torch(gpus=2)
    monkeypatch.setitem(sys.modules, "torch", module)
    monkeypatch.setattr(eigendecomposition, "CROSSOVER", 8)
    return module


def matrix(size: int, batch: tuple[int, ...] = ()) -> np.ndarray:
    return np.random.default_rng(size).normal(size=(*batch, size, size))


@pytest.mark.parametrize("device", ["auto", "cpu", "cuda", "cuda:1"])
@pytest.mark.parametrize(("size", "batch"), [(1, ()), (5, ()), (5, (3,)), (9, ()), (9, (2, 2))])
def test_it_is_the_decomposition_wherever_it_ran(
    torch: Torch, device: str, size: int, batch: tuple[int, ...]
) -> None:
    whole = matrix(size, batch)
    found = eigendecompose(whole.astype(np.float32), device)
    assert found.values.dtype == found.vectors.dtype == np.complex128
    again = found.vectors * found.values[..., None, :] @ np.linalg.inv(found.vectors)
    np.testing.assert_allclose(again, whole.astype(np.float32), atol=1e-6)
    np.testing.assert_allclose(np.linalg.norm(found.vectors, axis=-2), 1)


@pytest.mark.parametrize(
    ("device", "size", "batch", "engine"),
    [
        ("auto", 7, (), "numpy"),
        ("auto", 8, (), "torch:cuda:0"),
        ("auto", 7, (100,), "numpy"),
        ("auto", 8, (2,), "numpy"),
        ("cpu", 8, (), "numpy"),
        ("cuda", 2, (), "torch:cuda:0"),
        ("cuda", 8, (2,), "torch:cuda:0"),
        ("cuda:1", 2, (), "torch:cuda:1"),
        ("cuda", 7, (100,), "numpy"),
    ],
)
def test_where_it_runs(
    torch: Torch, device: str, size: int, batch: tuple[int, ...], engine: str
) -> None:
    found = eigendecompose(matrix(size, batch), device)
    assert found.engine == engine
    assert [f"torch:{place}" for place, _, _ in torch.ran] == [engine] * (engine != "numpy")


def test_eigenvalues_alone_run_in_the_same_place(torch: Torch) -> None:
    for device, size, batch in (("auto", 7, ()), ("auto", 8, ()), ("cuda:1", 3, ())):
        whole = eigendecompose(matrix(size, batch), device)
        alone = eigenvalues(matrix(size, batch), device)
        assert alone.dtype == np.complex128
        np.testing.assert_allclose(np.sort(alone), np.sort(whole.values))
    assert [place for place, _, _ in torch.ran] == ["cuda:0"] * 2 + ["cuda:1"] * 2


def test_torch_is_left_alone_below_the_crossover(torch: Torch) -> None:
    eigendecompose(matrix(7), "auto")
    eigendecompose(matrix(8, (2,)), "auto")
    eigendecompose(matrix(9), "cpu")
    eigenvalues(matrix(7), "auto")
    assert torch.asked == 0


def test_a_gpu_computes_in_double_precision(torch: Torch) -> None:
    eigendecompose(matrix(3).astype(np.float16), "cuda")
    eigendecompose(matrix(3).astype(np.complex64), "cuda")
    assert [dtype for _, _, dtype in torch.ran] == [np.float64, np.complex128]


def test_auto_without_a_gpu_or_without_torch_runs_on_the_processor(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(eigendecomposition, "CROSSOVER", 4)
    monkeypatch.setitem(sys.modules, "torch", Torch(gpus=0))
    assert eigendecompose(matrix(4)).engine == "numpy"
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert eigendecompose(matrix(4)).engine == "numpy"


@pytest.mark.parametrize("device", ["cuda", "cuda:0"])
def test_a_gpu_that_is_not_there(monkeypatch: pytest.MonkeyPatch, device: str) -> None:
    monkeypatch.setitem(sys.modules, "torch", Torch(gpus=0))
    with pytest.raises(UsageError) as caught:
        eigendecompose(matrix(2), device)
    assert str(caught.value) == f"--device {device}: torch sees no CUDA GPU; use --device cpu"


def test_a_gpu_without_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match="use --device cpu"):
        eigendecompose(matrix(2), "cuda")


def test_a_gpu_that_is_not_one_of_them(torch: Torch) -> None:
    with pytest.raises(UsageError, match="torch sees 2 CUDA GPUs, numbered from 0"):
        eigendecompose(matrix(2), "cuda:2")


@pytest.mark.parametrize("device", ["", "gpu", "CPU", "cuda:", "cuda:-1", "cuda:x", "cpu:0", "tpu"])
def test_an_unknown_device_is_named_with_the_choices(device: str) -> None:
    for refuse in (validate_device, lambda name: eigendecompose(matrix(2), name)):
        with pytest.raises(UsageError) as caught:
            refuse(device)
        assert str(caught.value) == (
            f"--device: unknown device '{device}'; choose auto, cpu, cuda or cuda:i"
        )


@pytest.mark.parametrize("device", ["auto", "cpu", "cuda", "cuda:0", "cuda:13"])
def test_known_devices_need_no_torch_to_be_named(device: str) -> None:
    validate_device(device)
