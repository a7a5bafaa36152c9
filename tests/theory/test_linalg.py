"""Eigendecompositions wherever they run, threads, and partial Cholesky."""

from __future__ import annotations

import importlib.machinery
import os
import sys
import types
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from theory.matrices import gram
from threadpoolctl import threadpool_info, threadpool_limits

from memcurse_cli.diagnosis import hessian as hessian_module
from memcurse_cli.diagnosis import inspection
from memcurse_cli.errors import UsageError
from memcurse_cli.theory import linalg, threads
from memcurse_cli.theory.linalg import (
    PartialCholesky,
    eigendecompose,
    eigenvalues,
    partial_cholesky,
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
    monkeypatch.setattr(linalg, "CROSSOVER", 8)
    return module


def matrix(size: int, batch: tuple[int, ...] = ()) -> np.ndarray:
    return np.random.default_rng(size).normal(size=(*batch, size, size))


@pytest.mark.parametrize(
    ("device", "size", "batch", "engine"),
    [
        ("auto", 7, (), "numpy"),
        ("auto", 8, (), "torch:cuda:0"),
        ("auto", 7, (100,), "numpy"),
        ("auto", 8, (2,), "numpy"),
        ("cpu", 8, (), "numpy"),
        ("cuda", 2, (), "torch:cuda:0"),
        ("cuda", 8, (2, 2), "torch:cuda:0"),
        ("cuda:1", 2, (), "torch:cuda:1"),
        ("cuda", 7, (100,), "numpy"),
    ],
)
def test_where_it_runs_and_what_it_finds(
    torch: Torch, device: str, size: int, batch: tuple[int, ...], engine: str
) -> None:
    """On a GPU in double precision too, whatever precision a matrix is stored in."""
    whole = matrix(size, batch).astype(np.float32)
    values, vectors = eigendecompose(whole, device)
    on_gpu = engine != "numpy"
    assert [(f"torch:{place}", dtype) for place, _, dtype in torch.ran] == (
        [(engine, np.float64)] * on_gpu
    )
    assert torch.asked == on_gpu or device == "cuda"  # looking for a GPU takes long
    assert values.dtype == vectors.dtype == np.complex128
    again = vectors * values[..., None, :] @ np.linalg.inv(vectors)
    assert_allclose(again, whole, atol=1e-6)
    assert_allclose(np.linalg.norm(vectors, axis=-2), 1)
    alone = eigenvalues(whole, device)
    assert alone.dtype == np.complex128
    assert_allclose(np.sort(alone), np.sort(values), rtol=1e-6)
    assert len(torch.ran) == 2 * on_gpu


def test_a_gpu_that_cannot_be_had_is_refused(torch: Torch, monkeypatch: pytest.MonkeyPatch) -> None:
    """Unless the choice is automatic: the processor takes over."""
    with pytest.raises(UsageError, match="torch sees 2 CUDA GPUs, numbered from 0"):
        eigendecompose(matrix(2), "cuda:2")
    monkeypatch.setitem(sys.modules, "torch", Torch(gpus=0))
    for device in ("cuda", "cuda:0"):
        with pytest.raises(UsageError) as caught:
            eigendecompose(matrix(2), device)
        assert str(caught.value) == f"--device {device}: torch sees no CUDA GPU; use --device cpu"
    eigendecompose(matrix(8), "auto")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    eigendecompose(matrix(8), "auto")
    with pytest.raises(UsageError, match=r"torch is not installed; .*memcurse-cli\[gpu\]"):
        eigendecompose(matrix(2), "cuda")


@pytest.mark.parametrize("device", ["", "gpu", "CPU", "cuda:", "cuda:-1", "cuda:x", "cpu:0", "tpu"])
def test_an_unknown_device_is_named_with_the_choices(device: str) -> None:
    for refuse in (validate_device, lambda name: eigendecompose(matrix(2), name)):
        with pytest.raises(UsageError, match=f"unknown device '{device}'; choose auto, cpu, cuda"):
            refuse(device)


def blas_threads() -> set[int]:
    """What every BLAS of this process uses."""
    return {one["num_threads"] for one in threadpool_info() if one["user_api"] == "blas"}


@pytest.fixture
def two_threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A process whose linear algebra has two threads, and an environment that says nothing."""
    for name in threads.THREAD_SETTINGS:
        monkeypatch.delenv(name, raising=False)
    with threadpool_limits(2, user_api="blas"):
        assert blas_threads() == {2}
        yield


@pytest.mark.usefixtures("two_threads")
def test_small_matrices_get_one_thread_and_large_ones_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "THREADED_ORDER", 10)
    small, large = np.eye(9), np.eye(10)
    with threads.threads_by_order():
        assert blas_threads() == {2}
        for matrix, expected in ((small, 1), (small, 1), (large, 2), (large, 2), (small, 1)):
            eigendecompose(matrix)
            assert blas_threads() == {expected}
        eigenvalues(large)
        assert blas_threads() == {2}
        eigenvalues(np.zeros((20, 9, 9)))
        assert blas_threads() == {1}
    assert blas_threads() == {2}
    assert threads.OPENBLAS not in os.environ
    eigendecompose(small)
    assert blas_threads() == {2}


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("take", ["inspect", "hessian"])
def test_a_dense_layer_is_diagnosed_with_one_thread(
    take: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    module, step = {
        "inspect": (inspection, "diagnose"),
        "hessian": (hessian_module, "diagnose_hessian"),
    }[take]
    original, seen = getattr(module, step), []

    def watched(*given: Any) -> Any:
        seen.append(blas_threads())
        return original(*given)

    monkeypatch.setattr(module, step, watched)
    getattr(inspection, take)({"A": 0.3 * np.eye(4), "B": np.ones((4, 1)), "C": np.ones((1, 4))})
    assert seen == [{1}]
    assert blas_threads() == {2}


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("name", threads.THREAD_SETTINGS)
def test_threads_that_the_user_has_chosen_stay(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "2")
    with threads.threads_by_order():
        eigendecompose(np.eye(3))
        assert blas_threads() == {2}
    assert os.environ[name] == "2"


def of(whole: np.ndarray, **options: float) -> PartialCholesky:
    return partial_cholesky(np.diag(whole), lambda chosen: whole[:, chosen], **options)


@settings(max_examples=60)
@given(
    order=st.integers(1, 40),
    inner=st.integers(1, 50),
    rank=st.integers(1, 45),
    candidates=st.integers(1, 12),
    seed=st.integers(0, 2**32 - 1),
)
def test_what_is_left_is_positive_semidefinite_and_bounds_every_eigenvalue(
    order: int, inner: int, rank: int, candidates: int, seed: int
) -> None:
    whole = gram(order, inner, seed)
    found = of(whole, rank=rank, enough=0.0, candidates=candidates)
    scale = np.trace(whole)
    left = whole - found.factor @ found.factor.T
    assert np.linalg.eigvalsh(left)[0] >= -1e-10 * scale
    assert_allclose(np.diag(left), found.residual, atol=1e-10 * scale)
    assert found.error == pytest.approx(np.trace(left), abs=1e-10 * scale)
    assert found.factor.shape[1] <= rank
    exact = np.linalg.eigvalsh(whole)
    lower = np.linalg.eigvalsh(found.factor @ found.factor.T)
    assert np.all(lower <= exact + 1e-10 * scale)
    assert np.all(exact <= lower + found.error + 1e-10 * scale)
