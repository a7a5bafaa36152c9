"""The spectra of LSTMs and GRUs against torch's autodiff, other layouts and real files."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from families.oracles import ZooFile, assert_same_spectrum, zoo_files
from numpy.testing import assert_allclose

from memcurse_cli.checkpoints.memory import MemoryStore
from memcurse_cli.checkpoints.open import open_checkpoint
from memcurse_cli.checkpoints.store import TensorStore
from memcurse_cli.errors import TensorError
from memcurse_cli.families.cells import gated_layer as gated_cells
from memcurse_cli.families.cells.gated_layer import gru_jacobian, step_spectra
from memcurse_cli.families.detect import detect
from memcurse_cli.families.family import ReadOptions
from memcurse_cli.families.recurrence import HiddenSpectra, Recurrence

H = 5
INPUTS = 3
LETTERS = {"i": "input", "f": "forget", "g": "cell", "o": "output"} | {
    "r": "reset",
    "z": "update",
    "n": "new",
}
Step = Callable[[torch.Tensor], torch.Tensor]


def read_all(store: TensorStore) -> dict[str, Recurrence]:
    options = ReadOptions(spectra=True)
    return {
        match.layer: family.read(store, match, options)
        for family, match in detect(store.tensors)
        if family.name in ("lstm", "gru")
    }


def spectra(module: torch.nn.Module) -> HiddenSpectra:
    store = MemoryStore({name: tensor.numpy() for name, tensor in module.state_dict().items()})
    (recurrence,) = read_all(store).values()
    assert recurrence.hidden is not None
    return recurrence.hidden


def autodiff_eigenvalues(step: Step, order: int) -> np.ndarray:
    jacobian = torch.autograd.functional.jacobian(step, torch.zeros(order, dtype=torch.float64))
    return np.linalg.eigvals(jacobian.numpy())


def lstm_step(module: torch.nn.LSTM) -> Step:
    outputs = module.proj_size or H
    silence = torch.zeros(1, INPUTS, dtype=torch.float64)

    def step(state: torch.Tensor) -> torch.Tensor:
        h, c = state[:outputs], state[outputs:]
        _, (h, c) = module(silence, (h[None], c[None]))
        return torch.cat([h[0], c[0]])

    return step


def gru_step(module: torch.nn.GRU) -> Step:
    silence = torch.zeros(1, INPUTS, dtype=torch.float64)
    return lambda state: module(silence, state[None])[1][0]


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(11)


def large(module: torch.nn.Module) -> None:
    """Weights and biases of order 1, where no term of the Jacobian is small."""
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.normal_()


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("projection", [0, 2])
def test_the_jacobian_of_an_lstm_is_that_of_torchs_own_step(bias: bool, projection: int) -> None:
    module = torch.nn.LSTM(INPUTS, H, bias=bias, proj_size=projection, dtype=torch.float64)
    large(module)
    hidden = spectra(module)
    assert hidden.jacobian is not None
    expected = autodiff_eigenvalues(lstm_step(module), H + (projection or H))
    assert_same_spectrum(hidden.jacobian, expected, 1e-11)


@pytest.mark.parametrize("bias", [True, False])
def test_the_jacobian_of_a_gru_is_that_of_torchs_own_step(bias: bool) -> None:
    module = torch.nn.GRU(INPUTS, H, bias=bias, dtype=torch.float64)
    large(module)
    hidden = spectra(module)
    assert hidden.jacobian is not None
    assert_same_spectrum(hidden.jacobian, autodiff_eigenvalues(gru_step(module), H), 1e-11)


def test_a_reset_gate_before_the_matrix_against_autodiff() -> None:
    gates = ("reset", "update", "new")
    generator = np.random.default_rng(2)
    weights = {gate: generator.normal(size=(H, H)) for gate in gates}
    biases = {gate: generator.normal(size=H) for gate in gates}
    w = {gate: torch.tensor(matrix) for gate, matrix in weights.items()}
    b = {gate: torch.tensor(vector) for gate, vector in biases.items()}

    def step(h: torch.Tensor) -> torch.Tensor:
        reset, update = (torch.sigmoid(w[gate] @ h + b[gate]) for gate in gates[:2])
        return update * h + (1 - update) * torch.tanh(w["new"] @ (reset * h) + b["new"])

    expected = torch.autograd.functional.jacobian(step, torch.zeros(H, dtype=torch.float64))
    assert_allclose(gru_jacobian(weights, biases, None), expected, atol=1e-14)


@pytest.mark.parametrize("file", zoo_files("torch_rnn", ".pt", ".pth", ".safetensors", ".ckpt"))
def test_the_zoo(file: ZooFile) -> None:
    expected: dict[str, dict[str, Any]] = {
        layer["name"]: layer["extra"]
        for layer in file.layers
        if layer["kind"] in ("lstm", "gru") and "extra" in layer
    }
    if not expected:
        pytest.skip("no gated layer")
    with open_checkpoint(file.path) as store:
        read = read_all(store)
    # That library forms its weight from norm and direction in float32, we in float64.
    tolerance = 1e-7 if file.path.name == "gru_weight_norm.pt" else 1e-9
    compared = 0
    for name, extra in expected.items():
        hidden = next(
            layer.hidden for full, layer in read.items() if full == name or name.endswith(full)
        )
        assert hidden is not None
        for key, ours in (
            ("jacobian_at_origin", hidden.jacobian),
            ("W_hf_eigs", hidden.gates.get("forget")),
        ):
            if extra.get(key) is not None:
                assert ours is not None
                assert_same_spectrum(ours, np.array(extra[key]) @ np.array([1, 1j]), tolerance)
                compared += 1
    assert compared


def test_weight_normalisation_as_torch_rounds_it(zoo: Path) -> None:
    """The oracle to 1e-9, once the product is formed in float32 as torch does."""
    folder = zoo / "torch_rnn"
    (layer,) = next(
        checkpoint["layers"]
        for checkpoint in json.loads((folder / "oracle.json").read_text())["checkpoints"]
        if "gru_weight_norm.pt" in checkpoint["files"]
    )
    arrays = torch.load(folder / "gru_weight_norm.pt", weights_only=True)
    norm, direction = (
        arrays.pop(f"parametrizations.weight_hh_l0.original{part}") for part in (0, 1)
    )
    arrays["weight_hh_l0"] = torch._weight_norm(direction, norm, 0)
    (recurrence,) = read_all(MemoryStore(arrays)).values()
    assert recurrence.hidden is not None
    assert recurrence.hidden.jacobian is not None
    expected = np.array(layer["extra"]["jacobian_at_origin"]) @ np.array([1, 1j])
    assert_same_spectrum(recurrence.hidden.jacobian, expected, 1e-9)


@pytest.mark.parametrize(
    ("file", "layers"),
    [
        ("g2p_en_gru_npz/checkpoint20.npz", {"enc": "enc", "dec": "dec"}),
        (
            "silero_vad_lstm/silero_vad_16k.safetensors",
            {"silero_vad_16k.safetensors:lstm_cell": "lstm_cell"},
        ),
        ("gtcrn_gru/model_trained_on_dns3.tar", None),
    ],
)
def test_trained_files(trained: Path, file: str, layers: dict[str, str] | None) -> None:
    oracle = json.loads((trained / file).with_name("oracle.json").read_text())["layers"]
    if layers is None:
        layers = {
            name: name.removeprefix("tar:model.").replace("weight_hh_", "")
            for name in oracle
            if name.startswith("tar:")
        }
    with open_checkpoint(trained / file) as store:
        read = read_all(store)
    for name, layer in layers.items():
        hidden = read[layer].hidden
        assert hidden is not None
        assert hidden.gates.keys() == {LETTERS[letter] for letter in oracle[name]["per_gate_W_hh"]}
        for letter, expected in oracle[name]["per_gate_W_hh"].items():
            moduli = np.sort(np.abs(hidden.gates[LETTERS[letter]]))[::-1]
            largest = expected["abs_eigs_sorted_desc"]
            assert_allclose(moduli[: len(largest)], largest, rtol=1e-9)
            assert np.count_nonzero(moduli > 1) == expected["n_abs_gt_1"]


def test_a_jacobian_that_is_too_large_is_left_out_with_its_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(gated_cells, "LARGEST_JACOBIAN", 2 * H - 1)
    weights = {"input": np.eye(H), "forget": np.eye(H)}
    hidden = step_spectra(weights, lambda: np.eye(2 * H), 2 * H)
    assert hidden.jacobian is None
    assert "order 10" in (hidden.reason or "")
    assert hidden.gates.keys() == weights.keys()
    assert step_spectra(weights, lambda: np.eye(H), H).reason is None


def test_the_gates_of_a_projected_lstm_have_no_eigenvalues() -> None:
    hidden = spectra(torch.nn.LSTM(INPUTS, H, proj_size=2))
    assert hidden.gates == {}
    assert "not square" in (hidden.reason or "")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"weight_hh": np.full((4 * H, H), np.nan)}, "weight_hh: 100 NaN"),
        ({"weight_hr": np.ones((2, H))}, r"weight_hr: its shape \(2, 5\) does not fit"),
    ],
)
def test_weights_that_cannot_be_used_are_named(change: dict[str, np.ndarray], message: str) -> None:
    store = MemoryStore({"weight_hh": np.ones((4 * H, H)), "bias_hh": np.zeros(4 * H)} | change)
    with pytest.raises(TensorError, match=message):
        read_all(store)
