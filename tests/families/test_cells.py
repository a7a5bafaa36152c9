"""What holds of every cell, whatever library stored it, against one step of that library's code."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from families.cell_steps import CASES, Case, H
from families.derivatives import check_derivatives, read_found
from families.oracles import assert_same_spectrum, read_layers
from numpy.testing import assert_allclose
from safetensors.numpy import save_file

from memcurse_cli.checkpoints.open import MemoryStore
from memcurse_cli.errors import MemcurseError
from memcurse_cli.families.cells import gated_layer
from memcurse_cli.families.detect import detect, named_family
from memcurse_cli.families.family import ReadOptions
from memcurse_cli.families.gate_inputs import GateDrive, OwnStateDrive
from memcurse_cli.families.reading import LARGEST_DECAY
from memcurse_cli.families.recurrence import Recurrence

NOT_RUN = (
    "haste_lstm_normalised",
    "haste_gru_normalised",
    "allennlp_highway",
    "lem",
    "fast_grnn",
    "fast_grnn_low_rank",
    "multiplicative_lstm",
    "light_gru_batch",
    "light_gru_layer",
    "dreamer",
    "dreamer_without_a_norm",
    "sheeprl",
)
every_case = pytest.mark.parametrize("case", CASES.values(), ids=CASES)


def read_case(case: Case, arrays: dict[str, np.ndarray], **asked: bool) -> Recurrence:
    found = read_found(arrays, **asked)
    assert (found.family, found.name) == (case.family, case.module[:-1])
    return found


@every_case
def test_lambda_is_what_a_unit_keeps_by_itself(case: Case) -> None:
    arrays = case.arrays()
    for name in case.hidden:
        arrays[f"{case.module}{name}"][:] = 0
    found = read_case(case, arrays)
    kept = case.jacobian(arrays)[-case.size :, -case.size :]
    assert_allclose(np.exp(found.log_eigenvalues), np.diag(kept), rtol=1e-12)
    assert_allclose(kept, np.diag(np.diag(kept)), atol=1e-15)
    assert found.input_dependent
    assert found.hidden_feedback
    assert found.hidden is None
    assert found.gate is None


@every_case
def test_derivatives(case: Case) -> None:
    check_derivatives(case.arrays(), named_family(case.family))


@every_case
def test_the_spectrum_of_the_whole_step_and_the_law_of_the_gates_at_the_bias(case: Case) -> None:
    arrays = case.arrays()
    found = read_case(case, arrays, spectra=True, gates=True)
    hidden = found.hidden
    assert (hidden.jacobian is not None) == case.whole
    if hidden.jacobian is None:
        assert hidden.reason
        assert hidden.gates
    else:
        theirs = np.linalg.eigvals(case.jacobian(arrays))
        assert_same_spectrum(hidden.jacobian, theirs, 1e-11)
    drive = found.gate
    if isinstance(drive, OwnStateDrive):
        still, units = drive.preactivations(1.0, 0.0).mean, np.arange(found.size)
        ahead, behind = (drive.step(still, np.full(found.size, c), units) for c in (1e-6, -1e-6))
        slope = (ahead.state - behind.state) / 2e-6
        assert_allclose(slope, np.exp(found.log_eigenvalues.real), rtol=1e-8)
        return
    if drive is None:
        assert not case.whole  # what is normalised, or passes a highway
        return
    assert isinstance(drive, GateDrive)
    assert drive.motions.keys() <= {group.name for group in found.parameters}
    law = drive.law(drive.gate.bias)
    if "linear.bias" not in case.shapes:  # whose norm adds a constant to λ at zero alone
        assert_allclose(law.eigenvalue, np.exp(found.log_eigenvalues.real), rtol=1e-12)
    if not np.any(drive.gate.products) and drive.gate.fixed is None:
        assert np.all(drive.gate.inputs > 0)
        assert np.all(drive.gate.hidden > 0) == (drive.state is not None)


@every_case
def test_a_step_of_its_run_is_the_library_s(case: Case) -> None:
    arrays = case.arrays()
    dynamics = read_case(case, arrays, simulate=True).dynamics
    assert (dynamics is None) == (case in [CASES[name] for name in NOT_RUN])
    if dynamics is not None:
        state = 0.5 * np.random.default_rng(0).normal(size=dynamics.order)
        kept = {name.removeprefix(case.module): array for name, array in arrays.items()}
        step = dynamics.begin(lambda _, values: values)
        found = step(state[None], np.zeros((1, dynamics.width)))[0]
        assert_allclose(found, case.step(kept, state), atol=1e-13)


def biases(case: Case) -> list[str]:
    """The tensors of biases."""
    return [
        f"{case.module}{name}"
        for name in case.shapes
        if "bias" in name or name in ("b", "B", "bhn", "linear/b", "b_ru", "b_c", "b_gates")
    ]


@every_case
def test_no_other_shape_of_a_tensor_ends_in_a_wrong_number(case: Case) -> None:
    """Every tensor with a row more, or one axis less, is found by no one, refused, or not used."""
    arrays = case.arrays()
    whole = read_case(case, arrays)
    for name, array in arrays.items():
        for odd in (np.concatenate([array, array[:1]]), array.ravel()[:-1], np.zeros((0, 3))):
            store = MemoryStore(arrays | {name: odd})
            try:
                (family, match), *_ = detect(store.tensors)
                found = family.read(store, match, ReadOptions())
            except MemcurseError:
                continue
            if family.name == case.family:
                assert_allclose(found.log_eigenvalues, whole.log_eigenvalues)


@pytest.mark.parametrize("name", ["torch_lstm", "torch_gru", "keras_lstm", "keras_gru"])
def test_without_biases_the_gates_stand_half_open(name: str) -> None:
    case = CASES[name]
    arrays = {key: array for key, array in case.arrays().items() if key not in biases(case)}
    found = read_case(case, arrays)
    assert_allclose(np.exp(found.log_eigenvalues), 0.5)
    assert found.parameters == ()
    assert "no bias" in found.assumptions[-1]


@pytest.mark.parametrize("name", ["torch_lstm", "torch_gru", "mgu", "haiku_gru"])
def test_both_tails_keep_full_precision(name: str) -> None:
    """log σ(b) = -e⁻ᵇ as b grows, and is cut where σ(b) is no longer a normal double."""
    case = CASES[name]
    writes = name in ("mgu", "haiku_gru")
    arrays = case.arrays()
    for bias in biases(case):
        arrays[bias] = np.zeros_like(arrays[bias])
    arrays[biases(case)[0]] += np.tile(
        [40.0, -40.0, -800.0, 800.0], arrays[biases(case)[0]].size // H
    )
    found = read_case(case, arrays)
    kept = found.log_eigenvalues.real[[1, 0, 3, 2] if writes else [0, 1, 2, 3]]
    assert_allclose(kept[:2], [-np.exp(-40.0), -40.0], rtol=1e-14)
    assert np.isfinite(found.log_eigenvalues).all()
    assert np.isfinite(found.log_gain).all()


def test_weights_are_read_only_where_what_they_do_is_asked_for() -> None:
    for name in ("torch_lstm", "keras_gru", "mgu", "tf_gru", "mlx_gru"):
        case = CASES[name]
        store = MemoryStore(case.arrays())
        ((family, match),) = detect(store.tensors)
        family.read(store, match, ReadOptions())
        stored = case.arrays()
        assert store.bytes_read == sum(stored[bias].nbytes for bias in biases(case))
        again = MemoryStore(stored)
        family.read(again, match, ReadOptions(spectra=True, gates=True))
        assert again.bytes_read == sum(array.nbytes for array in stored.values())


def test_a_jacobian_that_is_too_large_is_left_out_with_its_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(gated_layer, "LARGEST_JACOBIAN", 2 * H - 1)
    for name, order in (("keras_lstm", 2 * H), ("keras_gru", None)):
        hidden = read_case(CASES[name], CASES[name].arrays(), spectra=True).hidden
        assert hidden.gates
        assert (hidden.jacobian is None) == (order is not None)
        assert (f"order {order}" in (hidden.reason or "")) == (order is not None)


def test_a_hard_gate_saturates_and_no_bias_moves_it_there() -> None:
    arrays = {f"l/{name}": np.zeros((4, 12)) for name in ("kernel", "recurrent_kernel")}
    arrays["l/bias"] = np.array([-2.5, -9.0, 2.5, 9.0, *np.zeros(8)])
    found = read_found(arrays, assume={"recurrent_activation": "hard_sigmoid"})
    shut, opened = [-LARGEST_DECAY] * 2, [0.0, 0.0]
    assert_allclose(found.log_eigenvalues, [*shut, *opened], rtol=1e-15)
    assert_allclose(found.log_gain, [*opened, *shut], rtol=1e-15)
    for group in found.parameters:
        assert not np.any(group.eigenvalue_derivative)
        assert group.log_gain_derivative is None or not np.any(group.log_gain_derivative)


@pytest.mark.parametrize(
    "said",
    [
        "not json",
        '{"input_forget": 5, "activations": 3, "clip": "x"}',
        '{"activations": ["HardSigmoid"], "activation_alpha": ["x"], "activation_beta": 1}',
    ],
)
def test_what_no_node_says_is_passed_over(said: str, tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    arrays = {f"rnn/LSTM_{role}": np.ones((16, n), np.float32) for role, n in (("W", 3), ("R", 4))}
    save_file(arrays, path, metadata={"rnn/LSTM": said})
    (layer,) = read_layers(path).values()
    assert layer.family == "onnx_lstm"


def initial(network: torch.nn.Module) -> bool:
    arrays = {name: value.double().numpy() for name, value in network.state_dict().items()}
    dynamics = read_found(arrays, simulate=True).dynamics
    assert dynamics is not None
    assert dynamics.plain == {"RNN": "tanh"}.get(type(network).__name__, type(network).__name__)
    return dynamics.initial


@pytest.mark.parametrize("kind", [torch.nn.RNN, torch.nn.GRU, torch.nn.LSTM])
@pytest.mark.parametrize("initialiser", ["torch", "orthogonal", "by gate", "constant biases"])
def test_weights_are_known_as_an_initialiser_leaves_them_until_they_are_trained(
    kind: Callable[..., torch.nn.RNNBase], initialiser: str
) -> None:
    torch.manual_seed(0)
    network = kind(3, 16)
    weights = network.weight_hh_l0
    if initialiser == "orthogonal":
        torch.nn.init.orthogonal_(weights, gain=0.9)
    elif initialiser == "by gate":
        for gate in weights.detach().split(16):
            torch.nn.init.orthogonal_(gate)
    elif initialiser == "constant biases":
        torch.nn.init.xavier_normal_(weights)
        for bias in (network.bias_ih_l0, network.bias_hh_l0):
            torch.nn.init.zeros_(bias)
    assert initial(network)
    assert initial(copy.deepcopy(network).bfloat16())
    optimizer = torch.optim.Adam(network.parameters(), lr=3e-3)
    for _ in range(20):
        optimizer.zero_grad()
        (network(torch.randn(10, 4, 3))[0][-1] - 1).square().mean().backward()
        optimizer.step()
    assert not initial(network)
