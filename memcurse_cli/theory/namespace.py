"""Which library an array belongs to, so that the theory is written once for all of them."""

from __future__ import annotations

from typing import Any

import numpy as np


def array_namespace(array: Any) -> Any:
    """The module with the Array API functions for an array: NumPy itself, or a wrapped library."""
    if isinstance(array, np.ndarray | np.generic):
        return np
    import array_api_compat

    return array_api_compat.array_namespace(array)


def may_be_traced(array: Any) -> bool:
    """Whether an array may stand for values that are not known yet, as under `jax.jit`."""
    if isinstance(array, np.ndarray | np.generic):
        return False
    import array_api_compat

    return bool(array_api_compat.is_jax_array(array))
