"""S4D and DSS against the libraries' kernels, SciPy's discretisation and differences."""

from __future__ import annotations

import numpy as np
import pytest
from families.derivatives import check_derivatives, read_layer
from families.impulse import impulse_response
from families.oracles import as_complex, softplus
from numpy.testing import assert_allclose
from numpy.typing import NDArray

from memcurse_cli.errors import UsageError
from memcurse_cli.families.state_space.s4d import DSS, S4D

H, N = 3, 2
STEPS = 20


def pairs(rng: np.random.Generator, *shape: int) -> NDArray:
    return rng.normal(size=(*shape, 2))


def minimal() -> dict[str, NDArray]:
    rng = np.random.default_rng(0)
    return {
        "kernel.log_dt": rng.uniform(-3, -1, H),
        "kernel.log_A_real": rng.uniform(-2, 1, (H, N)),
        "kernel.A_imag": rng.uniform(-4, 4, (H, N)),
        "kernel.C": pairs(rng, H, N),
    }


def version_3() -> dict[str, NDArray]:
    layer = minimal()
    rng = np.random.default_rng(1)
    layer["kernel.inv_A_real"] = layer.pop("kernel.log_A_real")
    layer["kernel.B"] = pairs(rng, H, N)
    layer["kernel.C"] = pairs(rng, 2, H, N)
    layer["kernel.A"] = pairs(rng, H, N)  # left over from its initialisation, never used
    return layer


def version_4(systems: int = H, *, tied: bool = True, real: bool = False) -> dict[str, NDArray]:
    rng = np.random.default_rng(2)
    layer = {
        "kernel.inv_dt": rng.uniform(-3, -1, (H, 1 if tied else N)),
        "kernel.A_real": rng.uniform(-2, 1, (systems, N)),
        "kernel.A_imag": rng.uniform(0.1, 4, (systems, N)),
        "kernel.B": pairs(rng, 1, systems, N),
        "kernel.C": pairs(rng, 2, H, N),
    }
    if real:
        del layer["kernel.A_imag"]
        layer["kernel.B"], layer["kernel.C"] = layer["kernel.B"][..., 0], layer["kernel.C"][..., 0]
    return layer


def response_of(z: NDArray, rate: NDArray, driven: NDArray, method: str = "zoh") -> NDArray:
    """(outputs, channels, steps) of s' = a s + u and Re Σ B C s, by the textbooks' formulas."""
    eigenvalue, gain = np.exp(z), (np.exp(z) - 1) / rate
    if method == "bilinear":
        eigenvalue, gain = (1 + z / 2) / (1 - z / 2), z / rate / (1 - z / 2)
    elif method == "softmax":  # a share of the kernel's sum
        gain = gain / (np.exp(z * STEPS) - 1)
    elif method.endswith("no-scale"):
        gain = np.ones(z.shape)
    powers = gain[..., None] * eigenvalue[..., None] ** np.arange(STEPS)
    return np.einsum("chn,hnl->chl", driven, powers).real


def version_2(rng: np.random.Generator) -> dict[str, NDArray]:
    return {
        "kernel.log_dt": rng.uniform(-3, -1, H),
        "kernel.C": pairs(rng, 2, H, N),
        "kernel.w": np.stack([rng.uniform(-2, 0.2, (1, N)), rng.uniform(-4, 4, (1, N))], axis=-1),
    }


def hurwitz() -> dict[str, NDArray]:
    layer = version_2(np.random.default_rng(3))
    real, imag = np.moveaxis(layer.pop("kernel.w"), -1, 0)
    return layer | {"kernel.log_w_real": real, "kernel.w_imag": imag}


LAYERS = {
    "minimal": minimal(),
    "version 2": hurwitz(),
    "version 3": version_3(),
    "one system": version_4(1),
    "untied step": version_4(tied=False),
    "real": version_4(real=True),
}


@pytest.mark.parametrize("method", ["bilinear", "zoh"])
@pytest.mark.parametrize("name", LAYERS)
def test_impulse_response_and_derivatives(name: str, method: str) -> None:
    layer = LAYERS[name]
    recurrence = read_layer(layer, S4D(), discretization=method)
    roles = {role.removeprefix("kernel."): values for role, values in layer.items()}
    step = np.exp(roles["inv_dt"] if "inv_dt" in roles else roles["log_dt"][:, None])
    (real,) = (roles[role] for role in roles if role.endswith("_real"))
    imag = roles.get("w_imag", roles.get("A_imag", np.zeros(real.shape)))
    diagonal = -np.exp(real) + 1j * (-imag if "inv_dt" in roles else imag)
    readin = roles.get("B", np.ones(real.shape))
    readout = roles["C"]
    if name != "real":
        readin = as_complex(readin) if "B" in roles else readin
        readout = as_complex(readout)
    driven = readin.reshape(real.shape) * readout.reshape(-1, H, N)
    expected = 2 * response_of(step * diagonal, diagonal, driven, method)
    assert_allclose(impulse_response(recurrence, STEPS), expected, rtol=0, atol=1e-12)
    assert recurrence.conjugate_pairs == (name != "real")
    assert recurrence.stable_by_construction
    assert "kernel.A" not in recurrence.tensors
    check_derivatives(layer, S4D(), discretization=method)


def test_the_default_method_is_the_version_s() -> None:
    assert read_layer(minimal(), S4D()).assumptions == ()
    assert "discretization=bilinear" in read_layer(version_3(), S4D()).assumptions[0]
    said = {sentence.partition(":")[0] for sentence in read_layer(version_4(), S4D()).assumptions}
    transforms = {"real-transform=exp", "imag-transform=none", "dt-transform=exp"}
    assert said == {
        f"{each} (the library's default)" for each in transforms | {"discretization=zoh"}
    }


@pytest.mark.parametrize("dt", ["softplus", "none"])
def test_derivatives_through_other_transforms(dt: str) -> None:
    layer = version_4()
    assume = {"discretization": "bilinear", "dt-transform": dt, "real-transform": "sigmoid"}
    if dt == "none":
        layer["kernel.inv_dt"] = softplus(layer["kernel.inv_dt"]) + 0.5
        assume |= {"real-transform": "none", "imag-transform": "exp"}
        layer["kernel.A_real"] = softplus(layer["kernel.A_real"]) + 0.5
        layer["kernel.A_imag"] /= 4
        assert not read_layer(layer, S4D(), **assume).stable_by_construction
    check_derivatives(layer, S4D(), **assume)


@pytest.mark.parametrize(
    "assume",
    [
        {"step-rescale": "0.5"},
        {"dt-fast": "true"},
        {"bandlimit": "0.1"},
        {"bandlimit": "0.1", "step-rescale": "3"},
        {"discretization": "dss", "kernel-length": str(STEPS)},
    ],
    ids=" ".join,
)
def test_what_the_constructor_and_the_call_change(assume: dict[str, str]) -> None:
    """As SSMKernelDiag.forward of version 4, for n_ssm = H."""
    layer = version_4()
    recurrence = read_layer(layer, S4D(), **assume)
    rate = -np.exp(layer["kernel.A_real"]) - 1j * layer["kernel.A_imag"]
    step = layer["kernel.inv_dt"]
    step = np.exp(np.sinh(step) if "dt-fast" in assume else step)
    driven = as_complex(layer["kernel.B"]) * as_complex(layer["kernel.C"])
    if "bandlimit" in assume:
        driven = driven * (step * np.abs(rate.imag) / (2 * np.pi) < 0.1 * 0.5)
    step = step * float(assume.get("step-rescale", 1))
    if "discretization" in assume:  # dss, without a conjugate
        expected = response_of(step * rate, rate, driven, "softmax")
    else:
        expected = 2 * response_of(step * rate, rate, driven)
    assert_allclose(impulse_response(recurrence, STEPS), expected, rtol=0, atol=1e-12)
    plain = impulse_response(read_layer(layer, S4D()), STEPS)
    assert np.abs(plain - expected).max() > 1e-3
    said = {sentence.partition(" ")[0] for sentence in recurrence.assumptions}
    assert said >= {f"{key}={value}" for key, value in assume.items()}
    if "bandlimit" in assume:
        assert 0 < np.count_nonzero(recurrence.readout == 0) < recurrence.readout.size
    if "dt-fast" in assume:
        layer["kernel.inv_dt"] /= 2  # so that differences hold
    check_derivatives(layer, S4D(), **assume | {"kernel-length": "3"})


def test_numbers_out_of_range_are_refused() -> None:
    for key in ("step-rescale", "bandlimit"):
        with pytest.raises(UsageError, match="0 is not a positive number"):
            read_layer(version_4(), S4D(), **{key: "0"})


@pytest.mark.parametrize("wrapped", ["", "kernel."])
def test_a_second_direction_has_outputs_of_its_own(wrapped: str) -> None:
    layer = {f"{wrapped}{name}": values for name, values in version_4().items()}
    both = read_layer(layer | {"D": np.ones((1, H))}, S4D())
    assert "backward" in both.assumptions[-1]
    assert both.projections == ()
    one = read_layer(layer | {"D": np.ones((2, H))}, S4D())
    assert "backward" not in one.assumptions[-1]
    assert one.projections[-1].matrix == "D"


MODES, OUTPUTS = 4, 2
RANDOM = np.random.default_rng(7)
LAMBDA = -RANDOM.uniform(0.3, 1, MODES) + 1j * RANDOM.uniform(0.5, 2, MODES)
W = RANDOM.normal(size=(OUTPUTS, H, MODES, 2))


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
        "Lambda_re": -rng.uniform(0.3, 1, (MODES, H)),
        "Lambda_im": rng.uniform(0.5, 2, (MODES, H)),
        "W": rng.normal(size=(1, H, MODES, 2)),
        "D": np.ones((1, H)),
        "log_step": rng.uniform(-2, -0.5, (1, H)),
    }
    return {f"params/layers_0/seq/{role}": values for role, values in layer.items()}


def gated_layer() -> dict[str, NDArray]:
    rng = np.random.default_rng(10)
    return {
        "layers.0.dss.Lambda_real": np.log(-LAMBDA.real),
        "layers.0.dss.Lambda_imag": rng.normal(size=MODES),
        "layers.0.dss.C_real": rng.normal(size=(H, MODES)),
        "layers.0.dss.C_imag": rng.normal(size=(H, MODES)),
        "layers.0.dss.param_D": np.ones(H),
    }


def dss_kernel(layer: dict[str, NDArray], rate: NDArray, version: str) -> NDArray:
    """DSSKernel.forward, whose step may have an imaginary part of its own."""
    step = np.exp(layer["kernel.log_dt"]).reshape(H, -1)
    scaled = step[:, :1] * rate.real + 1j * step[:, -1:] * rate.imag
    return response_of(scaled, rate, as_complex(layer["kernel.W"]), version)


ELEMENTS = {"Lambda[real]": slice(0, None, 2), "Lambda[imaginary]": slice(1, None, 2)}
STEP_ELEMENTS = {"log_dt[real]": slice(0, None, 2), "log_dt[imaginary]": slice(1, None, 2)}
WITHIN = {"kernel-length": str(STEPS)}


@pytest.mark.parametrize(
    ("layer", "assume"),
    [
        (softmax_layer(), WITHIN),
        (softmax_layer(growing=True), WITHIN),
        (softmax_layer(steps=2), WITHIN),
        (softmax_layer(growing=True), {"dss-version": "clip"}),
        (softmax_layer(growing=True), {"dss-version": "clip-no-scale"}),
        (exponential_layer(), {}),
        (exponential_layer(log_im=True), {}),
        (exponential_layer(), {"dss-version": "exp-no-scale"}),
    ],
    ids=lambda given: " ".join(given),
)
def test_the_kernel_of_dss(layer: dict[str, NDArray], assume: dict[str, str]) -> None:
    recurrence = read_layer(layer, DSS(), **assume)
    softmax = "kernel.Lambda" in layer
    version = assume.get("dss-version", "softmax" if softmax else "exp")
    rate = as_complex(layer["kernel.Lambda"]) if softmax else LAMBDA
    if version.startswith("clip"):
        rate = np.minimum(rate.real, 1e-4) + 1j * rate.imag
    expected = dss_kernel(layer, rate, version)
    assert_allclose(impulse_response(recurrence, STEPS), expected, rtol=0, atol=1e-12)
    assert recurrence.stable_by_construction == (not softmax)
    # A short kernel: differences fail near the poles of the gain, where e^(zL) = 1.
    short = assume | ({"kernel-length": "3"} if assume == WITHIN else {})
    steps = STEP_ELEMENTS if layer["kernel.log_dt"].ndim == 2 else {}
    check_derivatives(layer, DSS(), elements=ELEMENTS | steps, **short)


def test_the_softmax_of_a_long_kernel_is_minus_a_hold() -> None:
    layer = softmax_layer()
    endless = read_layer(layer, DSS())
    expected = -dss_kernel(layer, as_complex(layer["kernel.Lambda"]), "exp")
    assert_allclose(impulse_response(endless, STEPS), expected, rtol=0, atol=1e-12)
    long = read_layer(layer, DSS(), **{"kernel-length": "5000"})
    assert_allclose(np.exp(long.log_gain), np.exp(endless.log_gain), rtol=1e-12)
    check_derivatives(layer, DSS(), elements=ELEMENTS)


def test_the_flax_layer_keeps_a_rate_for_every_channel() -> None:
    layer = flax_layer()
    recurrence = read_layer(layer, DSS(), **{"kernel-length": str(STEPS)})
    assert recurrence.name == "params/layers_0/seq"
    part = {name.rpartition("/")[2]: values for name, values in layer.items()}
    rate = (part["Lambda_re"] + 1j * part["Lambda_im"]).T
    scaled = np.exp(part["log_step"].T) * rate
    expected = response_of(scaled, rate, as_complex(part["W"]), "softmax")
    assert_allclose(impulse_response(recurrence, STEPS), expected, rtol=0, atol=1e-12)
    check_derivatives(layer, DSS(), **{"kernel-length": "3"})


@pytest.mark.parametrize("exponential", ["true", "false"])
def test_the_gated_layer_has_no_step_size(exponential: str) -> None:
    layer = gated_layer()
    recurrence = read_layer(layer, DSS(), **{"imag-exp": exponential})
    part = {name.rpartition(".")[2]: values for name, values in layer.items()}
    frequency = part["Lambda_imag"]
    rate = -np.exp(part["Lambda_real"]) + 1j * (
        np.exp(frequency) if exponential == "true" else frequency
    )
    weights = (part["C_real"] + 1j * part["C_imag"])[None]
    expected = response_of(np.tile(rate, (H, 1)), rate, weights)
    assert_allclose(impulse_response(recurrence, STEPS), expected, rtol=0, atol=1e-12)
    check_derivatives(layer, DSS(), **{"imag-exp": exponential})


def test_a_rate_of_zero_sums_its_input() -> None:
    layer = softmax_layer()
    layer["kernel.Lambda"][0] = 0
    recurrence = read_layer(layer, DSS(), **{"dss-version": "clip"})
    assert_allclose(recurrence.log_eigenvalues[0], 0, atol=1e-149)
    step = np.exp(layer["kernel.log_dt"][0])
    assert_allclose(np.exp(recurrence.log_gain[0]), step, rtol=1e-12)
    check_derivatives(layer, DSS(), elements=ELEMENTS)
    assert np.isfinite(read_layer(layer, DSS(), **{"kernel-length": "12"}).log_gain).all()
    with pytest.raises(UsageError, match="not a number of steps"):
        read_layer(softmax_layer(), DSS(), **{"kernel-length": "-3"})
