"""The modal filters of StripedHyena and Evo 2 against the kernels that their code computes."""

from __future__ import annotations

import numpy as np
import pytest
from families.derivatives import check_derivatives, match_of, read_layer
from families.impulse import impulse_response
from numpy.testing import assert_allclose
from numpy.typing import NDArray

from memcurse_cli.checkpoints.memory import MemoryStore
from memcurse_cli.families.detect import detect
from memcurse_cli.families.state_space.diagonal import StripedHyena

FILTERS, N, STEPS = 3, 2, 12


def striped() -> dict[str, NDArray]:
    rng = np.random.default_rng(41)
    modulus, angle = rng.uniform(0.5, 1, (2, FILTERS, N, 1))
    poles = np.stack([modulus * np.cos(angle), modulus * np.sin(angle)], axis=-1)
    layer = {
        "poles": poles,
        "residues": rng.normal(size=(FILTERS, N, 1, 2)),
        "D": rng.normal(size=FILTERS),
        "short_filter_weight": rng.normal(size=(3 * FILTERS, 1, 3)),
        "short_filter_bias": rng.normal(size=3 * FILTERS),
    }
    return {f"backbone.blocks.0.filter.{role}": values for role, values in layer.items()}


def evo_2() -> dict[str, NDArray]:
    rng = np.random.default_rng(42)
    layer = {
        "log_poles": -rng.uniform(0.01, 2, (FILTERS, N, 1)),
        "residues": rng.normal(size=(FILTERS, N)),
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


def test_the_recurrence_is_that_of_a_step() -> None:
    """`step_iir`: iir_state = poles * iir_state + x1v, y = Σ residues * iir_state."""
    layer = striped()
    poles, residues = (
        layer[f"backbone.blocks.0.filter.{role}"][..., 0, :] @ np.array([1, 1j])
        for role in ("poles", "residues")
    )
    state, outputs = np.zeros((FILTERS, N), complex), []
    for step in range(STEPS):
        state = poles * state + (step == 0)
        outputs.append(np.sum(residues * state, axis=-1).real)
    response = impulse_response(read_layer(layer, StripedHyena()), STEPS)[0]
    assert_allclose(response.T, outputs, rtol=0, atol=1e-12)


def test_an_implicit_filter_is_no_recurrence() -> None:
    hyena = {
        "filter_fn.bias": np.ones(4),
        "filter_fn.pos_emb.z": np.ones((1, 16, 3)),
        "filter_fn.implicit_filter.0.weight": np.ones((8, 3)),
        "filter_fn.modulation.deltas": np.ones((1, 1, 4)),
    }
    assert match_of(hyena, StripedHyena()) == []
    other = {"f.poles": np.ones((3, 2, 2)), "f.residues": np.ones((3, 2, 2))}
    assert match_of(other, StripedHyena()) == []
