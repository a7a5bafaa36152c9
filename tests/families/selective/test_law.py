"""The law engine, over every family that it reads: derivatives, gates, hostile tensors."""

from __future__ import annotations

import numpy as np
import pytest
from families.derivatives import check_derivatives, match_of, read_layer
from families.selective.layers import (
    GATED_DELTA_NET,
    GLA_LAYER,
    HEADS,
    KDA_LAYER,
    KIMI_LINEAR,
    LAYERS,
    MESA_NET,
    QWEN3_5,
    QWEN3_NEXT,
    SIMPLE_GLA,
    SLOT_ATTENTION,
    Arrays,
    Layer,
)
from families.simulated_gates import drive_of
from numpy.testing import assert_allclose
from numpy.typing import NDArray

from memcurse_cli.checkpoints.memory import MemoryStore
from memcurse_cli.errors import TensorError
from memcurse_cli.families.detect import detect
from memcurse_cli.families.family import Family, ReadOptions
from memcurse_cli.families.gate_inputs import GateDrive, NoDrive
from memcurse_cli.families.recurrence import Recurrence
from memcurse_cli.families.selective.delta_rule import KDA, GatedDeltaNet, delta_rule
from memcurse_cli.families.selective.gla import GLA
from memcurse_cli.families.selective.mamba import GgufMamba

parametrised = pytest.mark.parametrize("layer", LAYERS.values(), ids=LAYERS)


def read(layer: Layer, changed: Arrays | None = None) -> Recurrence:
    arrays = layer.arrays | (changed or {})
    return read_layer(arrays, layer.family, layer.index, **layer.assume)


@parametrised
def test_derivatives(layer: Layer) -> None:
    check_derivatives(
        layer.arrays, layer.family, elements=layer.elements, layer=layer.index, **layer.assume
    )


@parametrised
def test_the_layer_is_found_and_no_other_family_takes_it(layer: Layer) -> None:
    found = detect(MemoryStore(layer.arrays).tensors)
    assert {family.name for family, _ in found} == {layer.family.name}


@pytest.mark.parametrize(
    "layer",
    [each for each in LAYERS.values() if each.driven],
    ids=[name for name, each in LAYERS.items() if each.driven],
)
def test_the_law_that_moves_is_that_of_the_layer_at_its_bias(layer: Layer) -> None:
    drive = drive_of(MemoryStore(layer.arrays), layer.family, **layer.assume)
    assert drive.gate.norms.inputs.shape == drive.gate.bias.shape
    assert (drive.write is None) == (drive.write_gate is None)


def squares(weight: NDArray) -> NDArray:
    return np.sum(weight**2, axis=-1)


# Squared norms of the weights that λ's gate and the write gate see the input through.
NORMS = {
    "Zamba": lambda a: np.concatenate(
        [squares(a["mamba.dt_proj_weight"][h] @ a["mamba.x_proj_weight"][h, :4]) for h in range(2)]
    ),
    "Mamba in GGUF": lambda a: squares(a["blk.0.ssm_dt.weight"] @ a["blk.0.ssm_x.weight"][:2]),
    "Mamba-2 in GGUF": lambda a: squares(a["blk.3.ssm_in.weight"][-2:]),
    "Mamba-2 with a bias": lambda a: squares(a["mixer.in_proj.weight"][-4:]),
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
    "simple GLA": lambda a: squares(a["gk_proj.weight"]),
    "MesaNet": lambda a: (squares(a["a_proj.weight"]), squares(a["b_proj.weight"])),
    "HGRN": lambda a: squares(a["model.layers.2.attn.f_proj.weight"]),
    "hippogriff": lambda a: tuple(squares(a["layers.0.hawk.gates.weight"]).reshape(2, 5)),
    "mLSTM, fused": lambda a: tuple(squares(a["ifgate_preact.weight"]).reshape(2, HEADS)[::-1]),
    "minGRU": lambda a: squares(a["to_hidden_and_gate.weight"][4:]),
}


@pytest.mark.parametrize("name", NORMS)
def test_the_weights_that_the_gates_see_the_input_through(name: str) -> None:
    layer = LAYERS[name]
    store = MemoryStore(layer.arrays)
    match = layer.family.find(store.tensors)[layer.index]
    drive = layer.family.read(store, match, ReadOptions(gates=True, assume=layer.assume)).gate
    assert isinstance(drive, GateDrive)
    expected = NORMS[name](layer.arrays)
    gate, write = expected if isinstance(expected, tuple) else (expected, None)
    times = drive.gate.bias.size // gate.size  # one projection moves several λ
    assert_allclose(drive.gate.norms.inputs, np.repeat(gate, times))
    assert (write is None) == (drive.write_gate is None)
    if drive.write_gate is not None:
        times = drive.write_gate.bias.size // write.size
        assert_allclose(drive.write_gate.norms.inputs, np.repeat(write, times))


def test_a_rate_that_was_rounded_away_has_no_gates() -> None:
    arrays = LAYERS["Mamba in GGUF"].arrays
    rate = arrays["blk.0.ssm_a"].copy()
    rate[0, 0] = 0.0
    assert gates_of(arrays | {"blk.0.ssm_a": rate}, GgufMamba()) is None


@parametrised
def test_a_tensor_that_diverged_is_named(layer: Layer) -> None:
    for tensor in {group.tensor for group in read(layer).parameters}:
        with pytest.raises(TensorError, match=f"{tensor}: .*NaN"):
            read(layer, {tensor: np.full_like(layer.arrays[tensor], np.nan)})


@parametrised
def test_a_tensor_of_another_size_is_refused_by_name_or_no_layer(layer: Layer) -> None:
    for tensor in {group.tensor for group in read(layer).parameters}:
        whole = layer.arrays[tensor]
        for hostile in (np.zeros((0, *whole.shape[1:])), np.append(whole, 0.5), whole[..., None]):
            arrays = layer.arrays | {tensor: hostile}
            store = MemoryStore(arrays)
            for match in layer.family.find(store.tensors):
                options = ReadOptions(assume=layer.assume, gates=True)
                try:
                    recurrence = layer.family.read(store, match, options)
                except TensorError as error:
                    assert any(name in str(error) for name in arrays)  # noqa: PT017
                else:
                    assert np.isfinite(recurrence.log_eigenvalues).all()


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


def sigmoid(x: NDArray) -> NDArray:
    return 1 / (1 + np.exp(-x))


def softplus(x: NDArray) -> NDArray:
    return np.log1p(np.exp(x))


def gates_of(arrays: Arrays, family: Family, **metadata: str) -> object:
    store = MemoryStore(arrays)
    store.metadata = metadata
    (match,) = match_of(arrays, family)
    return family.read(store, match, ReadOptions(gates=True)).gate


def test_gguf_keeps_the_rate_of_a_delta_rule_negated() -> None:
    """`ggml_mul(softplus(alpha + ssm_dt), ssm_a)` of llama.cpp, ssm_a being -exp(A_log)."""
    for arrays in (QWEN3_NEXT, QWEN3_5):
        recurrence = read_layer(arrays, GatedDeltaNet())
        expected = arrays["blk.2.ssm_a"] * softplus(arrays["blk.2.ssm_dt.bias"])
        assert_allclose(recurrence.log_eigenvalues.real, expected, rtol=1e-13)
        assert_allclose(np.exp(recurrence.log_gain), 0.5)
        assert recurrence.multiplicity == 4 * 4  # keys as wide as values: no metadata
        assert not recurrence.stable_by_construction
    rounded = QWEN3_5 | {"blk.2.ssm_a": np.zeros(4)}
    assert_allclose(read_layer(rounded, GatedDeltaNet()).log_eigenvalues, 0, rtol=0)
    recurrence = read_layer(KIMI_LINEAR, KDA())
    rate = np.repeat(KIMI_LINEAR["blk.1.ssm_a"].ravel(), 3)
    expected = rate * softplus(KIMI_LINEAR["blk.1.ssm_dt.bias"])
    assert_allclose(recurrence.log_eigenvalues.real, expected, rtol=1e-13)
    assert recurrence.multiplicity == 4


def test_gguf_orders_step_and_strength_by_the_key_heads_of_its_metadata() -> None:
    for none in ({}, {"qwen3next.ssm.group_count": "9" * 5000}, {"a.ssm.group_count": "3"}):
        assert isinstance(gates_of(QWEN3_NEXT, GatedDeltaNet(), **none), NoDrive)
    metadata = {"qwen3next.ssm.group_count": "2", "qwen3next.ssm.state_size": "3"}
    drive = gates_of(QWEN3_NEXT, GatedDeltaNet(), **metadata)
    assert isinstance(drive, GateDrive)
    assert drive.write_gate is not None
    rows = (QWEN3_NEXT["blk.2.ssm_ba.weight"] ** 2).sum(1).reshape(2, 2, 2)
    assert_allclose(drive.write_gate.norms.inputs, rows[:, 0].ravel())
    assert_allclose(drive.gate.norms.inputs, rows[:, 1].ravel())
    assert drive.write is not None
    assert drive.write.width == 3


@pytest.mark.parametrize("name", ["Gated DeltaProduct", "Comba"])
def test_delta_rules_of_another_transition_have_the_decay_of_gated_delta_nets(name: str) -> None:
    """g of fla/layers/gated_deltaproduct.py and comba.py, once in a step."""
    arrays = LAYERS[name].arrays
    recurrence = read_layer(arrays, GatedDeltaNet())
    expected = -np.exp(arrays["A_log"]) * softplus(arrays["dt_bias"])
    assert_allclose(recurrence.log_eigenvalues.real, expected, rtol=1e-13)
    assert recurrence.multiplicity == 3 * 4
    assert isinstance(gates_of(arrays, GatedDeltaNet()), NoDrive)
    product = name == "Gated DeltaProduct"
    assert_allclose(np.exp(recurrence.log_gain), 1.0 if product else 0.5)
    assert recurrence.rank_one is not None
    assert recurrence.rank_one.lowest == -1
    assert (recurrence.rank_one == delta_rule(negative=True, count=2)) is product
    assert match_of(arrays | {"b_proj.weight": np.zeros((3, 8))}, GatedDeltaNet()) == []


def test_the_eigenvalue_of_comba_reaches_what_is_said() -> None:
    rule = read_layer(LAYERS["Comba"].arrays, GatedDeltaNet()).rank_one
    key = np.array([0.6, 0.8])
    # fused_recurrent_comba: the value loses S k before S decays.
    values = np.linalg.eigvalsh(0.01 * np.eye(2) - 0.99 * np.outer(key, key))
    assert rule is not None
    assert rule.lowest < values[0] < rule.lowest + 0.05


def test_gated_delta_net_2_erases_by_the_key_and_writes_by_the_value() -> None:
    """g of fla/layers/gdn2.py; w stays below 1 where b may reach 2."""
    arrays = LAYERS["Gated DeltaNet-2"].arrays
    recurrence = read_layer(arrays, KDA(), negative_eigenvalues="true")
    rate = np.repeat(np.exp(KDA_LAYER["A_log"]).ravel(), 3)
    expected = -rate * softplus(KDA_LAYER["dt_bias"])
    assert_allclose(recurrence.log_eigenvalues.real, expected, rtol=1e-13)
    assert_allclose(np.exp(recurrence.log_gain), 0.5)
    assert recurrence.rank_one == delta_rule(negative=True)
    assert isinstance(gates_of(arrays, KDA()), NoDrive)
    random = np.random.default_rng(3)
    for _ in range(200):
        decay, erase, key = (random.uniform(0, 1, 3), 2 * random.uniform(0, 1, 3), normal(random))
        transition = (np.eye(3) - np.outer(key, erase * key)) * decay
        values = np.linalg.eigvals(transition)
        assert_allclose(values.imag, 0, atol=1e-9)
        assert values.real.min() > -decay.max()
        assert np.sort(values.real)[1] > decay.min() - 1e-12


def normal(random: np.random.Generator) -> NDArray:
    key = random.normal(size=3)
    return key / np.linalg.norm(key)


def test_layers_with_the_gate_of_gla() -> None:
    """fla/layers/gla.py, simple_gla.py, mesa_net.py and gsa.py."""
    recurrence = read_layer(GLA_LAYER, GLA())
    assert_allclose(np.exp(16 * recurrence.log_eigenvalues), sigmoid(GLA_LAYER["gk_proj.1.bias"]))
    recurrence = read_layer(SIMPLE_GLA, GLA())
    assert_allclose(np.exp(16 * recurrence.log_eigenvalues), sigmoid(SIMPLE_GLA["gk_proj.bias"]))
    assert recurrence.multiplicity == 3 * 4
    recurrence = read_layer(MESA_NET, GLA(), gate_logit_normalizer="2")
    assert_allclose(np.exp(recurrence.log_eigenvalues), sigmoid(MESA_NET["a_proj.bias"]))
    assert_allclose(np.exp(recurrence.log_gain), sigmoid(MESA_NET["b_proj.bias"]))
    assert recurrence.multiplicity == 3 * (3 + 3)  # H_kk and H_kv
    recurrence = read_layer(SLOT_ATTENTION, GLA())
    assert recurrence.size == 10
    assert_allclose(np.exp(8 * recurrence.log_eigenvalues), 0.5)
    assert_allclose(np.exp(recurrence.log_gain), 1 - 0.5 ** (1 / 8))
    assert recurrence.parameters == ()
    drive = gates_of(SLOT_ATTENTION, GLA())
    assert isinstance(drive, GateDrive)
    assert_allclose(drive.gate.norms.inputs, (SLOT_ATTENTION["f_proj.weight"] ** 2).sum(1))


@pytest.mark.parametrize("other", ["i_proj.weight", "r_proj.weight", "f_proj.bias"])
def test_other_layers_with_a_forget_projection_are_not_slots(other: str) -> None:
    assert match_of(SLOT_ATTENTION | {other: np.zeros((4, 8))}, GLA()) == []
    assert match_of(GATED_DELTA_NET, GLA()) == []
