"""The diagonal layers and S5 against their own steps, and differences."""

from __future__ import annotations

import numpy as np
import pytest
from families.derivatives import check_derivatives, match_of, read_layer
from families.impulse import impulse_response
from families.oracles import as_complex
from numpy.testing import assert_allclose
from numpy.typing import NDArray

from memcurse_cli.checkpoints.open import MemoryStore
from memcurse_cli.errors import UsageError
from memcurse_cli.families.detect import detect
from memcurse_cli.families.state_space.diagonal import LRU, ComplexDiagonalRNN, StripedHyena
from memcurse_cli.families.state_space.s4d import S5

RANDOM = np.random.default_rng(4)
N, INPUTS, OUTPUTS = 5, 2, 3
NU = RANDOM.normal(size=N) - 1
THETA = RANDOM.normal(size=N)
GAMMA = RANDOM.normal(size=N)
B = RANDOM.normal(size=(N, INPUTS)) + 1j * RANDOM.normal(size=(N, INPUTS))
C = RANDOM.normal(size=(OUTPUTS, N)) + 1j * RANDOM.normal(size=(OUTPUTS, N))
EIGENVALUES = np.exp(-np.exp(NU) + 1j * np.exp(THETA))
MINIMAL = {"nu_log": NU, "theta_log": THETA, "gamma_log": GAMMA}

PORTS: dict[str, dict[str, np.ndarray]] = {
    "minimal-LRU": MINIMAL
    | {"B_re": B.real, "B_im": B.imag, "C_re": C.real, "C_im": C.imag, "D": np.ones(OUTPUTS)},
    "complex B and C": MINIMAL | {"B": B, "C": C, "D": np.ones((OUTPUTS, INPUTS))},
    "names without log": {"nu": NU, "theta": THETA, "gamma_log": GAMMA, "B": B, "C": C},
    "LRURec": {
        "params_log": np.stack([NU, THETA, GAMMA]),
        "in_proj.weight": B,
        "in_proj.bias": np.zeros(N) + 0j,
        "out_proj.weight": C,
    },
    "an axis for the batch": {
        **{role: values[None] for role, values in MINIMAL.items()},
        "B_real": B.real,
        "B_img": B.imag,
        "C_real": C.real,
        "C_img": C.imag,
    },
    "stacked by columns": {"params_log": np.stack([NU, THETA, GAMMA], axis=1)},
}


@pytest.mark.parametrize("port", PORTS)
def test_every_port_gives_the_same_recurrence(port: str) -> None:
    arrays = {f"blocks.0.lru.{name}": array for name, array in PORTS[port].items()}
    recurrence = read_layer(arrays, LRU())
    assert recurrence.name == "blocks.0.lru"
    assert recurrence.assumptions == ()
    assert_allclose(np.exp(recurrence.log_eigenvalues), EIGENVALUES, rtol=1e-14)
    assert_allclose(recurrence.log_eigenvalues.real, -np.exp(NU), rtol=1e-15)
    assert_allclose(recurrence.log_gain, GAMMA)
    assert [group.name for group in recurrence.parameters] == ["nu_log", "theta_log", "gamma_log"]
    assert recurrence.stable_by_construction
    assert not recurrence.conjugate_pairs
    if port != "stacked by columns":
        assert_allclose(recurrence.readin, B)
        assert_allclose(recurrence.readout, C)
    elements = {}
    if "params_log" in PORTS[port]:
        by_rows = PORTS[port]["params_log"].shape[0] == 3
        for index, name in enumerate(MINIMAL):
            rows = slice(index * N, (index + 1) * N)
            elements[name] = rows if by_rows else slice(index, None, 3)
    check_derivatives(PORTS[port], LRU(), elements=elements)


def test_nu_and_theta_may_be_what_they_are_called() -> None:
    """`LRU.get_diag_lambda` of online LRU: both are exponentiated only with exp_param."""
    port = PORTS["names without log"] | {"nu": np.exp(NU) - 0.4, "theta": np.exp(THETA)}
    assume = {"lru-exponential": "false"}
    recurrence = read_layer(port, LRU(), **assume)
    assert_allclose(recurrence.log_eigenvalues, -port["nu"] + 1j * port["theta"], rtol=1e-14)
    assert (recurrence.log_eigenvalues.real > 0).any()
    assert not recurrence.stable_by_construction
    check_derivatives(port, LRU(), **assume)
    # The names of the logarithms say what they are.
    minimal = read_layer(MINIMAL, LRU(), **assume)
    assert_allclose(np.exp(minimal.log_eigenvalues), EIGENVALUES, rtol=1e-14)


def test_without_gamma_the_gain_is_assumed() -> None:
    arrays = {"nu_log": NU, "theta_log": THETA}
    assumed = read_layer(arrays, LRU())
    assert_allclose(assumed.log_gain, 0)
    assert "gain" in assumed.assumptions[0]
    computed = read_layer(arrays, LRU(), normalization="lru")
    assert_allclose(np.exp(computed.log_gain), np.sqrt(1 - np.abs(EIGENVALUES) ** 2))
    assert computed.assumptions == ()
    check_derivatives(arrays, LRU(), normalization="none")
    check_derivatives(arrays, LRU(), normalization="lru")


def test_extremes_stay_finite() -> None:
    arrays = {"nu_log": np.array([-800.0, 800.0, -27.6]), "theta_log": np.array([-900.0, 3.0, 1.0])}
    for normalization in ("none", "lru"):
        recurrence = read_layer(arrays, LRU(), normalization=normalization)
        assert np.isfinite(recurrence.log_eigenvalues).all()
        assert np.isfinite(recurrence.log_gain).all()
        for group in recurrence.parameters:
            assert np.isfinite(group.eigenvalue_derivative).all()
    assert_allclose(recurrence.log_eigenvalues[2].real, -np.exp(-27.6), rtol=1e-15)
    # decay → 0: γ² = 1 - |λ|² = 2 decay, so d log γ / d nu_log = ½
    gain_derivative = recurrence.parameters[0].log_gain_derivative
    assert_allclose(gain_derivative[2], 0.5, rtol=1e-11)


def test_a_readout_of_two_directions_is_left_out() -> None:
    arrays = MINIMAL | {"C_re": np.ones((3, 2 * N)), "C_im": np.ones((3, 2 * N))}
    recurrence = read_layer(arrays, LRU())
    assert recurrence.readout is None
    assert "backward" in recurrence.assumptions[0]


FAMILY = ComplexDiagonalRNN()
MODULUS = np.array([0.3, 0.9, 1.1, 0.999])
ANGLE = np.array([0.1, -2.0, 3.1, 0.0])
FREE = MODULUS * np.exp(1j * ANGLE)

FORMS: dict[str, dict[str, np.ndarray]] = {
    **{f"{n}_re": {f"{n}_re": FREE.real, f"{n}_im": FREE.imag} for n in ("A", "lambda", "Lambda")},
    **{name: {name: FREE} for name in ("lambda", "Lambda", "lambda_", "A")},
    "polar": {"nu": MODULUS, "theta": ANGLE},
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_gives_the_same_recurrence(form: str) -> None:
    recurrence = read_layer({f"x.{name}": array for name, array in FORMS[form].items()}, FAMILY)
    assert recurrence.name == "x"
    assert_allclose(recurrence.log_eigenvalues, np.log(MODULUS) + 1j * ANGLE, atol=1e-15)
    assert_allclose(recurrence.log_gain, 0)
    assert not recurrence.stable_by_construction
    check_derivatives(FORMS[form], FAMILY, imaginary=(f"{form}[imaginary]",))


def test_the_decay_keeps_its_digits_near_the_unit_circle() -> None:
    real, imaginary = 0.6 * (1 - 1e-13), 0.8
    recurrence = read_layer({"A_re": np.array([real]), "A_im": np.array([imaginary])}, FAMILY)
    # log|λ| = ½ log(1 + s), s = a² + b² - 1, which integers give exactly
    (p, q), (r, t) = real.as_integer_ratio(), imaginary.as_integer_ratio()
    excess = ((p * t) ** 2 + (r * q) ** 2 - (q * t) ** 2) / (q * t) ** 2
    assert_allclose(recurrence.log_eigenvalues.real, [0.5 * np.log1p(excess)], rtol=1e-14)


@pytest.mark.parametrize("step", ["log_step", "log_dt", "inv_dt", "dt", "gamma_log"])
def test_a_layer_with_a_step_size_is_another_family(step: str) -> None:
    assert match_of(FORMS["Lambda_re"] | {step: np.ones(4)}, FAMILY) == []
    assert match_of(FORMS["polar"] | {step: np.ones(4)}, FAMILY) == []


FILTERS, MODES, STEPS = 3, 2, 12


def striped() -> dict[str, NDArray]:
    rng = np.random.default_rng(41)
    modulus, angle = rng.uniform(0.5, 1, (2, FILTERS, MODES, 1))
    poles = np.stack([modulus * np.cos(angle), modulus * np.sin(angle)], axis=-1)
    layer = {
        "poles": poles,
        "residues": rng.normal(size=(FILTERS, MODES, 1, 2)),
        "D": rng.normal(size=FILTERS),
        "short_filter_weight": rng.normal(size=(3 * FILTERS, 1, 3)),
        "short_filter_bias": rng.normal(size=3 * FILTERS),
    }
    return {f"backbone.blocks.0.filter.{role}": values for role, values in layer.items()}


def evo_2() -> dict[str, NDArray]:
    rng = np.random.default_rng(42)
    layer = {
        "log_poles": -rng.uniform(0.01, 2, (FILTERS, MODES, 1)),
        "residues": rng.normal(size=(FILTERS, MODES)),
        "D": rng.normal(size=FILTERS),
        "short_filter_weight": rng.normal(size=(3 * FILTERS, 1, 3)),
    }
    return {f"blocks.2.filter.{role}": values for role, values in layer.items()}


def kernel(layer: dict[str, NDArray]) -> NDArray:
    """``compute_filter`` of each: (filters, steps)."""
    roles = {name.rpartition(".")[2]: values for name, values in layer.items()}
    lags = np.arange(STEPS)
    if "poles" in roles:
        poles, residues = (roles[name] @ np.array([1, 1j]) for name in ("poles", "residues"))
        return (residues * np.exp(np.log(poles) * lags)).real.sum(1)
    return (roles["residues"][..., None] * np.exp(roles["log_poles"] * lags)).sum(1)


@pytest.mark.parametrize("layer", [striped(), evo_2()], ids=["StripedHyena", "Evo 2"])
def test_the_response_to_an_impulse_is_the_library_s_filter(layer: dict[str, NDArray]) -> None:
    ((family, match),) = detect(MemoryStore(layer).tensors)
    assert family.name == "striped_hyena"
    assert match.layer.endswith(".filter")
    recurrence = read_layer(layer, StripedHyena())
    assert_allclose(impulse_response(recurrence, STEPS)[0], kernel(layer), rtol=0, atol=1e-12)
    assert not recurrence.stable_by_construction
    assert {group.matrix for group in recurrence.projections} == {"C", "D"}
    check_derivatives(layer, StripedHyena())


P, H = 4, 3


def jax_layer(*, bidirectional: str = "") -> dict[str, NDArray]:
    rng = np.random.default_rng(3)
    layer = {
        "Lambda_re": -rng.uniform(0.1, 1, P),
        "Lambda_im": rng.uniform(-8, 8, P),
        "B": rng.normal(size=(P, H, 2)),
        "log_step": rng.uniform(-3, -1, (P, 1)),
        "D": rng.normal(size=H),
    }
    if bidirectional == "two":
        layer |= {"C1": rng.normal(size=(H, P, 2)), "C2": rng.normal(size=(H, P, 2))}
    else:
        width = 2 * P if bidirectional == "wide" else P
        layer["C"] = rng.normal(size=(H, width, 2))
    return {f"params/seq/{role}": values for role, values in layer.items()}


def torch_layer() -> dict[str, NDArray]:
    layer = {name.removeprefix("params/"): values for name, values in jax_layer().items()}
    layer = {name.replace("/", "."): values for name, values in layer.items()}
    layer["seq.Lambda"] = layer.pop("seq.Lambda_re") + 1j * layer.pop("seq.Lambda_im")
    layer["seq.C"] = as_complex(layer["seq.C"])
    layer["seq.log_step"] = layer["seq.log_step"][:, 0]
    return layer


def test_the_step_can_be_rescaled() -> None:
    layer = jax_layer()
    recurrence = read_layer(layer, S5(), **{"step-rescale": "0.5"})
    halved = {**layer, "params/seq/log_step": layer["params/seq/log_step"] + np.log(0.5)}
    expected = read_layer(halved, S5())
    assert_allclose(recurrence.log_eigenvalues, expected.log_eigenvalues, rtol=1e-12)
    assert_allclose(recurrence.log_gain, expected.log_gain, rtol=1e-12)
    assert recurrence.assumptions[-1].startswith("step-rescale=0.5 (as given)")
    check_derivatives(layer, S5(), **{"step-rescale": "0.5"})
    with pytest.raises(UsageError, match="inf is not a positive number"):
        read_layer(layer, S5(), **{"step-rescale": "inf"})


@pytest.mark.parametrize("method", ["zoh", "bilinear"])
def test_derivatives(method: str) -> None:
    layer = jax_layer()
    layer["params/seq/Lambda_re"] -= 1
    check_derivatives(layer, S5(), discretization=method)
    check_derivatives(torch_layer(), S5(), imaginary=("Lambda_im",), discretization=method)


def test_a_clipped_eigenvalue_does_not_follow_its_parameter() -> None:
    layer = jax_layer()
    layer["params/seq/Lambda_re"][1] = 0.3
    free = read_layer(layer, S5())
    assert free.log_eigenvalues.real[1] > 0
    clipped = read_layer(layer, S5(), **{"clip-eigenvalues": "true"})
    assert clipped.stable_by_construction
    step = np.exp(layer["params/seq/log_step"][:, 0])
    assert_allclose(clipped.log_eigenvalues.real[1], -1e-4 * step[1], rtol=1e-14)
    check_derivatives(layer, S5(), **{"clip-eigenvalues": "true"})


@pytest.mark.parametrize("bidirectional", ["two", "wide"])
def test_both_directions_read_out(bidirectional: str) -> None:
    layer = jax_layer(bidirectional=bidirectional)
    recurrence = read_layer(layer, S5())
    if bidirectional == "two":
        halves = [as_complex(layer["params/seq/C1"]), as_complex(layer["params/seq/C2"])]
    else:
        halves = np.split(as_complex(layer["params/seq/C"]), 2, axis=1)
    assert_allclose(recurrence.readout, np.concatenate(halves))
    assert "both directions" in recurrence.assumptions[-1]
