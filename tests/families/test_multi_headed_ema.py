"""The moving average of mega-pytorch against its own kernel, and differences."""

from __future__ import annotations

import numpy as np
import pytest
from families.derivatives import check_derivatives, match_of, read_layer
from families.impulse import impulse_response
from numpy.testing import assert_allclose
from numpy.typing import NDArray

from memcurse_cli.families.state_space.ema import MultiHeadedEMA

RNG = np.random.default_rng(4)
HEADS, CHANNELS, STEPS = 3, 4, 20
ONE_WAY = {
    "alphas": RNG.normal(size=HEADS),
    "dampen_factors": 2 * RNG.normal(size=HEADS),
    "expansion": RNG.normal(size=(HEADS, CHANNELS)),
    "reduction": RNG.normal(size=(HEADS, CHANNELS)),
}
BOTH_WAYS = {
    **ONE_WAY,
    "reverse_alphas": RNG.normal(size=HEADS),
    "reverse_dampen_factors": RNG.normal(size=HEADS),
    "expansion": RNG.normal(size=(2 * HEADS, CHANNELS)),
    "reduction": RNG.normal(size=(2 * HEADS, CHANNELS)),
}


def kernel(alphas: NDArray[np.float64], dampen_factors: NDArray[np.float64]) -> NDArray[np.float64]:
    """(steps, heads), as `apply_learned_ema_with_damping` writes it."""
    alpha, damping = (1 / (1 + np.exp(-one)) for one in (alphas, dampen_factors))
    return alpha * ((1 - alpha) * damping) ** np.arange(STEPS)[:, None]


def test_the_impulse_response_is_the_layer_s_kernel() -> None:
    recurrence = read_layer({f"ema.{name}": a for name, a in ONE_WAY.items()}, MultiHeadedEMA())
    assert recurrence.name == "ema"
    expected = np.einsum(
        "lh,hd,hd->dl",
        kernel(ONE_WAY["alphas"], ONE_WAY["dampen_factors"]),
        ONE_WAY["expansion"],
        ONE_WAY["reduction"],
    )
    (found,) = impulse_response(recurrence, STEPS)
    assert_allclose(found, expected, rtol=1e-12, atol=1e-15)


def test_both_directions_have_their_rates() -> None:
    recurrence = read_layer(BOTH_WAYS, MultiHeadedEMA())
    forth = kernel(BOTH_WAYS["alphas"], BOTH_WAYS["dampen_factors"])
    back = kernel(BOTH_WAYS["reverse_alphas"], BOTH_WAYS["reverse_dampen_factors"])
    decayed = np.exp(recurrence.log_gain + 7 * recurrence.log_eigenvalues)
    assert_allclose(decayed, np.repeat(np.concatenate((forth[7], back[7])), CHANNELS), rtol=1e-12)
    assert recurrence.readin is None
    assert "backward" in recurrence.assumptions[0]


@pytest.mark.parametrize("arrays", [ONE_WAY, BOTH_WAYS])
def test_derivatives(arrays: dict[str, NDArray[np.float64]]) -> None:
    check_derivatives(arrays, MultiHeadedEMA())


@pytest.mark.parametrize(
    "change",
    [
        {"alphas": np.zeros(2)},
        {"alphas": np.zeros((HEADS, 1)), "dampen_factors": np.zeros((HEADS, 1))},
        {"expansion": np.zeros((HEADS, 5))},
        {"expansion": np.zeros(3), "reduction": np.zeros(3)},
        {"reverse_alphas": np.zeros(HEADS)},
        {"reverse_alphas": np.zeros(HEADS), "reverse_dampen_factors": np.zeros(HEADS)},
    ],
)
def test_other_shapes_are_not_it(change: dict[str, np.ndarray]) -> None:
    assert match_of({**ONE_WAY, **change}, MultiHeadedEMA()) == []
