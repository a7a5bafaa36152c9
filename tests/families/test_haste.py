"""haste's layers, written out in torch as its own script modules have them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from families.derivatives import check_derivatives
from families.oracles import assert_same_spectrum
from numpy.testing import assert_allclose
from torch.nn.functional import layer_norm

from memcurse_cli.checkpoints.memory import MemoryStore
from memcurse_cli.families.cells.torch_libraries import HASTE_GRU, HASTE_LSTM
from memcurse_cli.families.detect import detect
from memcurse_cli.families.family import Family, ReadOptions

H, INPUTS = 4, 3
FAMILIES: dict[str, tuple[Family, int]] = {"lstm": (HASTE_LSTM, 4), "gru": (HASTE_GRU, 3)}


def made(kind: str, normalised: bool, prefix: str = "rnn.") -> dict[str, np.ndarray]:
    generator = np.random.default_rng(9)
    width = FAMILIES[kind][1] * H
    shapes: dict[str, tuple[int, ...]] = {
        "kernel": (INPUTS, width),
        "recurrent_kernel": (H, width),
        "bias": (width,),
    }
    if kind == "gru":
        shapes["recurrent_bias"] = (width,)
    if normalised:
        shapes["gamma"] = (2, width)
        if kind == "lstm":
            shapes |= {"gamma_h": (H,), "beta_h": (H,)}
    return {f"{prefix}{name}": generator.normal(size=shape) for name, shape in shapes.items()}


def step(kind: str, arrays: dict[str, np.ndarray], state: torch.Tensor) -> torch.Tensor:
    """LSTMScript's, GRUScript's and their normalised kin's step at zero input."""
    kept = {name.removeprefix("rnn."): torch.tensor(array) for name, array in arrays.items()}

    def hidden(h: torch.Tensor) -> torch.Tensor:
        rows = h @ kept["recurrent_kernel"]
        return layer_norm(rows, rows.shape, kept["gamma"][1]) if "gamma" in kept else rows

    if kind == "gru":
        shown = torch.chunk(kept["bias"], 3)
        seen = torch.chunk(hidden(state) + kept["recurrent_bias"], 3)
        z, r = (torch.sigmoid(shown[gate] + seen[gate]) for gate in (0, 1))
        g = torch.tanh(shown[2] + r * seen[2])
        return z * state + (1 - z) * g
    h, c = torch.chunk(state, 2)
    i, g, f, o = torch.chunk(hidden(h) + kept["bias"], 4)
    c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
    return torch.cat([torch.sigmoid(o) * torch.tanh(c), c])


@pytest.mark.parametrize("normalised", [False, True])
@pytest.mark.parametrize("kind", FAMILIES)
def test_the_state_decays_as_the_report_says(kind: str, normalised: bool) -> None:
    arrays = made(kind, normalised)
    arrays["rnn.recurrent_kernel"][:] = 0
    store = MemoryStore(arrays)
    ((family, match),) = detect(store.tensors)
    assert (family.name, match.layer) == (f"haste_{kind}", "rnn")
    recurrence = family.read(store, match, ReadOptions())
    size = H if kind == "gru" else 2 * H
    still, kicked = (torch.zeros(size, dtype=torch.float64) for _ in range(2))
    kicked[-H:] = 1
    for _ in range(6):
        still, kicked = step(kind, arrays, still), step(kind, arrays, kicked)
    expected = np.exp(6 * recurrence.log_eigenvalues.real)
    assert_allclose((kicked - still)[-H:].numpy(), expected, rtol=1e-9, atol=1e-15)


@pytest.mark.parametrize("normalised", [False, True])
@pytest.mark.parametrize("kind", FAMILIES)
def test_spectra_and_drive(kind: str, normalised: bool) -> None:
    arrays = made(kind, normalised)
    store = MemoryStore(arrays)
    family, _ = FAMILIES[kind]
    (match,) = family.find(store.tensors)
    recurrence = family.read(store, match, ReadOptions(spectra=True, gates=True))
    assert recurrence.hidden is not None
    kernel = arrays["rnn.recurrent_kernel"]
    block = {"lstm": (2, "forget"), "gru": (0, "update")}[kind]
    columns = slice(block[0] * H, (block[0] + 1) * H)
    own = np.linalg.eigvals(kernel[:, columns])
    assert_same_spectrum(recurrence.hidden.gates[block[1]], own, 1e-12)
    if normalised:
        assert recurrence.hidden.jacobian is None
        assert recurrence.gate is None
        return
    zero = torch.zeros(H if kind == "gru" else 2 * H, dtype=torch.float64)
    jacobian = torch.autograd.functional.jacobian(lambda s: step(kind, arrays, s), zero)
    assert recurrence.hidden.jacobian is not None
    expected = np.linalg.eigvals(jacobian.numpy())
    assert_same_spectrum(recurrence.hidden.jacobian, expected, 1e-12)
    assert recurrence.gate is not None
    assert_allclose(recurrence.gate.gate.norms.hidden, np.sum(kernel[:, columns] ** 2, axis=0))


@pytest.mark.parametrize("kind", FAMILIES)
def test_derivatives(kind: str) -> None:
    if kind == "gru":
        elements = {f"{role}[update]": slice(0, H) for role in ("bias", "recurrent_bias")}
    else:
        elements = {"bias[input]": slice(0, H), "bias[forget]": slice(2 * H, 3 * H)}
    check_derivatives(made(kind, False), FAMILIES[kind][0], elements=elements)


def test_keras_s_layers_stay_keras_s() -> None:
    for prefix in ("lstm/lstm_cell/", ""):
        ((family, _),) = detect(MemoryStore(made("lstm", False, prefix)).tensors)
        assert family.name == "keras_lstm"
    arrays = made("gru", False)
    del arrays["rnn.recurrent_bias"]
    ((family, _),) = detect(MemoryStore(arrays).tensors)
    assert family.name == "keras_gru"
