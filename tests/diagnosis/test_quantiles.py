from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from memcurse_cli.schema.figures import Quantiles, quantiles


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=50))
def test_finite_quantiles_are_numpys(elements: list[float]) -> None:
    found = quantiles(np.array(elements))
    expected = np.quantile(elements, [0, 0.5, 0.9, 0.99, 1])
    np.testing.assert_allclose(
        [found.min, found.p50, found.p90, found.p99, found.max], expected, rtol=1e-12, atol=1e-9
    )
    assert found.divergent == 0


def test_a_divergent_element_is_counted_and_never_printed() -> None:
    found = quantiles(np.array([np.inf, 1.0, 2.0, 3.0]))
    assert found == Quantiles(1.0, 2.5, None, None, None, divergent=1)


def test_nan_is_a_defect_of_the_caller() -> None:
    with pytest.raises(ValueError, match="not a number"):
        quantiles(np.array([1.0, np.nan]))
