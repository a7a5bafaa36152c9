"""TensorFlow 1's GRU cells against their own equations, written out in torch."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from families.derivatives import check_derivatives, match_of, read_layer
from families.oracles import assert_same_spectrum
from numpy.testing import assert_allclose

from memcurse_cli.checkpoints.memory import MemoryStore
from memcurse_cli.families.cells.tensorflow import TENSORFLOW_GRU, TENSORFLOW_RNN
from memcurse_cli.families.detect import detect
from memcurse_cli.families.family import ReadOptions

H, INPUTS = 4, 3
GATES = {"gates/kernel": (INPUTS + H, 2 * H), "gates/bias": (2 * H,)}
NAMES: dict[str, tuple[str, dict[str, tuple[int, ...]]]] = {
    "GRUCell": (
        "rnn/gru_cell/",
        GATES | {"candidate/kernel": (INPUTS + H, H), "candidate/bias": (H,)},
    ),
    "GRUBlockCell": (
        "rnn/gru_block_cell/",
        {"w_ru": (INPUTS + H, 2 * H), "b_ru": (2 * H,), "w_c": (INPUTS + H, H), "b_c": (H,)},
    ),
    "CudnnCompatibleGRUCell": (
        "rnn/cudnn_compatible_gru_cell/",
        GATES
        | {
            "candidate/input_projection/kernel": (INPUTS, H),
            "candidate/input_projection/bias": (H,),
            "candidate/hidden_projection/kernel": (H, H),
            "candidate/hidden_projection/bias": (H,),
        },
    ),
}


def made(kind: str) -> dict[str, np.ndarray]:
    generator = np.random.default_rng(6)
    module, shapes = NAMES[kind]
    return {f"{module}{name}": generator.normal(size=shape) for name, shape in shapes.items()}


def step(kind: str, arrays: dict[str, np.ndarray], state: torch.Tensor) -> torch.Tensor:
    """One step of the cell's own call at zero input."""
    kept = {name.removeprefix(NAMES[kind][0]): torch.tensor(a) for name, a in arrays.items()}
    zero = torch.zeros(INPUTS, dtype=state.dtype)
    block = kind == "GRUBlockCell"
    kernel, bias = (
        kept[a if block else b] for a, b in (("w_ru", "gates/kernel"), ("b_ru", "gates/bias"))
    )
    r, u = torch.chunk(torch.sigmoid(torch.cat([zero, state]) @ kernel + bias), 2)
    if kind == "CudnnCompatibleGRUCell":
        inner = state @ kept["candidate/hidden_projection/kernel"]
        inner = inner + kept["candidate/hidden_projection/bias"]
        c = torch.tanh(kept["candidate/input_projection/bias"] + r * inner)
    else:
        kernel, bias = (
            kept[a if block else b]
            for a, b in (("w_c", "candidate/kernel"), ("b_c", "candidate/bias"))
        )
        c = torch.tanh(torch.cat([zero, r * state]) @ kernel + bias)
    return u * state + (1 - u) * c


@pytest.mark.parametrize("kind", NAMES)
def test_the_step_s_jacobian(kind: str) -> None:
    arrays = made(kind)
    store = MemoryStore({f"{name}:0": array for name, array in arrays.items()})
    ((family, match),) = detect(store.tensors)
    assert (family.name, match.layer) == ("tf_gru", NAMES[kind][0].rstrip("/"))
    recurrence = family.read(store, match, ReadOptions(spectra=True, gates=True))
    zero = torch.zeros(H, dtype=torch.float64)
    jacobian = torch.autograd.functional.jacobian(lambda s: step(kind, arrays, s), zero).numpy()
    assert recurrence.hidden is not None
    assert recurrence.hidden.jacobian is not None
    assert_same_spectrum(recurrence.hidden.jacobian, np.linalg.eigvals(jacobian), 1e-12)
    assert recurrence.gate is not None
    name = "w_ru" if kind == "GRUBlockCell" else "gates/kernel"
    kernel = arrays[f"{NAMES[kind][0]}{name}"][:INPUTS, H:]
    assert_allclose(recurrence.gate.gate.norms.inputs, np.sum(kernel**2, axis=0))


@pytest.mark.parametrize("kind", NAMES)
def test_without_hidden_weights_the_state_decays_as_the_report_says(kind: str) -> None:
    arrays = made(kind)
    for array in arrays.values():
        if array.ndim == 2:
            array[:] = 0
    recurrence = read_layer(arrays, TENSORFLOW_GRU)
    still, kicked = (torch.full((H,), value, dtype=torch.float64) for value in (0.0, 1.0))
    for _ in range(6):
        still, kicked = step(kind, arrays, still), step(kind, arrays, kicked)
    expected = np.exp(6 * recurrence.log_eigenvalues.real)
    assert_allclose((kicked - still).numpy(), expected, rtol=1e-9)


@pytest.mark.parametrize("kind", NAMES)
def test_derivatives(kind: str) -> None:
    elements = {"gates.bias[update]": slice(H, 2 * H)}
    check_derivatives(made(kind), TENSORFLOW_GRU, elements=elements)


def test_the_basic_cell() -> None:
    generator = np.random.default_rng(7)
    kernel, bias = generator.normal(size=(INPUTS + H, H)), generator.normal(size=H)
    arrays = {"rnn/basic_rnn_cell/kernel:0": kernel, "rnn/basic_rnn_cell/bias:0": bias}
    store = MemoryStore(arrays)
    ((family, match),) = detect(store.tensors)
    assert (family.name, match.layer) == ("tf_rnn", "rnn/basic_rnn_cell")
    recurrence = family.read(store, match, ReadOptions())
    assert recurrence.dense is not None
    assert recurrence.readin is not None
    state = generator.normal(size=H)
    seen = np.concatenate([np.ones(INPUTS), state]) @ kernel
    own = recurrence.dense.matrix @ state + recurrence.readin.real.sum(axis=1)
    assert_allclose(own, seen)


def test_other_modules_are_not_taken() -> None:
    arrays = made("GRUCell")
    module = NAMES["GRUCell"][0]
    assert match_of(arrays | {f"{module}candidate/kernel": np.ones((H, H))}, TENSORFLOW_GRU) == []
    assert match_of({n: a for n, a in arrays.items() if "gates/b" not in n}, TENSORFLOW_GRU) == []
    dense = {"dense/kernel": np.ones((7, 4)), "dense/bias": np.ones(4)}
    assert match_of(dense, TENSORFLOW_RNN) == []
