"""SpeechBrain's light GRU against its own step in torch, and differences."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from families.derivatives import check_derivatives, match_of, read_layer
from families.simulated_gates import check_bands, gates_of
from numpy.testing import assert_allclose

from memcurse_cli import inspect
from memcurse_cli.errors import TensorError, UsageError
from memcurse_cli.families.cells.light_gru import LIGHT_GRU

WIDTH, SIZE = 3, 4


def layer(norm: str, inputs: int = WIDTH, size: int = SIZE) -> torch.nn.Module:
    """What `LiGRU_Layer` registers, its normalisation trained a little."""
    torch.manual_seed(1)
    made = torch.nn.Module()
    made.w = torch.nn.Linear(inputs, 2 * size, bias=False)
    made.u = torch.nn.Linear(size, 2 * size, bias=False)
    if norm == "batchnorm":
        made.norm = torch.nn.BatchNorm1d(2 * size, momentum=0.3)
    else:
        made.norm = torch.nn.LayerNorm(2 * size)
    made.double()
    for _ in range(20):
        made.norm(1 + 2 * torch.randn(30, 2 * size, dtype=torch.float64))
    with torch.no_grad():
        for parameter in made.norm.parameters():
            parameter += 0.5 * torch.randn_like(parameter)
    return made.eval()


def arrays_of(norm: str) -> dict[str, np.ndarray]:
    state = layer(norm).state_dict()
    return {name: tensor.numpy() for name, tensor in state.items() if tensor.ndim}


@pytest.mark.parametrize("norm", ["batchnorm", "layernorm"])
def test_the_state_decays_as_the_library_s_step(norm: str) -> None:
    """h' = z h + (1-z) relu(n) from a state so small that no candidate rises above 0."""
    made = layer(norm)
    recurrence = read_layer(
        {f"enc.rnn.0.{name}": array for name, array in arrays_of(norm).items()}, LIGHT_GRU
    )
    assert recurrence.name == "enc.rnn.0"
    with torch.no_grad():
        normal = made.norm(made.w(torch.zeros(1, WIDTH, dtype=torch.float64)))

        def step(h: torch.Tensor) -> torch.Tensor:
            gates = normal + made.u(h)
            candidate, z = gates.chunk(2, 1)
            return torch.sigmoid(z) * h + (1 - torch.sigmoid(z)) * 0 * torch.relu(candidate)

        small = torch.full((1, SIZE), 1e-9, dtype=torch.float64)
        kept = (step(small) / small)[0].numpy()
    assert_allclose(np.exp(recurrence.log_eigenvalues), kept, rtol=1e-8)
    assert_allclose(np.exp(recurrence.log_gain), 1 - kept, rtol=1e-8)


@pytest.mark.parametrize("norm", ["batchnorm", "layernorm"])
def test_derivatives(norm: str) -> None:
    rows = slice(SIZE, 2 * SIZE)
    elements = {"norm.bias[update]": rows, "norm.weight[update]": rows}
    check_derivatives(arrays_of(norm), LIGHT_GRU, elements=elements)


def test_a_normalised_state_adds_the_bias_of_its_norm() -> None:
    """SLiGRU's gates are N(W x) + LN(U h), and LN(0) is its bias."""
    torch.manual_seed(2)
    norm = torch.nn.LayerNorm(2 * SIZE).double()
    torch.nn.init.normal_(norm.bias)
    arrays = arrays_of("batchnorm") | {
        f"layer_norm.{name}": tensor.numpy() for name, tensor in norm.state_dict().items()
    }
    with torch.no_grad():
        normal = layer("batchnorm").norm(torch.zeros(1, 2 * SIZE, dtype=torch.float64))
        gates = normal + norm(torch.zeros(1, 2 * SIZE, dtype=torch.float64))
    kept = torch.sigmoid(gates.chunk(2, 1)[1])[0].numpy()
    assert_allclose(np.exp(read_layer(arrays, LIGHT_GRU).log_eigenvalues), kept, rtol=1e-12)
    rows = slice(SIZE, 2 * SIZE)
    names = ("norm.bias[update]", "norm.weight[update]", "layer_norm.bias[update]")
    check_derivatives(arrays, LIGHT_GRU, elements=dict.fromkeys(names, rows))
    assert "stands between" in (gates_of(arrays).reason or "")


def test_the_scale_is_a_group_only_where_it_moves_something() -> None:
    names = {
        norm: [group.name for group in read_layer(arrays_of(norm), LIGHT_GRU).parameters]
        for norm in ("batchnorm", "layernorm")
    }
    assert names["batchnorm"] == ["norm.bias[update]", "norm.weight[update]"]
    assert names["layernorm"] == ["norm.bias[update]"]


def test_the_hidden_weights_on_request() -> None:
    arrays = arrays_of("batchnorm")
    layer_report = inspect(arrays, spectra=True, gates=True).layers[0]
    radii = {one.name: one.spectral_radius for one in layer_report.hidden_spectra}
    assert radii["update"] == pytest.approx(
        np.abs(np.linalg.eigvals(arrays["u.weight"][SIZE:])).max()
    )


@pytest.mark.parametrize("scale", [1.0, 3.0])
@pytest.mark.parametrize("norm", ["batchnorm", "layernorm"])
def test_the_band_and_the_state_are_those_of_the_layer(norm: str, scale: float) -> None:
    torch.manual_seed(3)
    made = layer(norm, inputs=40, size=128)
    with torch.no_grad():
        made.u.weight.mul_(0.5)
        made.norm.bias[128:] += 1
    arrays = {name: t.numpy() for name, t in made.state_dict().items() if t.ndim}
    gates, squares = [], []
    with torch.no_grad():
        seen = made.norm(made.w(scale * torch.randn(6000, 40, dtype=torch.float64)))
        h = torch.zeros(128, dtype=torch.float64)
        for step, driven in enumerate(seen):
            candidate, gate = (driven + made.u(h)).chunk(2)
            z = torch.sigmoid(gate)
            h = z * h + (1 - z) * torch.relu(candidate)
            if step > 500:
                gates.append(z.numpy())
                squares.append(float((h**2).mean()))
    bands = gates_of(arrays, input_scale=scale)
    check_bands(bands, np.array(gates))
    assert_allclose(bands.hidden_second_moment, np.mean(squares), rtol=0.15)
    (moved,) = bands.parameters  # of the scale what it moves follows the input
    assert moved.name == "norm.bias[update]"


def test_a_state_that_grows_is_told() -> None:
    arrays = arrays_of("batchnorm")
    arrays["u.weight"] = 10 * np.abs(arrays["u.weight"])
    gates = gates_of(arrays)
    assert gates.bands == ()
    assert "grows without bound" in (gates.reason or "")


def test_what_cannot_be_read() -> None:
    arrays = arrays_of("batchnorm")
    with pytest.raises(TensorError, match="running variance"):
        read_layer({**arrays, "norm.running_var": -np.ones(2 * SIZE)}, LIGHT_GRU)
    with pytest.raises(UsageError, match="batch_norm_epsilon"):
        read_layer(arrays, LIGHT_GRU, batch_norm_epsilon="0")


@pytest.mark.parametrize(
    "change",
    [
        {"u.weight": np.zeros((3 * SIZE, SIZE))},
        {"w.weight": np.zeros((SIZE, WIDTH))},
        {"norm.bias": np.zeros(SIZE)},
        {"norm.running_mean": np.zeros(1)},
    ],
)
def test_other_shapes_are_not_it(change: dict[str, np.ndarray]) -> None:
    assert match_of({**arrays_of("batchnorm"), **change}, LIGHT_GRU) == []


def test_half_a_running_average_is_not_it() -> None:
    arrays = arrays_of("batchnorm")
    del arrays["norm.running_var"]
    assert match_of(arrays, LIGHT_GRU) == []
