"""Mamba-3 against the library's layers, its trapezoidal step written out, and differences."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from numpy.typing import NDArray
from recurrences.derivatives import check_derivatives, match_of, read_layer
from recurrences.oracles import ZooFile, oracle_eigenvalues, read_layers, zoo_files
from recurrences.simulated_gates import check_bands, gates_of, two_gate_drive_of

from memcurse_cli.checkpoints.memory import MemoryStore
from memcurse_cli.checkpoints.open import open_checkpoint
from memcurse_cli.errors import TensorError
from memcurse_cli.recurrences.detect import detect
from memcurse_cli.recurrences.family import ReadOptions
from memcurse_cli.recurrences.gate_drive import TwoGateDrive
from memcurse_cli.recurrences.mamba3 import Mamba3

HEADS, HEAD_DIMENSION, STATE = 4, 2, 3
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


def mixer(
    *, groups: int = 1, rank: int = 1, state: int = 8, fraction: float = 0.5, scale: float = 0.3
) -> dict[str, NDArray]:
    """A mixer whose in_proj has the rows of the library's."""
    random = np.random.default_rng(9)
    angles = int(state * fraction) // 2
    inner = HEADS * HEAD_DIMENSION
    rows = 2 * inner + 2 * state * groups * rank + 3 * HEADS + angles
    return {
        "mixer.dt_bias": random.uniform(-4, 1, HEADS),
        "mixer.B_bias": np.ones((HEADS, rank, state)),
        "mixer.C_bias": np.ones((HEADS, rank, state)),
        "mixer.in_proj.weight": random.normal(0, scale, (rows, 6)),
        "mixer.out_proj.weight": np.ones((6, inner)),
    }


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
    drive = two_gate_drive_of(MemoryStore(arrays), Mamba3(), rate_function=function)
    inputs = 1.5 * np.random.default_rng(3).standard_normal((40_000, 6))
    step, rate = steps_of(arrays, inputs, function, int(layout.get("groups", 1)))
    gates = gates_of(arrays, input_scale=1.5, assume={"rate_function": function})
    check_bands(gates, np.exp(-rate * step), 0.01, drive.reason)
    for band in gates.bands:
        seen = np.median(np.quantile(1 / (rate * step), band.share, axis=0))
        assert_allclose(band.time_constant.p50, seen, rtol=0.03)
    assert gates.second_moment is not None
    assert [group.tensor for group in gates.parameters] == ["mixer.dt_bias"]


def reference_states(arrays: dict[str, NDArray], scale: float) -> tuple[NDArray, NDArray]:
    """E h² and E (dh/d dt_bias)² of every head, by the library's reference step on random inputs.

    `mamba3_siso_step_ref` of its tests: inputs of the layer are drawn anew at every step, keys and
    values from elsewhere. A state is seen in the frame of its query, which turns with it.
    """
    jax = pytest.importorskip("jax")
    jnp = jax.numpy
    runs, steps, skipped = 250, 700, 350
    state = arrays["mixer.B_bias"].shape[2]
    rows = arrays["mixer.in_proj.weight"][2 * HEADS * HEAD_DIMENSION + 2 * state :]
    turning = len(rows) - 3 * HEADS

    def run(bias: NDArray, key: NDArray) -> tuple[NDArray, NDArray]:
        def step(carry: tuple[NDArray, ...], key: NDArray) -> tuple[tuple[NDArray, ...], NDArray]:
            angle, states, last = carry
            first, second = jax.random.split(key)
            seen = scale * jax.random.normal(first, (runs, rows.shape[1])) @ rows.T
            parts = jnp.split(seen, [HEADS, 2 * HEADS, 3 * HEADS], axis=1)
            size = jax.nn.softplus(parts[0] + bias)
            negative = jnp.minimum(parts[1], 0)
            rate = jnp.maximum(jnp.maximum(parts[1], 0) + 1 / (1 - negative), 1e-4)
            angle = angle + jnp.tanh(parts[3])[:, None] * jnp.pi * size[..., None]
            drive = turned(jax.random.normal(second, (runs, HEADS, state)), angle)
            trapezoid = jax.nn.sigmoid(parts[2])
            alpha = jnp.exp(-rate * size)
            states = alpha[..., None] * states
            states += ((1 - trapezoid) * size * alpha)[..., None] * last
            states += (trapezoid * size)[..., None] * drive
            return (angle, states, drive), turned(states, -angle)

        empty = jnp.zeros((runs, HEADS, state))
        begin = (jnp.zeros((runs, HEADS, turning)), empty, empty)
        return jax.lax.scan(step, begin, jax.random.split(key, steps))[1]

    def turned(tensor: NDArray, angle: NDArray) -> NDArray:
        pairs = tensor.reshape(*tensor.shape[:-1], -1, 2)
        left = [(0, 0), (0, 0), (0, pairs.shape[-2] - turning)]
        cos, sin = jnp.pad(jnp.cos(angle), left, constant_values=1.0), jnp.pad(jnp.sin(angle), left)
        first = pairs[..., 0] * cos - pairs[..., 1] * sin
        second = pairs[..., 0] * sin + pairs[..., 1] * cos
        return jnp.stack([first, second], axis=-1).reshape(tensor.shape)

    bias = jnp.asarray(arrays["mixer.dt_bias"])
    states, moved = jax.jvp(
        lambda bias: run(bias, jax.random.key(4)), (bias,), (jnp.ones_like(bias),)
    )
    held, changed = (
        np.asarray((each[skipped:] ** 2).mean(axis=(0, 1, 3)), dtype=float)
        for each in (states, moved)
    )
    return held, changed


@pytest.mark.parametrize(
    ("layout", "scale"), [({"fraction": 1.0, "scale": 0.5}, 1.0), ({}, 3.0)], ids=str
)
def test_the_moments_are_those_of_the_reference_step(
    layout: dict[str, float], scale: float
) -> None:
    arrays = mixer(**layout)
    held, changed = reference_states(arrays, scale)
    gates = gates_of(arrays, input_scale=scale)
    assert gates.second_moment is not None
    seen = gates.second_moment.moving
    assert_allclose([seen.min, seen.p50, seen.max], spread_of(held), rtol=0.03)
    (group,) = gates.parameters
    kappa = group.relative_sensitivity.moving
    # Six inputs make angles that are correlated with the step, which the theory leaves out.
    assert_allclose([kappa.min, kappa.p50, kappa.max], spread_of(changed / held), rtol=0.05)


def spread_of(values: NDArray) -> list[float]:
    return [values.min(), np.median(values), values.max()]


def test_gates_that_stand_still_have_the_moments_of_the_impulse() -> None:
    """c_0 = Δ/2 and c_k = Δ λᵏ, of any trapezoid."""
    gates = gates_of(mixer(scale=0.0))
    assert gates.second_moment is not None
    assert gates.second_moment.ratio.max == pytest.approx(1.0)
    step = np.log1p(np.exp(mixer()["mixer.dt_bias"]))
    expected = step**2 * (0.25 + np.exp(-2 * step) / -np.expm1(-2 * step))
    assert gates.second_moment.nominal.max == pytest.approx(expected.max())
    assert gates.second_moment.nominal.min == pytest.approx(expected.min())


def test_gates_that_are_switches_have_a_band_alone() -> None:
    gates = gates_of(mixer(), input_scale=500.0)
    assert gates.second_moment is None
    assert "for gates this wide the sums take" in (gates.reason or "")
    assert len(gates.bands) == 4


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
        drive = two_gate_drive_of(store, Mamba3(), rate_function="softplus")
        low = drive.law.log_rate(np.array([2.0]), np.array([-50.0]))
        assert_allclose(np.exp(low), floor * np.log1p(np.exp(2.0)), rtol=1e-12)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"in_proj.bias": np.zeros(53)}, "has a bias"),
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
            assert isinstance(drive, TwoGateDrive)
            weight = store.read(f"{match.layer}.in_proj.weight")
            first, second = weight[160:168], weight[168:176]  # z, x: 64 each; B, C: 16 each
            assert_allclose(drive.first.norms.inputs, (first**2).sum(1), rtol=1e-12)
            assert_allclose(drive.second.norms.inputs, (second**2).sum(1), rtol=1e-12)
            assert_allclose(drive.shared, (first * second).sum(1), rtol=1e-9, atol=1e-12)
            trapezoid = drive.trapezoid
            assert trapezoid is not None
            third, angles = weight[176:184], weight[184:]
            assert_allclose(trapezoid.weight.norms.inputs, (third**2).sum(1), rtol=1e-12)
            for shared, other in ((trapezoid.with_step, first), (trapezoid.with_rate, second)):
                assert_allclose(shared, (third * other).sum(1), rtol=1e-9, atol=1e-12)
            assert_allclose(trapezoid.angles, (angles**2).sum(1), rtol=1e-12)
            state = store.tensors[f"{match.layer}.B_bias"].shape[2]
            assert trapezoid.turning == 2 * len(angles) / state
