"""What a student network is: initial values and outputs; its parameters are a plain dictionary."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

import numpy as np
from jax import Array
from numpy.typing import NDArray

if TYPE_CHECKING:
    from jaxtyping import Float

Parameters = Mapping[str, Array]
InitialValues = dict[str, NDArray[np.float64]]


class Network(Protocol):
    """A recurrent network with one input and one output, as pure functions of its parameters."""

    def initialise(self, random: np.random.Generator, units: int, modulus: float) -> InitialValues:
        """Initial values by the name that the checkpoint will give them.

        Args:
            random: the source of randomness.
            units: hidden units n.
            modulus: the smallest |λ|, for networks whose eigenvalues are set.
        """

    def outputs(
        self, parameters: Parameters, inputs: Float[Array, "batch horizon"]
    ) -> Float[Array, "batch horizon"]:
        """The outputs of every step of a batch of sequences, from a zero state."""
