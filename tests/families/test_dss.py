"""DSS against the published kernels, written out, and against differences."""

from __future__ import annotations

import numpy as np
import pytest
from families.derivatives import check_derivatives, match_of, read_layer
from families.impulse import impulse_response
from numpy.testing import assert_allclose
from numpy.typing import NDArray

from memcurse_cli.errors import UsageError
from memcurse_cli.families.state_space.s4d import DSS

H, N, OUTPUTS, STEPS = 3, 4, 2, 12
RANDOM = np.random.default_rng(7)
LAMBDA = -RANDOM.uniform(0.3, 1, N) + 1j * RANDOM.uniform(0.5, 2, N)
W = RANDOM.normal(size=(OUTPUTS, H, N, 2))


def as_complex(values: NDArray) -> NDArray:
    return values[..., 0] + 1j * values[..., 1]


def as_pairs(values: NDArray) -> NDArray:
    return np.stack([values.real, values.imag], axis=-1)


def softmax_layer(*, steps: int = 1, growing: bool = False) -> dict[str, NDArray]:
    rng = np.random.default_rng(8)
    log_dt = rng.uniform(-2, -0.5, H if steps == 1 else (H, steps))
    values = LAMBDA.copy()
    if growing:
        values[1] = 0.2 + 1j
    return {"kernel.log_dt": log_dt, "kernel.Lambda": as_pairs(values), "kernel.W": W}


def exponential_layer(*, log_im: bool = False) -> dict[str, NDArray]:
    layer = softmax_layer()
    del layer["kernel.Lambda"]
    layer["kernel.Lambda_log_neg_re"] = np.log(-LAMBDA.real)
    name, values = ("Lambda_log_im", np.log(LAMBDA.imag)) if log_im else ("Lambda_im", LAMBDA.imag)
    return {**layer, f"kernel.{name}": values, "D": np.ones((OUTPUTS, H))}


def flax_layer() -> dict[str, NDArray]:
    rng = np.random.default_rng(9)
    layer = {
        "Lambda_re": -rng.uniform(0.3, 1, (N, H)),
        "Lambda_im": rng.uniform(0.5, 2, (N, H)),
        "W": rng.normal(size=(1, H, N, 2)),
        "D": np.ones((1, H)),
        "log_step": rng.uniform(-2, -0.5, (1, H)),
    }
    return {f"params/layers_0/seq/{role}": values for role, values in layer.items()}


def gated_layer() -> dict[str, NDArray]:
    rng = np.random.default_rng(10)
    return {
        "layers.0.dss.Lambda_real": np.log(-LAMBDA.real),
        "layers.0.dss.Lambda_imag": rng.normal(size=N),
        "layers.0.dss.C_real": rng.normal(size=(H, N)),
        "layers.0.dss.C_imag": rng.normal(size=(H, N)),
        "layers.0.dss.param_D": np.ones(H),
    }


def kernel_of(layer: dict[str, NDArray], rate: NDArray, version: str, length: int) -> NDArray:
    """DSSKernel.forward, line by line, without the 1e-7 beside the reciprocals."""
    step = np.exp(layer["kernel.log_dt"]).reshape(H, -1)
    scaled = step[:, :1] * rate.real + 1j * step[:, -1:] * rate.imag
    power = scaled[..., None] * np.arange(length)
    w = as_complex(layer["kernel.W"])
    if version == "softmax":
        grows = rate.real > 0
        power = power - (scaled * (grows * (length - 1)))[..., None]
        away = scaled * (1 - 2 * grows)
        w = w * (np.exp(away) - 1) / ((np.exp(away * length) - 1) * rate)
    elif not version.endswith("no-scale"):
        w = w * (np.exp(scaled) - 1) / rate
    return np.einsum("chn,hnl->chl", w, np.exp(power)).real


@pytest.mark.parametrize("steps", [1, 2])
@pytest.mark.parametrize("growing", [False, True])
def test_the_softmax_s_kernel(steps: int, growing: bool) -> None:
    layer = softmax_layer(steps=steps, growing=growing)
    recurrence = read_layer(layer, DSS(), **{"kernel-length": str(STEPS)})
    expected = kernel_of(layer, as_complex(layer["kernel.Lambda"]), "softmax", STEPS)
    assert_allclose(impulse_response(recurrence, STEPS), expected, rtol=0, atol=1e-12)
    assert (recurrence.log_eigenvalues.real > 0).any() == growing
    assert not recurrence.stable_by_construction
    assert [text.partition(" ")[0] for text in recurrence.assumptions] == [
        "dss-version=softmax",
        f"kernel-length={STEPS}",
    ]


def test_the_softmax_of_a_long_kernel_is_minus_a_hold() -> None:
    layer = softmax_layer()
    endless = read_layer(layer, DSS())
    rate = as_complex(layer["kernel.Lambda"])
    expected = -kernel_of(layer, rate, "exp", STEPS)
    assert_allclose(impulse_response(endless, STEPS), expected, rtol=0, atol=1e-12)
    long = read_layer(layer, DSS(), **{"kernel-length": "5000"})
    assert_allclose(np.exp(long.log_gain), np.exp(endless.log_gain), rtol=1e-12)


@pytest.mark.parametrize("version", ["clip", "clip-no-scale"])
def test_a_clipped_rate(version: str) -> None:
    layer = softmax_layer(growing=True)
    recurrence = read_layer(layer, DSS(), **{"dss-version": version})
    rate = as_complex(layer["kernel.Lambda"])
    clipped = np.minimum(rate.real, 1e-4) + 1j * rate.imag
    expected = kernel_of(layer, clipped, version, STEPS)
    assert_allclose(impulse_response(recurrence, STEPS), expected, rtol=0, atol=1e-12)
    check_derivatives(layer, DSS(), elements=ELEMENTS, **{"dss-version": version})


@pytest.mark.parametrize("version", ["exp", "exp-no-scale"])
@pytest.mark.parametrize("log_im", [False, True])
def test_the_exponential_s_kernel(version: str, log_im: bool) -> None:
    layer = exponential_layer(log_im=log_im)
    given = {} if version == "exp" else {"dss-version": version}
    recurrence = read_layer(layer, DSS(), **given)
    expected = kernel_of(layer, LAMBDA, version, STEPS)
    assert_allclose(impulse_response(recurrence, STEPS), expected, rtol=0, atol=1e-12)
    assert recurrence.stable_by_construction
    assert [group.matrix for group in recurrence.projections] == ["C", "C", "D"]


def test_a_second_direction_has_outputs_of_its_own() -> None:
    layer = exponential_layer() | {"D": np.ones((1, H))}
    recurrence = read_layer(layer, DSS())
    assert "backward" in recurrence.assumptions[-1]
    assert recurrence.projections == ()
    assert_allclose(impulse_response(recurrence, STEPS), kernel_of(layer, LAMBDA, "exp", STEPS))


def test_the_flax_layer_keeps_a_rate_for_every_channel() -> None:
    layer = flax_layer()
    recurrence = read_layer(layer, DSS(), **{"kernel-length": str(STEPS)})
    assert recurrence.name == "params/layers_0/seq"
    part = {name.rpartition("/")[2]: values for name, values in layer.items()}
    for channel in range(H):
        rate = part["Lambda_re"][:, channel] + 1j * part["Lambda_im"][:, channel]
        powers = np.exp(np.exp(part["log_step"][0, channel]) * rate[:, None] * np.arange(STEPS))
        weights = as_complex(part["W"])[0, channel] / rate
        expected = (weights @ (powers / powers.sum(axis=1, keepdims=True))).real
        response = impulse_response(recurrence, STEPS)[0, channel]
        assert_allclose(response, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("exponential", ["true", "false"])
def test_the_gated_layer_has_no_step_size(exponential: str) -> None:
    layer = gated_layer()
    recurrence = read_layer(layer, DSS(), **{"imag-exp": exponential})
    part = {name.rpartition(".")[2]: values for name, values in layer.items()}
    frequency = part["Lambda_imag"]
    rate = -np.exp(part["Lambda_real"]) + 1j * (
        np.exp(frequency) if exponential == "true" else frequency
    )
    readout = (part["C_real"] + 1j * part["C_imag"]) * (np.exp(rate) - 1) / rate
    expected = (readout @ np.exp(rate[:, None] * np.arange(STEPS))).real
    assert_allclose(impulse_response(recurrence, STEPS)[0], expected, rtol=0, atol=1e-12)
    check_derivatives(layer, DSS(), **{"imag-exp": exponential})


ELEMENTS = {
    "Lambda[real]": slice(0, None, 2),
    "Lambda[imaginary]": slice(1, None, 2),
}
STEP_ELEMENTS = {"log_dt[real]": slice(0, None, 2), "log_dt[imaginary]": slice(1, None, 2)}


# A short kernel: differences fail near the poles of the gain, where e^(zL) = 1.
@pytest.mark.parametrize("length", ["inf", "3"])
@pytest.mark.parametrize("steps", [1, 2])
def test_derivatives_of_the_softmax(length: str, steps: int) -> None:
    elements = {**ELEMENTS, **(STEP_ELEMENTS if steps == 2 else {})}
    for growing in (False, True):
        layer = softmax_layer(steps=steps, growing=growing)
        check_derivatives(layer, DSS(), elements=elements, **{"kernel-length": length})


@pytest.mark.parametrize("layer", [exponential_layer(), exponential_layer(log_im=True)])
def test_derivatives_of_the_exponential(layer: dict[str, NDArray]) -> None:
    check_derivatives(layer, DSS())
    check_derivatives(layer, DSS(), **{"dss-version": "exp-no-scale"})


def test_derivatives_of_the_flax_layer() -> None:
    check_derivatives(flax_layer(), DSS(), **{"kernel-length": "3"})


def test_a_rate_of_zero_sums_its_input() -> None:
    layer = softmax_layer()
    layer["kernel.Lambda"][0] = 0
    recurrence = read_layer(layer, DSS(), **{"dss-version": "clip"})
    assert_allclose(recurrence.log_eigenvalues[0], 0, atol=1e-149)
    step = np.exp(layer["kernel.log_dt"][0])
    assert_allclose(np.exp(recurrence.log_gain[0]), step, rtol=1e-12)
    check_derivatives(layer, DSS(), elements=ELEMENTS)
    for other, length in ((layer, "12"), ({**softmax_layer(steps=2), **layer}, "inf")):
        assert np.isfinite(read_layer(other, DSS(), **{"kernel-length": length}).log_gain).all()


def test_what_has_no_readout_is_not_it() -> None:
    layer = softmax_layer()
    del layer["kernel.W"]
    assert match_of(layer, DSS()) == []


def test_a_length_is_a_number_of_steps() -> None:
    with pytest.raises(UsageError, match="not a number of steps"):
        read_layer(softmax_layer(), DSS(), **{"kernel-length": "-3"})
