"""Mamba-3 against the library's layers, its trapezoidal step written out, and differences."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from families.derivatives import check_derivatives, match_of, read_layer
from families.mamba3_mixers import HEAD_DIMENSION, HEADS, mixer
from families.oracles import ZooFile, oracle_eigenvalues, read_layers, zoo_files
from families.simulated_gates import check_bands, gates_of, joint_drive_of
from numpy.testing import assert_allclose
from numpy.typing import NDArray

from memcurse_cli.checkpoints.memory import MemoryStore
from memcurse_cli.checkpoints.open import open_checkpoint
from memcurse_cli.errors import TensorError
from memcurse_cli.families.detect import detect
from memcurse_cli.families.family import ReadOptions
from memcurse_cli.families.gate_inputs import JointDrive
from memcurse_cli.families.selective.mamba3 import ALIGNED, KINDS, Mamba3, alignment

STATE = 3
RANDOM = np.random.default_rng(23)
ARRAYS = {
    "mixer.dt_bias": RANDOM.uniform(-4, 1, HEADS),
    "mixer.B_bias": np.ones((HEADS, 1, STATE)),
    "mixer.C_bias": np.ones((HEADS, 1, STATE)),
    "mixer.in_proj.weight": np.ones((40, 8)),
    "mixer.out_proj.weight": np.ones((8, HEADS * HEAD_DIMENSION)),
}


@pytest.mark.parametrize("function", ["heavy_tail", "softplus"])
def test_derivatives(function: str) -> None:
    check_derivatives(ARRAYS, Mamba3(), rate_function=function)


@pytest.mark.parametrize(("function", "rate"), [("heavy_tail", 1.0), ("softplus", np.log(2))])
def test_the_state_after_an_impulse(function: str, rate: float) -> None:
    recurrence = read_layer(ARRAYS, Mamba3(), rate_function=function)
    assert recurrence.multiplicity == HEAD_DIMENSION * STATE
    step = np.log1p(np.exp(ARRAYS["mixer.dt_bias"]))
    alpha, trapezoid = np.exp(-rate * step), 0.5
    state, previous = np.zeros(HEADS), 0.0
    for time in range(6):
        driven = float(time == 0)
        kept = (1 - trapezoid) * step * alpha * previous
        state = alpha * state + kept + trapezoid * step * driven
        previous = driven
    gain, eigenvalue = np.exp(recurrence.log_gain.real), np.exp(recurrence.log_eigenvalues.real)
    assert_allclose(state, gain * eigenvalue**5, rtol=1e-13)


@pytest.mark.parametrize(
    "file", zoo_files("mamba_ssm", "/model.safetensors", ".bin", kind="mamba3")
)
def test_zoo(file: ZooFile) -> None:
    layers = read_layers(file.path)
    for each, (name, recurrence) in zip(file.layers, layers.items(), strict=True):
        assert name == each["name"]
        assert recurrence.family == "mamba3"
        assert recurrence.multiplicity == each["multiplicity"]
        assert_allclose(
            np.exp(recurrence.log_eigenvalues), oracle_eigenvalues(each), rtol=0, atol=1e-14
        )


def test_a_mixer_with_a_rate_is_an_older_mamba() -> None:
    assert match_of({**ARRAYS, "mixer.A_log": np.ones(HEADS)}, Mamba3()) == []


@pytest.mark.parametrize(
    ("role", "values", "message"),
    [
        ("dt_bias", np.full(HEADS, np.nan), "mixer.dt_bias: 4 NaN"),
        ("B_bias", np.ones((HEADS + 1, 1, STATE)), r"mixer.B_bias: its shape \(5, 1, 3\)"),
        ("out_proj.weight", np.ones((8, HEADS + 1)), "does not fit 4 heads"),
        ("out_proj.weight", np.ones(8), r"mixer.out_proj.weight: its shape \(8\)"),
    ],
)
def test_bad_tensors_are_named(role: str, values: NDArray, message: str) -> None:
    with pytest.raises(TensorError, match=message):
        read_layer({**ARRAYS, f"mixer.{role}": values}, Mamba3())


def steps_of(
    arrays: dict[str, NDArray], inputs: NDArray, function: str, groups: int
) -> tuple[NDArray, NDArray]:
    """Δ and -A of every step and head, as `Mamba3.forward` has them."""
    _, rank, state = arrays["mixer.B_bias"].shape
    inner = arrays["mixer.out_proj.weight"].shape[1]
    projected = torch.tensor(inputs) @ torch.tensor(arrays["mixer.in_proj.weight"]).T
    shared = state * groups * rank
    sizes = [inner, inner, shared, shared, HEADS, HEADS, HEADS]
    parts = torch.split(projected, [*sizes, projected.shape[1] - sum(sizes)], dim=-1)
    step = torch.nn.functional.softplus(parts[4] + torch.tensor(arrays["mixer.dt_bias"]))
    if function == "softplus":
        rate = torch.nn.functional.softplus(parts[5])
    else:
        negative, positive = parts[5].clamp_max(0), parts[5].clamp_min(0)
        rate = positive + torch.reciprocal(1 - negative)
    return step.numpy(), rate.clamp(min=1e-4).numpy()


@pytest.mark.parametrize("function", ["heavy_tail", "softplus"])
@pytest.mark.parametrize(
    "layout",
    [{}, {"groups": 2}, {"rank": 2, "groups": 4}, {"fraction": 1.0}, {"state": 9, "scale": 1.0}],
    ids=str,
)
def test_the_bands_are_those_of_the_library_on_random_inputs(
    layout: dict[str, float], function: str
) -> None:
    arrays = mixer(**layout)
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


def test_correlated_projections_move_the_band() -> None:
    """A rate that falls as the step grows holds λ in place."""
    arrays = mixer()
    start = 2 * HEADS * HEAD_DIMENSION + 2 * 8
    weight = arrays["mixer.in_proj.weight"]
    widths = {}
    for sign in (-1.0, 1.0):
        weight[start + HEADS : start + 2 * HEADS] = sign * weight[start : start + HEADS]
        gates = gates_of(arrays)
        inputs = np.random.default_rng(3).standard_normal((300_000, 6))
        step, rate = steps_of(arrays, inputs, "heavy_tail", 1)
        for band in gates.bands:
            seen = np.median(np.quantile(np.exp(-rate * step), band.share, axis=0))
            assert_allclose(band.modulus.p50, seen, atol=0.002)
        widths[sign] = gates.bands[-1].modulus.p50 - gates.bands[0].modulus.p50
    assert widths[-1.0] < 0.5 * widths[1.0]


def test_the_floor_of_the_rate_is_that_of_the_configuration() -> None:
    store = MemoryStore(mixer(scale=3.0))
    for floor, config in ((1e-4, {}), (0.05, {"ssm_cfg": {"A_floor": 0.05}})):
        store.config = config
        drive = joint_drive_of(store, Mamba3(), rate_function="softplus")
        low = drive.law(np.array([[2.0, -50.0, 0.0, 0.0]])).log_eigenvalue.real
        assert_allclose(-low, floor * np.log1p(np.exp(2.0)), rtol=1e-12)


def test_alignment_is_a_squared_correlation() -> None:
    random = np.random.default_rng(4)
    angles, rows = random.normal(size=(3, 6)), random.normal(size=(2, 6))
    inputs = random.standard_normal((200_000, 6))
    seen = [np.corrcoef(inputs @ angle, (inputs @ rows.T).T)[0, 1:] ** 2 for angle in angles]
    assert_allclose(alignment(angles, rows), np.mean(seen, axis=0), atol=0.01)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"in_proj.weight": np.ones((41, 6))}, "rows of in_proj"),
        ({"in_proj.weight": np.ones((20, 6))}, "rows of in_proj"),
        ({"in_proj.weight": np.ones(46)}, "rows of in_proj"),
    ],
)
def test_other_projections_have_a_reason(change: dict[str, NDArray], reason: str) -> None:
    arrays = mixer() | {f"mixer.{name}": array for name, array in change.items()}
    gates = gates_of(arrays)
    assert gates.spread is None
    assert reason in (gates.reason or "")


@pytest.mark.parametrize("file", zoo_files("mamba_ssm", "/model.safetensors", kind="mamba3"))
def test_the_rows_of_the_zoo_are_found(file: ZooFile) -> None:
    with open_checkpoint(file.path) as store:
        for family, match in detect(store.tensors):
            drive = family.read(store, match, ReadOptions(gates=True)).gate
            assert isinstance(drive, JointDrive)
            weight = store.read(f"{match.layer}.in_proj.weight")
            # z, x: 64 each; B, C: 16 each; then step, rate and trapezoid.
            rows = weight[160:184].reshape(3, 8, -1)
            gram = drive.gram.reshape(8, len(drive.kinds), 4, 4)
            for kind in range(len(drive.kinds)):
                expected = np.einsum("ahi,bhi->hab", rows, rows)
                assert_allclose(gram[:, kind, :3, :3], expected, rtol=1e-9, atol=1e-12)
            assert not np.any(gram[..., :3, 3])
            angles = (weight[184:] ** 2).sum(1)
            state = store.tensors[f"{match.layer}.B_bias"].shape[2]
            assert sum(drive.kinds) == pytest.approx(1.0)
            turning = (
                np.array(drive.kinds[:KINDS]) * (gram[0, :KINDS, 3, 3] > 0)[: len(drive.kinds)]
            )
            assert turning.sum() == pytest.approx(2 * len(angles) / state)
            mean = np.array(drive.kinds) @ gram[0, :, 3, 3] / turning.sum()
            assert mean == pytest.approx(angles.mean())
