"""The recurrent state that a layer of transformers leaves in its cache after an impulse."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import DynamicCache, PretrainedConfig

# The short convolution of four taps has seen the impulse to its end.
SETTLED = 6


def decay_of_the_state(
    layer: torch.nn.Module, config: PretrainedConfig, steps: int
) -> NDArray[np.float64]:
    """(heads, keys, values) the state after an impulse and zeros, over that ``steps`` earlier."""
    earlier, later = states_after_an_impulse(layer, config, steps)
    return later / earlier


def states_after_an_impulse(
    layer: torch.nn.Module, config: PretrainedConfig, steps: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The state once the convolution has let go of the impulse, and ``steps`` zeros later."""
    width = config.hidden_size
    states = []
    for length in (SETTLED, SETTLED + steps):
        cache = DynamicCache(config=config)
        impulse = torch.zeros(1, length, width, dtype=torch.float64)
        impulse[0, 0] = torch.linspace(-1, 1, width)
        with torch.no_grad():
            layer(impulse, cache_params=cache)
        state = cache.get_recurrent_state(layer.layer_idx)
        states.append((state[0] if isinstance(state, list) else state)[0].double().numpy())
    earlier, later = states
    return earlier, later
