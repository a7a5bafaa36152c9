"""Every selective family by one engine: λ and γ, derivatives, gates and hostile tensors."""

from __future__ import annotations

import numpy as np
import pytest
from families.derivatives import check_derivatives, read_layer
from families.oracles import sigmoid, softplus
from families.selective.layers import (
    BASE,
    DECAY,
    FORGET,
    HEADS,
    INPUT,
    LAYERS,
    RWKV6_LAYERS,
    RWKV7_LAYERS,
    SLSTM_BIAS,
    STILL,
    Arrays,
    Layer,
)
from families.simulated_gates import drive_of
from numpy.testing import assert_allclose
from numpy.typing import NDArray

from memcurse_cli.checkpoints.open import MemoryStore
from memcurse_cli.errors import TensorError
from memcurse_cli.families.detect import detect
from memcurse_cli.families.family import ReadOptions
from memcurse_cli.families.gate_inputs import GateDrive
from memcurse_cli.families.recurrence import Recurrence

parametrised = pytest.mark.parametrize("layer", LAYERS.values(), ids=LAYERS)


def read(layer: Layer, changed: Arrays | None = None) -> Recurrence:
    arrays = layer.arrays | (changed or {})
    return read_layer(arrays, layer.family, layer.index, **layer.assume)


Expected = tuple[NDArray, NDArray | float, int]
"""λ, γ and how many states each λ drives."""


def scan(log_rate: NDArray, bias: NDArray, states: int = 1) -> Expected:
    """`selective_scan_ref` with delta_softplus, without what the input adds to Δ."""
    step = softplus(bias).reshape(-1, 1)
    rate = np.exp(log_rate).reshape(step.size, -1)
    return np.exp(-step * rate).ravel(), np.repeat(step, rate.shape[1]), states


def mixer(a: Arrays, rows: slice | None) -> Expected:
    projected = 0.0 if rows is None else a["mixer.in_proj.bias"][rows]
    return scan(a["mixer.A_log"], a["mixer.dt_bias"] + projected, 4 * 3)


def delta(a: Arrays, states: int, gain: float = 0.5) -> Expected:
    """g of fla/layers, and `ggml_mul(softplus(alpha + ssm_dt), ssm_a)` of llama.cpp."""
    step = softplus(next(of for role, of in a.items() if "dt" in role))
    rate = next(
        -of if "ssm_a" in role else np.exp(of)
        for role, of in a.items()
        if role[-5:] in ("A_log", "ssm_a")
    )
    return np.exp(-np.repeat(rate.ravel(), step.size // rate.size) * step), gain, states


def bounded(a: Arrays) -> Expected:
    share = np.exp(a["model.lower_bounds"])
    bound = (share[1] + share[2]) / share.sum(axis=0)
    return (1 + bound) / 2, (1 - bound) / 2, 1


def rg_lru(rate: NDArray, gate: NDArray, opened: NDArray, turn: float | NDArray = 0) -> Expected:
    exponent = sigmoid(gate.ravel()) * (8 * softplus(rate) - 1j * np.asarray(turn))
    gain = np.sqrt(1 - np.exp(-2 * exponent.real)) * sigmoid(opened.ravel())
    return np.exp(-exponent), gain, 1


def hippogriff(a: Arrays) -> Expected:
    gate, opened = np.split(a["layers.0.hawk.gates.bias"], 2)
    kept = np.exp(-8 * softplus(a["layers.0.hawk.forget_base"]) * sigmoid(gate))
    return kept, np.sqrt(1 - kept**2 + 1e-6) * sigmoid(opened), 1


def griffin_torch(a: Arrays) -> Expected:
    kept = sigmoid(a["rglru.Lambda"]) / 8 ** sigmoid(a["rglru.ba"])
    return kept, np.sqrt(1 - kept**2) * sigmoid(a["rglru.bx"]), 1


def capped(bias: NDArray) -> NDArray:
    return 15 * np.tanh(bias / 15)


def mixed(forget: NDArray) -> Expected:
    return sigmoid(forget), sigmoid(-forget), 1


def shared(forget: NDArray, opened: NDArray) -> Expected:
    total = sigmoid(forget) + sigmoid(opened)
    return sigmoid(forget) / total, sigmoid(opened) / total, 1


def turned(a: Arrays) -> Expected:
    """torch.polar(|a|.sigmoid(), angle(a)) of a pair of numbers."""
    pairs = a["to_a.0.bias"].reshape(4, 2) @ np.array([1, 1j])
    return sigmoid(np.abs(pairs)) * np.exp(1j * np.angle(pairs)), 1.0, 3 * 3


def trapezoid(a: Arrays, rate: float) -> Expected:
    """What an impulse leaves behind in the library's reference step, carried back to its own."""
    step = softplus(a["mixer.dt_bias"])
    alpha, state, previous = np.exp(-rate * step), np.zeros(4), 0.0
    for driven in (1.0, 0.0, 0.0):
        state = alpha * state + 0.5 * step * alpha * previous + 0.5 * step * driven
        previous = driven
    return alpha, state / alpha**2, 2 * a["mixer.B_bias"].shape[2]


# The authors' own form: w = -softplus(-w0) - 0.5, λ = exp(-exp(w)).
_OF_RWKV7 = np.exp(-np.exp(-softplus(-BASE) - 0.5))
EXPECTED = {
    "Mamba": lambda a: scan(a["mixer.A_log"], a["mixer.dt_proj.bias"]),
    "Zamba": lambda a: scan(a["mamba.A_log"], a["mamba.dt_proj_bias"]),
    "VMamba": lambda a: scan(a["op.A_logs"], a["op.dt_projs_bias"]),
    "Mamba in GGUF": lambda a: scan(np.log(-a["blk.0.ssm_a"]), a["blk.0.ssm_dt.bias"]),
    "Mamba-2 in GGUF": lambda a: scan(np.log(-a["blk.3.ssm_a"]), a["blk.3.ssm_dt.bias"], 3 * 5),
    "Mamba-2": lambda a: mixer(a, None),
    "Mamba-2 with a bias": lambda a: mixer(a, slice(-4, None)),
    "Hydra": lambda a: mixer(a, slice(-8, -4)),
    "Hydra (backward)": lambda a: mixer(a, slice(-4, None)),
    "Gated DeltaNet": lambda a: delta(a, 3 * 4),
    "Gated DeltaProduct": lambda a: delta(a, 3 * 4, 1.0),
    "Comba": lambda a: delta(a, 3 * 4),
    "Qwen3-Next in GGUF": lambda a: delta(a, 4 * 4),  # keys as wide as values: no metadata
    "Qwen3.5 in GGUF": lambda a: delta(a, 4 * 4),
    "KDA": lambda a: delta(a, 4),
    "KDA with a safe gate": lambda a: (
        np.exp(-5 * sigmoid(np.repeat(np.exp(a["A_log"]), 3) * a["dt_bias"])),
        0.5,
        4,
    ),
    "Kimi-Linear in GGUF": lambda a: delta(a, 4),
    "Gated DeltaNet-2": lambda a: delta(a, 4),
    "DeltaNet": lambda a: (np.ones(HEADS), 0.5, 3 * 4),
    "GLA": lambda a: (sigmoid(a["gk_proj.1.bias"]) ** (1 / 16), 1.0, 1),
    "GLA without a root": lambda a: (sigmoid(a["gk_proj.1.bias"]), 1.0, 1),
    "simple GLA": lambda a: (sigmoid(a["gk_proj.bias"]) ** (1 / 16), 1.0, 3 * 4),
    # H_kk and H_kv.
    "MesaNet": lambda a: (sigmoid(a["a_proj.bias"]), sigmoid(a["b_proj.bias"]), 3 * (3 + 3)),
    "gated slot attention": lambda a: (np.full(10, 0.5 ** (1 / 8)), 1 - 0.5 ** (1 / 8), 1),
    "HGRN": bounded,
    "HGRN of one layer": lambda a: (np.full(4, 0.5), 0.5, 1),
    "RWKV-4": lambda a: (np.exp(-np.exp(DECAY)), 1.0, 2),
    "RWKV-5": lambda a: (np.exp(-np.exp(DECAY)), 1.0, 3),
    "RWKV-5 by head": lambda a: (np.exp(-np.exp(DECAY[:2])), 1.0, 9),
    "RWKV-4 of the rwkv package": lambda a: (np.exp(a["att.time_decay"]), 1.0, 2),
    "RWKV-5 of the rwkv package": lambda a: (a["att.time_decay"].ravel(), 1.0, 2),
    # fla's layer has values twice as wide as its keys.
    **{
        f"RWKV-6, {name}": lambda a, wide=1 + ("flash" in name): (
            np.exp(-np.exp(BASE)),
            1.0,
            8 * wide,
        )
        for name in RWKV6_LAYERS
    },
    **{f"RWKV-7, {name}": lambda a: (_OF_RWKV7, 1.0, 8) for name in RWKV7_LAYERS},
    "RG-LRU": lambda a: rg_lru(
        a["recurrent_param"], a["recurrent_gate_bias"], a["input_gate_bias"]
    ),
    "recurrentgemma": lambda a: rg_lru(a["a_param"], a["a_gate.b"], a["input_gate.b"]),
    "recurrentgemma, complex": lambda a: rg_lru(
        a["a_param"], a["a_gate.b"], a["input_gate.b"], a["a_imag_param"]
    ),
    "hippogriff": hippogriff,
    "griffin-torch": griffin_torch,
    "mLSTM": lambda a: (sigmoid(capped(FORGET)), np.exp(capped(INPUT)), 2 * 4),
    "mLSTM, fused": lambda a: (sigmoid(capped(FORGET)), np.exp(capped(INPUT)), 2 * 4),
    "mLSTM of a block": lambda a: (sigmoid(FORGET), np.exp(INPUT), (8 // 2) ** 2),
    "sLSTM": lambda a: (sigmoid(SLSTM_BIAS[1].ravel()), np.exp(SLSTM_BIAS[0].ravel()), 2),
    "sLSTM of the cuda backend": lambda a: EXPECTED["sLSTM"](a),
    "SRU": lambda a: mixed(a["bias"][:3]),
    "SRU of three matrices": lambda a: mixed(a["bias"][:3]),
    "SRU++ of one projection": lambda a: mixed(a["bias"][:3]),
    "QRNN": lambda a: mixed(-a["rnn.layers.0.linear.bias"][4:8]),
    "QRNN of two parts": lambda a: mixed(-a["qrnn.layers.0.linear.bias"][4:]),
    "minGRU": lambda a: mixed(-a["to_hidden_and_gate.bias"][7:]),
    "minGRU of the paper": lambda a: mixed(-a["linear_z.bias"]),
    "minGRU without a bias": lambda a: mixed(np.zeros(7)),
    "minLSTM": lambda a: shared(*a["to_hidden_and_f_i_gate.bias"].reshape(3, 7)[1:]),
    "minLSTM of the paper": lambda a: shared(a["linear_f.bias"], a["linear_i.bias"]),
    "minLSTM without biases": lambda a: shared(np.zeros(7), np.zeros(7)),
    "GateLoop": turned,
    "simple GateLoop": lambda a: (np.full(5, 0.5), 1.0, 1),
    "Mamba-3": lambda a: trapezoid(a, 1.0),
    "Mamba-3 of a softplus": lambda a: trapezoid(a, np.log(2)),
    "RetNet": lambda a: (np.array([1 - 1 / 32, 1 - 1 / 64]), 1.0, 3 * 4),
    "RetNet of torchscale": lambda a: (np.exp([-0.1, -3.0]), 1.0, 3 * 4),
    "lightning attention": lambda a: (np.exp([-0.1, -0.2]), 1.0, 2**2),
}


@pytest.mark.parametrize("name", LAYERS | STILL)
def test_eigenvalues_and_gains_are_those_of_the_library(name: str) -> None:
    layer = (LAYERS | STILL)[name]
    recurrence = read(layer)
    eigenvalues, gain, multiplicity = EXPECTED[name](layer.arrays)
    assert_allclose(np.exp(recurrence.log_eigenvalues), eigenvalues, rtol=1e-12)
    assert_allclose(np.exp(recurrence.log_gain), np.broadcast_to(gain, recurrence.size), rtol=1e-12)
    assert recurrence.multiplicity == multiplicity
    assert (recurrence.parameters == ()) == (name in STILL)
    still = ("RWKV-4", "RWKV-5", "RetNet", "lightning")
    assert recurrence.input_dependent == (not name.startswith(still))


@parametrised
def test_derivatives(layer: Layer) -> None:
    check_derivatives(layer.arrays, layer.family, layer=layer.index, **layer.assume)


@pytest.mark.parametrize("layer", (LAYERS | STILL).values(), ids=LAYERS | STILL)
def test_the_layer_is_found_in_any_module_and_no_other_family_takes_it(layer: Layer) -> None:
    for prefix in ("", "any.", "any/"):
        named = {
            f"{prefix}{name}".replace(".", prefix[-1:] or "."): a
            for name, a in layer.arrays.items()
        }
        found = detect(MemoryStore(named).tensors)
        assert {family.name for family, _ in found} == {layer.family.name}
        assert all(match.layer.startswith(prefix[:-1]) for _, match in found)


@pytest.mark.parametrize(
    "layer",
    [each for each in LAYERS.values() if each.driven],
    ids=[name for name, each in LAYERS.items() if each.driven],
)
def test_the_law_that_moves_is_that_of_the_layer_at_its_bias(layer: Layer) -> None:
    drive = drive_of(MemoryStore(layer.arrays), layer.family, **layer.assume)
    assert drive.gate.variance(1.0, 0.0).shape == drive.gate.bias.shape
    assert (drive.write is None) == (drive.write_gate is None)


def squares(weight: NDArray) -> NDArray:
    return np.sum(weight**2, axis=-1)


# Squared norms of the weights that λ's gate and the write gate see the input through.
NORMS = {
    "Zamba": lambda a: squares(a["mamba.dt_proj_weight"] @ a["mamba.x_proj_weight"][:, :4]).ravel(),
    "VMamba": lambda a: squares(a["op.dt_projs_weight"] @ a["op.x_proj_weight"][:, :2]).ravel(),
    "Mamba in GGUF": lambda a: squares(a["blk.0.ssm_dt.weight"] @ a["blk.0.ssm_x.weight"][:2]),
    "Mamba-2 in GGUF": lambda a: squares(a["blk.3.ssm_in.weight"][-2:]),
    "Hydra": lambda a: squares(a["mixer.in_proj.weight"][-8:-4]),
    "Gated DeltaNet": lambda a: (squares(a["a_proj.weight"]), squares(a["b_proj.weight"])),
    "Qwen3.5 in GGUF": lambda a: (
        squares(a["blk.2.ssm_alpha.weight"]),
        squares(a["blk.2.ssm_beta.weight"]),
    ),
    "KDA": lambda a: (
        squares(a["f_b_proj.weight"] @ a["f_a_proj.weight"]),
        squares(a["b_proj.weight"]),
    ),
    "Kimi-Linear in GGUF": lambda a: (
        squares(a["blk.1.ssm_f_b.weight"] @ a["blk.1.ssm_f_a.weight"]),
        squares(a["blk.1.ssm_beta.weight"]),
    ),
    "GLA": lambda a: squares(a["gk_proj.1.weight"] @ a["gk_proj.0.weight"]),
    "MesaNet": lambda a: (squares(a["a_proj.weight"]), squares(a["b_proj.weight"])),
    "HGRN": lambda a: squares(a["model.layers.2.attn.f_proj.weight"]),
    "hippogriff": lambda a: tuple(squares(a["layers.0.hawk.gates.weight"]).reshape(2, 5)),
    "mLSTM, fused": lambda a: tuple(squares(a["ifgate_preact.weight"]).reshape(2, HEADS)[::-1]),
    "SRU++ of one projection": lambda a: squares(
        (a["weight_proj"] @ a["weight"]).reshape(6, 3, -1)[:, :, 1].T
    ),
    "QRNN": lambda a: squares(a["rnn.layers.0.linear.weight"][4:8]),
    "minGRU": lambda a: squares(a["to_hidden_and_gate.weight"][7:]),
    "simple GateLoop": lambda a: squares(a["to_qkva.0.weight"][10:]),
}


@pytest.mark.parametrize("name", NORMS)
def test_the_weights_that_the_gates_see_the_input_through(name: str) -> None:
    layer = (LAYERS | STILL)[name]
    store = MemoryStore(layer.arrays)
    match = layer.family.find(store.tensors)[layer.index]
    drive = layer.family.read(store, match, ReadOptions(gates=True, assume=layer.assume)).gate
    assert isinstance(drive, GateDrive)
    expected = NORMS[name](layer.arrays)
    gate, write = expected if isinstance(expected, tuple) else (expected, None)
    times = drive.gate.bias.size // gate.size  # one projection moves several λ
    assert_allclose(drive.gate.inputs, np.repeat(gate, times))
    assert (write is None) == (drive.write_gate is None)
    if drive.write_gate is not None:
        times = drive.write_gate.bias.size // write.size
        assert_allclose(drive.write_gate.inputs, np.repeat(write, times))


@parametrised
@pytest.mark.parametrize("sign", [1, -1])
def test_extremes_stay_finite(layer: Layer, sign: int) -> None:
    """±800 in turn, far beyond where e^z overflows, in one tensor and in all."""
    tensors = sorted({group.tensor for group in read(layer).parameters})
    extreme = {
        name: sign * 800.0 * (-1.0) ** np.arange(layer.arrays[name].size) for name in tensors
    }
    shaped = {name: extreme[name].reshape(layer.arrays[name].shape) for name in tensors}
    for changed in (*({name: shaped[name]} for name in tensors), shaped):
        try:
            recurrence = read(layer, changed)
        except TensorError as error:
            # A stored λ, or its logarithm, that none can be.
            assert "overflows" in str(error) or "has converted" in str(error)  # noqa: PT017
            continue
        assert np.isfinite(recurrence.log_eigenvalues).all()
        assert np.isfinite(recurrence.log_gain).all()
        for group in recurrence.parameters:
            assert np.isfinite(group.eigenvalue_derivative).all()
            assert group.log_gain_derivative is None or np.isfinite(group.log_gain_derivative).all()
