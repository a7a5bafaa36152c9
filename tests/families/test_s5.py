"""S5 against SciPy's discretisation, the original layer's output, and differences."""

from __future__ import annotations

import numpy as np
import pytest
from families.derivatives import check_derivatives, read_layer
from numpy.testing import assert_allclose
from numpy.typing import NDArray

from memcurse_cli.errors import UsageError
from memcurse_cli.families.state_space.s5 import S5

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


def as_complex(values: NDArray) -> NDArray:
    return values[..., 0] + 1j * values[..., 1]


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
