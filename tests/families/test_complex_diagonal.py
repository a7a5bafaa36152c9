"""The complex diagonal recurrence under each of its names."""

from __future__ import annotations

import numpy as np
import pytest
from families.derivatives import check_derivatives, match_of, read_layer
from numpy.testing import assert_allclose

from memcurse_cli.errors import TensorError
from memcurse_cli.families.state_space.diagonal import ComplexDiagonalRNN

FAMILY = ComplexDiagonalRNN()
MODULUS = np.array([0.3, 0.9, 1.1, 0.999])
ANGLE = np.array([0.1, -2.0, 3.1, 0.0])
EIGENVALUES = MODULUS * np.exp(1j * ANGLE)

FORMS: dict[str, dict[str, np.ndarray]] = {
    "A_re": {"A_re": EIGENVALUES.real, "A_im": EIGENVALUES.imag},
    "lambda_re": {"lambda_re": EIGENVALUES.real, "lambda_im": EIGENVALUES.imag},
    "Lambda_re": {"Lambda_re": EIGENVALUES.real, "Lambda_im": EIGENVALUES.imag},
    "lambda": {"lambda": EIGENVALUES},
    "Lambda": {"Lambda": EIGENVALUES},
    "lambda_": {"lambda_": EIGENVALUES},
    "A": {"A": EIGENVALUES},
    "polar": {"nu": MODULUS, "theta": ANGLE},
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_gives_the_same_recurrence(form: str) -> None:
    recurrence = read_layer({f"x.{name}": array for name, array in FORMS[form].items()}, FAMILY)
    assert recurrence.name == "x"
    assert_allclose(recurrence.log_eigenvalues, np.log(MODULUS) + 1j * ANGLE, atol=1e-15)
    assert_allclose(recurrence.log_gain, 0)
    assert not recurrence.stable_by_construction


@pytest.mark.parametrize("form", FORMS)
def test_derivatives(form: str) -> None:
    check_derivatives(FORMS[form], FAMILY, imaginary=(f"{form}[imaginary]",))


def test_a_negative_modulus_turns_the_angle() -> None:
    arrays = {"nu": np.array([-0.5, 0.0]), "theta": np.array([0.4, 0.3])}
    recurrence = read_layer(arrays, FAMILY)
    assert_allclose(np.exp(recurrence.log_eigenvalues), [-0.5 * np.exp(0.4j), 0], atol=1e-300)
    check_derivatives(arrays, FAMILY)


def test_the_decay_keeps_its_digits_near_the_unit_circle() -> None:
    real, imaginary = 0.6 * (1 - 1e-13), 0.8
    recurrence = read_layer({"A_re": np.array([real]), "A_im": np.array([imaginary])}, FAMILY)
    # log|λ| = ½ log(1 + s), s = a² + b² - 1, which integers give exactly
    (p, q), (r, t) = real.as_integer_ratio(), imaginary.as_integer_ratio()
    excess = ((p * t) ** 2 + (r * q) ** 2 - (q * t) ** 2) / (q * t) ** 2
    assert_allclose(recurrence.log_eigenvalues.real, [0.5 * np.log1p(excess)], rtol=1e-14)


@pytest.mark.parametrize("transposed", [False, True])
def test_readin_and_readout_in_parts_or_complex(transposed: bool) -> None:
    random = np.random.default_rng(2)
    B = random.normal(size=(4, 3)) + 1j * random.normal(size=(4, 3))
    C = random.normal(size=(2, 4)) + 1j * random.normal(size=(2, 4))
    stored_B, stored_C = (B.T, C.T) if transposed else (B, C)
    parts = FORMS["A_re"] | {
        "B_re": stored_B.real,
        "B_im": stored_B.imag,
        "C_real": stored_C.real,
        "C_imag": stored_C.imag,
        "D": np.ones(2),
    }
    for arrays in (parts, FORMS["A_re"] | {"B": stored_B, "C": stored_C}):
        recurrence = read_layer(arrays, FAMILY)
        assert recurrence.readin is not None
        assert recurrence.readout is not None
        assert_allclose(recurrence.readin, B)
        assert_allclose(recurrence.readout, C)


def test_a_single_input_may_be_a_vector() -> None:
    recurrence = read_layer(FORMS["A_re"] | {"B": np.ones(4), "C": np.ones(4)}, FAMILY)
    assert recurrence.readin is not None
    assert recurrence.readout is not None
    assert (recurrence.readin.shape, recurrence.readout.shape) == ((4, 1), (1, 4))


@pytest.mark.parametrize("step", ["log_step", "log_dt", "inv_dt", "dt", "gamma_log"])
def test_a_layer_with_a_step_size_is_another_family(step: str) -> None:
    assert match_of(FORMS["Lambda_re"] | {step: np.ones(4)}, FAMILY) == []
    assert match_of(FORMS["polar"] | {step: np.ones(4)}, FAMILY) == []


def test_a_real_vector_is_no_diagonal() -> None:
    assert match_of({"lambda": np.ones(4), "A": np.ones(3)}, FAMILY) == []


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"A_im": np.ones(3)}, r"A_im: its shape \(3\) does not fit, \(4\) is needed"),
        ({"A_re": np.array([0.1, np.nan, np.inf, 0])}, "A_re: 1 NaN and 1 inf of its 4"),
        ({"B": np.ones((5, 6))}, r"B: its shape \(5, 6\) does not fit a layer of 4 states"),
        ({"C": np.ones((2, 2, 4))}, r"C: its shape \(2, 2, 4\) does not fit"),
        ({"B_re": np.ones((4, 2)), "B_im": np.ones((4, 3))}, r"B_im: its shape \(4, 3\)"),
    ],
)
def test_what_does_not_fit_is_named(change: dict[str, np.ndarray], message: str) -> None:
    with pytest.raises(TensorError, match=message):
        read_layer(FORMS["A_re"] | change, FAMILY)
