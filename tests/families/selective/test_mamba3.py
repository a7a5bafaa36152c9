"""Mamba-3 against the library's layers and its reference step, and what its gates see."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from families.selective.layers import mamba3
from families.simulated_gates import check_bands, gates_of, joint_drive_of
from numpy.testing import assert_allclose
from numpy.typing import NDArray

from memcurse_cli.checkpoints.memory import MemoryStore
from memcurse_cli.families.family import ReadOptions
from memcurse_cli.families.gate_inputs import NoDrive
from memcurse_cli.families.selective.mamba3 import ALIGNED, Mamba3

HEADS, INNER = 4, 8


def steps_of(
    arrays: dict[str, NDArray], inputs: NDArray, function: str, groups: int
) -> tuple[NDArray, NDArray]:
    """Δ and -A of every step and head, as `Mamba3.forward` has them."""
    _, rank, state = arrays["mixer.B_bias"].shape
    projected = torch.tensor(inputs) @ torch.tensor(arrays["mixer.in_proj.weight"]).T
    shared = state * groups * rank
    sizes = [INNER, INNER, shared, shared, HEADS, HEADS, HEADS]
    parts = torch.split(projected, [*sizes, projected.shape[1] - sum(sizes)], dim=-1)
    step = torch.nn.functional.softplus(parts[4] + torch.tensor(arrays["mixer.dt_bias"]))
    if function == "softplus":
        rate = torch.nn.functional.softplus(parts[5])
    else:
        negative, positive = parts[5].clamp_max(0), parts[5].clamp_min(0)
        rate = positive + torch.reciprocal(1 - negative)
    return step.numpy(), rate.clamp(min=1e-4).numpy()


@pytest.mark.parametrize(
    ("layout", "function"),
    [
        ({}, "heavy_tail"),
        ({"groups": 2}, "softplus"),
        ({"rank": 2, "groups": 4}, "heavy_tail"),
        ({"fraction": 1.0}, "softplus"),
        ({"state": 9, "scale": 1.0}, "heavy_tail"),
    ],
    ids=str,
)
def test_the_bands_are_those_of_the_library_on_random_inputs(
    layout: dict[str, Any], function: str
) -> None:
    arrays = mamba3(**layout)
    drive = joint_drive_of(MemoryStore(arrays), Mamba3(), rate_function=function)
    inputs = 1.5 * np.random.default_rng(3).standard_normal((40_000, 6))
    step, rate = steps_of(arrays, inputs, function, int(layout.get("groups", 1)))
    gates = gates_of(arrays, input_scale=1.5, assume={"rate_function": function})
    check_bands(gates, np.exp(-rate * step), 0.01, ALIGNED)
    for band in gates.bands:
        seen = np.median(np.quantile(1 / (rate * step), band.share, axis=0))
        assert_allclose(band.time_constant.p50, seen, rtol=0.03)
    assert drive.white_alone
    assert gates.second_moment is not None
    assert gates.parameters == ()
    assert gates_of(arrays, rho=0.5).second_moment is None


def test_the_floor_of_the_rate_is_that_of_the_configuration() -> None:
    store = MemoryStore(mamba3(scale=3.0))
    for floor, config in ((1e-4, {}), (0.05, {"ssm_cfg": {"A_floor": 0.05}})):
        store.config = config
        drive = joint_drive_of(store, Mamba3(), rate_function="softplus")
        low = drive.law(np.array([[2.0, -50.0, 0.0, 0.0]])).log_eigenvalue.real
        assert_allclose(-low, floor * np.log1p(np.exp(2.0)), rtol=1e-12)


@pytest.mark.parametrize("shape", [(41, 6), (20, 6), (46,)])
def test_other_projections_have_a_reason(shape: tuple[int, ...]) -> None:
    arrays = mamba3() | {"mixer.in_proj.weight": np.ones(shape)}
    store = MemoryStore(arrays)
    (match,) = Mamba3().find(store.tensors)
    assert isinstance(Mamba3().read(store, match, ReadOptions(gates=True)).gate, NoDrive)
    assert Mamba3().read(store, match, ReadOptions()).gate is None
    gates = gates_of(arrays)
    assert gates.spread is None
    assert gates.bands == ()
    assert "rows of in_proj" in (gates.reason or "")


def test_gates_that_stand_still_have_the_moments_of_the_impulse() -> None:
    """c_0 = Δ/2 and c_k = Δ λᵏ, of any trapezoid."""
    gates = gates_of(mamba3(scale=0.0))
    assert gates.second_moment is not None
    assert gates.second_moment.ratio.max == pytest.approx(1.0)
    step = np.log1p(np.exp(mamba3()["mixer.dt_bias"]))
    expected = step**2 * (0.25 + np.exp(-2 * step) / -np.expm1(-2 * step))
    assert gates.second_moment.nominal.max == pytest.approx(expected.max())
    assert gates.second_moment.nominal.min == pytest.approx(expected.min())
