from __future__ import annotations

import numpy as np
import pytest
from families.derivatives import read_found
from families.examples import drawn
from families.impulse import impulse_response
from msgspec.structs import replace

from memcurse_cli.families.recurrence import Recurrence
from memcurse_cli.families.rewriting import Rewriting, rewrite
from memcurse_cli.theory.parametrization import INVERTIBLE

STEPS = 40
RANDOM = np.random.default_rng(5)


def lru() -> dict[str, np.ndarray]:
    # Angles beyond π stand for eigenvalues in the lower half plane.
    return drawn("lru", 5) | {"theta_log": np.log(np.linspace(0.1, 6.2, 4))}


def dense(size: int = 6) -> dict[str, np.ndarray]:
    matrix = RANDOM.normal(size=(size, size))
    return {
        "A": 0.8 * matrix / np.abs(np.linalg.eigvals(matrix)).max(),
        "B": RANDOM.normal(size=(size, 2)),
        "C": RANDOM.normal(size=(3, size)),
    }


def response(layer: Recurrence) -> np.ndarray:
    """``Re[C λᵏ γ B]``, or ``C Aᵏ B``, over steps."""
    if layer.dense is None:
        return impulse_response(layer, STEPS)
    powers = [np.linalg.matrix_power(layer.dense.matrix, k) for k in range(STEPS)]
    return np.stack([(layer.readout @ power @ layer.readin).real for power in powers], axis=-1)


VERSIONS = [
    Rewriting(name, gain)
    for name in (None, *INVERTIBLE)
    for gain in ("held", "own", "coupled")
    if (name, gain) != (None, "held")
]


@pytest.mark.parametrize("rewriting", VERSIONS)
def test_a_rewritten_layer_has_the_same_output(rewriting: Rewriting) -> None:
    layer = read_found(lru())
    found = rewrite(layer, rewriting)
    assert (found.left_out, found.reason) == (0, None)
    np.testing.assert_allclose(response(found.recurrence), response(layer), rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("rewriting", [one for one in VERSIONS if one.parametrization is not None])
@pytest.mark.parametrize("size", [6, 7])
def test_a_dense_layer_becomes_the_network_of_its_eigenvalues(
    rewriting: Rewriting, size: int
) -> None:
    layer = read_found(dense(size))
    found = rewrite(layer, rewriting).recurrence
    assert found.dense is None
    assert size / 2 <= found.size < size  # one of each conjugate pair
    np.testing.assert_allclose(response(found), response(layer), rtol=1e-9, atol=1e-10)


def test_eigenvalues_outside_the_unit_disk_are_left_out_where_they_have_no_value() -> None:
    tensors = {"lambda_re": np.array([0.5, 1.2, 0.1]), "lambda_im": np.array([0.1, 0.3, 1.5])}
    layer = read_found(tensors)
    for name in INVERTIBLE:
        found = rewrite(layer, Rewriting(name))
        stable = name in ("lru", "optimal", "s4")
        assert (found.left_out, found.recurrence.size) == ((2, 1) if stable else (0, 3))
        assert found.recurrence.stable_by_construction == stable
        normalised = rewrite(layer, Rewriting(name, "own"))
        assert normalised.left_out == 2
    own = rewrite(layer, Rewriting(None, "own")).recurrence
    assert [group.name for group in own.parameters] == ["lambda_re", "lambda_im", "gamma_log"]
    assert [group.values.tolist() for group in own.parameters][:2] == [[0.5], [0.1]]


def test_a_layer_without_a_stable_eigenvalue_says_so() -> None:
    layer = read_found({"lambda_re": np.array([1.5]), "lambda_im": np.array([0.0])})
    assert rewrite(layer, Rewriting("lru")) == (None, 1, "every eigenvalue has |λ| >= 1")
    assert rewrite(layer, Rewriting("polar")).recurrence is not None


def test_an_eigenbasis_without_digits_gives_no_readin() -> None:
    # Real eigenvalues: of a conjugate pair two columns that are alike in part would be no defect.
    layer = read_found(dense() | {"A": np.diag(np.linspace(0.1, 0.8, 6)) + np.eye(6, k=1) / 4})
    vectors = layer.dense.eigenvectors.copy()
    vectors[:, 0] = vectors[:, 1] + 1e-12 * vectors[:, 0]
    broken = replace(layer, dense=replace(layer.dense, eigenvectors=vectors))
    found = rewrite(broken, Rewriting("lru"))
    assert found.recurrence.readin is None
    assert "κ(P)" in found.reason
