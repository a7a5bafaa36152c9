"""AllenNLP's cells, written out in torch as its forward has them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from families.derivatives import check_derivatives, match_of, read_layer
from families.oracles import assert_same_spectrum
from numpy.testing import assert_allclose

from memcurse_cli.checkpoints.memory import MemoryStore
from memcurse_cli.families.cells.torch_libraries import ALLENNLP_LSTM
from memcurse_cli.families.detect import detect
from memcurse_cli.families.family import ReadOptions

H, P, INPUTS = 4, 3, 5
KINDS: dict[str, dict[str, tuple[int, ...]]] = {
    "elmo": {
        "input_linearity.weight": (4 * H, INPUTS),
        "state_linearity.weight": (4 * H, P),
        "state_linearity.bias": (4 * H,),
        "state_projection.weight": (P, H),
    },
    "highway": {
        "input_linearity.weight": (6 * H, INPUTS),
        "input_linearity.bias": (6 * H,),
        "state_linearity.weight": (5 * H, H),
        "state_linearity.bias": (5 * H,),
    },
    "plain": {
        "input_linearity.weight": (4 * H, INPUTS),
        "state_linearity.weight": (4 * H, H),
        "state_linearity.bias": (4 * H,),
    },
}
LAYER = "_elmo_lstm._elmo_lstm.forward_layer_0"


def made(kind: str) -> dict[str, np.ndarray]:
    generator = np.random.default_rng(8)
    shapes = KINDS[kind].items()
    return {f"{LAYER}.{name}": generator.normal(size=shape) for name, shape in shapes}


def step(arrays: dict[str, np.ndarray], state: torch.Tensor) -> torch.Tensor:
    """[h, c] after LstmCellWithProjection's or AugmentedLstm's step at zero input."""
    kept = {name.removeprefix(f"{LAYER}."): torch.tensor(a) for name, a in arrays.items()}
    hidden, cell = state[:-H], state[-H:]
    rows = kept["state_linearity.weight"] @ hidden + kept["state_linearity.bias"]
    shown = kept.get("input_linearity.bias", torch.zeros(6 * H, dtype=state.dtype))

    def gate(index: int) -> torch.Tensor:
        block = slice(index * H, (index + 1) * H)
        return rows[block] + shown[block]

    cell = torch.sigmoid(gate(0)) * torch.tanh(gate(2)) + torch.sigmoid(gate(1)) * cell
    output = torch.sigmoid(gate(3)) * torch.tanh(cell)
    if "input_linearity.bias" in kept:
        highway = torch.sigmoid(gate(4))
        output = highway * output + (1 - highway) * shown[5 * H :]
    if "state_projection.weight" in kept:
        output = kept["state_projection.weight"] @ output
    return torch.cat([output, cell])


@pytest.mark.parametrize("kind", KINDS)
def test_lambda_is_the_slope_of_the_cell_at_zero(kind: str) -> None:
    arrays = made(kind)
    store = MemoryStore(arrays)
    ((family, match),) = detect(store.tensors)
    assert (family.name, match.layer) == ("allennlp_lstm", LAYER)
    recurrence = family.read(store, match, ReadOptions(spectra=True))
    outputs = P if kind == "elmo" else H
    zero = torch.zeros(outputs + H, dtype=torch.float64)
    jacobian = torch.autograd.functional.jacobian(lambda s: step(arrays, s), zero).numpy()
    slope = np.diag(jacobian)[-H:]
    assert_allclose(np.exp(recurrence.log_eigenvalues.real), slope, rtol=1e-12)
    assert recurrence.hidden is not None
    if kind == "highway":
        assert recurrence.hidden.jacobian is None
        weight = arrays[f"{LAYER}.state_linearity.weight"][H : 2 * H]
        expected = np.linalg.eigvals(weight)
        assert_same_spectrum(recurrence.hidden.gates["forget"], expected, 1e-12)
    else:
        assert recurrence.hidden.jacobian is not None
        expected = np.linalg.eigvals(jacobian)
        assert_same_spectrum(recurrence.hidden.jacobian, expected, 1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_derivatives(kind: str) -> None:
    sides = ["state_linearity", *(["input_linearity"] if kind == "highway" else [])]
    elements = {
        f"{side}.bias[{gate}]": slice(index * H, (index + 1) * H)
        for side in sides
        for index, gate in enumerate(("input", "forget"))
    }
    check_derivatives(made(kind), ALLENNLP_LSTM, elements=elements)


@pytest.mark.parametrize("kind", KINDS)
def test_what_drives_the_gates_is_read_where_the_state_is_an_lstm_s(kind: str) -> None:
    arrays = made(kind)
    store = MemoryStore(arrays)
    (match,) = match_of(arrays, ALLENNLP_LSTM)
    drive = ALLENNLP_LSTM.read(store, match, ReadOptions(gates=True)).gate
    assert (drive is None) == (kind == "highway")
    if drive is not None:
        rows = arrays[f"{LAYER}.state_linearity.weight"][H : 2 * H]
        assert_allclose(drive.gate.norms.hidden, np.sum(rows**2, axis=1))


def test_without_a_bias() -> None:
    arrays = {name: array for name, array in made("plain").items() if "bias" not in name}
    recurrence = read_layer(arrays, ALLENNLP_LSTM)
    assert_allclose(np.exp(recurrence.log_eigenvalues.real), 0.5)


def test_other_shapes_are_not_taken() -> None:
    for name, shape in (
        ("state_projection.weight", (P + 1, H)),
        ("state_linearity.bias", (H,)),
        ("input_linearity.weight", (5 * H, INPUTS)),
    ):
        arrays = made("elmo") | {f"{LAYER}.{name}": np.ones(shape)}
        assert match_of(arrays, ALLENNLP_LSTM) == []
