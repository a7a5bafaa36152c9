"""A small layer of every selective family, under every library's names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from memcurse_cli.families.family import Family
from memcurse_cli.families.selective.delta_rule import KDA, DeltaNet, GatedDeltaNet
from memcurse_cli.families.selective.linear_attention import (
    GLA,
    HGRN,
    GateLoop,
    LightningAttention,
    RetNet,
    SimpleGateLoop,
    TorchscaleRetNet,
)
from memcurse_cli.families.selective.mamba import GgufMamba, Mamba, Mamba2, Mamba3
from memcurse_cli.families.selective.mixing import QRNN, RGLRU, SRU, Hawk, MinGRU, MinLSTM
from memcurse_cli.families.selective.rwkv import RWKV, RWKV7
from memcurse_cli.families.selective.xlstm import MLSTM, SLSTM

Arrays = dict[str, NDArray[np.float64]]


@dataclass(frozen=True)
class Layer:
    """A layer and how to read it.

    ``index`` is that of the layer among those found; ``driven`` says whether one law moves its
    gates.
    """

    family: Family
    arrays: Arrays
    assume: Mapping[str, str] = field(default_factory=dict)
    index: int = 0
    driven: bool = True


RANDOM = np.random.default_rng(41)


def normal(*shape: int) -> NDArray[np.float64]:
    return RANDOM.normal(size=shape)


def uniform(low: float, high: float, *shape: int) -> NDArray[np.float64]:
    return RANDOM.uniform(low, high, shape)


def mamba2(directions: int = 1, *, bias: bool = True) -> Arrays:
    """Mamba-2's mixer, or Hydra's with two directions: 4 heads of 4 channels, a state of 3.

    The rows of in_proj are z, x, B and C of 2 groups and every direction, and Δ of each.
    """
    heads, width = 4, 16
    convolved = width + 2 * directions * 2 * 3
    rows = width + convolved + directions * heads
    arrays = {
        "mixer.A_log": uniform(-2, 1, heads),
        "mixer.dt_bias": uniform(-4, 1, heads),
        "mixer.D": np.ones(heads),
        "mixer.in_proj.weight": normal(rows, 8),
        "mixer.conv1d.weight": normal(convolved, 1, 4),
        "mixer.norm.weight": np.ones(width),
    }
    if directions == 2:
        arrays["mixer.fc_D.weight"] = normal(heads, width)
    return arrays | ({"mixer.in_proj.bias": normal(rows)} if bias else {})


GGUF_MAMBA = {
    "blk.0.ssm_a": -np.exp(normal(4, 3)),
    "blk.0.ssm_dt.bias": normal(4),
    "blk.0.ssm_dt.weight": normal(4, 2),
    "blk.0.ssm_x.weight": normal(8, 4),
}
# 2 heads of 3 channels in 2 groups, with a state of 5: 6 + 2·2·5 convolved channels.
GGUF_MAMBA_2 = {
    "blk.3.ssm_a": -np.exp(normal(2, 1)),
    "blk.3.ssm_dt.bias": normal(2),
    "blk.3.ssm_d": np.ones((2, 1)),
    "blk.3.ssm_norm.weight": np.ones((2, 3)),
    "blk.3.ssm_conv1d.weight": np.ones((26, 4)),
    "blk.3.ssm_in.weight": normal(34, 7),
    "blk.3.ssm_out.weight": np.ones((7, 6)),
}

HEADS, KEYS, VALUES, WIDTH = 2, 3, 4, 8
DELTA_NET = {
    "q_proj.weight": normal(HEADS * KEYS, WIDTH),
    "k_proj.weight": normal(HEADS * KEYS, WIDTH),
    "v_proj.weight": normal(HEADS * VALUES, WIDTH),
    "b_proj.weight": normal(HEADS, WIDTH),
    "o_norm.weight": np.ones(VALUES),
}
_ATTENTION = {name: DELTA_NET[name] for name in ("q_proj.weight", "k_proj.weight", "v_proj.weight")}
GATED_DELTA_NET = DELTA_NET | {
    "A_log": normal(HEADS),
    "dt_bias": normal(HEADS) - 3,
    "a_proj.weight": normal(HEADS, WIDTH),
}
# Qwen3-Next and Qwen3.5 as llama.cpp's converter stores them: 4 value heads of 2 key heads.
QWEN3_NEXT = {
    "blk.2.ssm_a": -np.exp(normal(4)),
    "blk.2.ssm_dt.bias": normal(4) - 2,
    "blk.2.ssm_ba.weight": normal(8, WIDTH),
    "blk.2.ssm_norm.weight": np.ones(VALUES),
    "blk.2.ssm_conv1d.weight": normal(28, 4),
    "blk.2.ssm_out.weight": normal(WIDTH, 16),
    "blk.2.attn_qkv.weight": normal(28, WIDTH),
    "blk.2.attn_gate.weight": normal(16, WIDTH),
}
QWEN3_5 = {name: array for name, array in QWEN3_NEXT.items() if "ssm_ba" not in name} | {
    "blk.2.ssm_alpha.weight": normal(4, WIDTH),
    "blk.2.ssm_beta.weight": normal(4, WIDTH),
}
KDA_LAYER = {
    "A_log": normal(1, 1, HEADS, 1),
    "dt_bias": normal(HEADS * KEYS) - 2,
    "f_a_proj.weight": normal(2, WIDTH),
    "f_b_proj.weight": normal(HEADS * KEYS, 2),
    "b_proj.weight": normal(HEADS, WIDTH),
    "v_proj.weight": normal(HEADS * VALUES, WIDTH),
}
KIMI_LINEAR = {
    "blk.1.ssm_a": -np.exp(normal(1, 1, HEADS, 1)),
    "blk.1.ssm_dt.bias": normal(HEADS * KEYS) - 2,
    "blk.1.ssm_f_a.weight": normal(2, WIDTH),
    "blk.1.ssm_f_b.weight": normal(HEADS * KEYS, 2),
    "blk.1.ssm_beta.weight": normal(HEADS, WIDTH),
    "blk.1.ssm_g_b.weight": normal(HEADS * VALUES, 2),
    "blk.1.ssm_norm.weight": np.ones(VALUES),
}

GLA_LAYER = {
    "gk_proj.0.weight": normal(2, WIDTH),
    "gk_proj.1.weight": normal(6, 2),
    "gk_proj.1.bias": 3 * normal(6),
}
SIMPLE_GLA = _ATTENTION | {
    "g_proj.weight": normal(HEADS * VALUES, WIDTH),
    "gk_proj.weight": normal(HEADS, WIDTH),
    "gk_proj.bias": 3 * normal(HEADS),
    "g_norm_swish_gate.weight": np.ones(VALUES),
    "o_proj.weight": normal(WIDTH, HEADS * VALUES),
}
MESA_NET = _ATTENTION | {
    "v_proj.weight": normal(HEADS * KEYS, WIDTH),
    "a_proj.weight": normal(HEADS, WIDTH),
    "a_proj.bias": 3 + normal(HEADS),
    "b_proj.weight": normal(HEADS, WIDTH),
    "b_proj.bias": normal(HEADS),
    "lambda_params": normal(HEADS * KEYS),
    "o_norm.weight": np.ones(KEYS),
}
SLOT_ATTENTION = _ATTENTION | {
    "f_proj.weight": normal(HEADS * 5, WIDTH),
    "g_norm.weight": np.ones(WIDTH),
    "o_proj.weight": normal(WIDTH, HEADS * VALUES),
}


RETNET = _ATTENTION | {
    "g_proj.weight": normal(HEADS * VALUES, WIDTH),
    "o_proj.weight": normal(WIDTH, HEADS * VALUES),
    "g_norm.weight": np.ones(VALUES),
}
TORCHSCALE = {
    f"decoder.layers.0.retention.{name}": RETNET[name] for name in [*_ATTENTION, "g_proj.weight"]
} | {
    "decoder.layers.0.retention.out_proj.weight": RETNET["o_proj.weight"],
    "decoder.retnet_rel_pos.decay": np.array([-0.1, -3.0]),
    "decoder.retnet_rel_pos.angle": np.ones(2),
}
LIGHTNING = {"slope_rate": np.array([0.1, 0.2]), "qkv_proj.weight": np.zeros((12, 4))}


def hgrn(prefix: str = "model.", layers: int = 3, **extra: NDArray[np.float64]) -> Arrays:
    """A model of HGRN, or of HGRN2 with a q_proj."""
    random = np.random.default_rng(19)
    arrays = {f"{prefix}lower_bounds": random.normal(size=(layers, 4))}
    for layer in range(layers):
        for name in ("f_proj", "i_proj", "o_proj"):
            arrays[f"{prefix}layers.{layer}.attn.{name}.weight"] = random.normal(size=(4, 4))
        arrays[f"{prefix}layers.{layer}.attn.g_norm.weight"] = np.ones(4)
        arrays |= {f"{prefix}layers.{layer}.attn.{name}": array for name, array in extra.items()}
    return arrays


DECAY = uniform(-6, 1, 6)
_KEY_AND_VALUE = {"key.weight": np.zeros((6, 6)), "value.weight": np.zeros((6, 6))}
RWKV_LAYERS: dict[str, Arrays] = {
    "RWKV-4": {"time_decay": DECAY, "time_first": np.zeros(6)} | _KEY_AND_VALUE,
    "RWKV-5": {"time_decay": DECAY.reshape(2, 3), "time_faaaa": np.zeros((2, 3))} | _KEY_AND_VALUE,
    "RWKV-5 by head": {"time_decay": DECAY[:2], "time_first": np.zeros(2)} | _KEY_AND_VALUE,
}
TRANSPOSED = {"ffn.key.weight": np.zeros((6, 24))}
UNITS = 32
_RANDOM = np.random.default_rng(31)
BASE = _RANDOM.normal(-1.5, 0.5, UNITS)
INNER = _RANDOM.normal(0.0, 0.25, (UNITS, 8))
OUTER = _RANDOM.normal(0.0, 0.4, (8, UNITS))
MIXING = _RANDOM.uniform(0.0, 1.0, UNITS)
OWN_MIXING = _RANDOM.uniform(0.0, 1.0, UNITS)
# w, k, v, r, g, as RWKV-LM has them.
MOVING_INNER = _RANDOM.normal(0.0, 0.25, (UNITS, 5 * 8))
MOVING_OUTER = _RANDOM.normal(0.0, 0.2, (5, 8, UNITS))
_SQUARE = np.zeros((UNITS, UNITS))


_ORDER = [3, 0, 1, 2, 4]  # w, k, v, r, g as r, w, k, v, g
RWKV6_LAYERS: dict[str, dict[str, np.ndarray]] = {
    "RWKV-LM": {
        "time_decay": BASE.reshape(1, 1, UNITS),
        "time_faaaa": np.zeros((4, 8)),
        "time_decay_w1": INNER,
        "time_decay_w2": OUTER,
        "time_maa_x": OWN_MIXING.reshape(1, 1, UNITS),
        "time_maa_w": MIXING.reshape(1, 1, UNITS),
        "time_maa_w1": MOVING_INNER,
        "time_maa_w2": MOVING_OUTER,
        "key.weight": _SQUARE,
        "value.weight": _SQUARE,
    },
    "flash-linear-attention": {
        "w_proj.linear.lora.2.bias": BASE,
        "bonus": np.zeros((4, 8)),
        "w_proj.linear.lora.0.weight": INNER.T,
        "w_proj.linear.lora.2.weight": OUTER.T,
        "x_bias": np.stack([np.zeros(UNITS), MIXING, *np.zeros((3, UNITS))]),
        "x_proj.0.linear.weight": MOVING_INNER.T.reshape(5, 8, UNITS)[_ORDER].reshape(-1, UNITS),
        "x_proj.0.mu": OWN_MIXING,
        "x_proj.2.weight": MOVING_OUTER[_ORDER].transpose(2, 0, 1).reshape(UNITS, 5 * 8),
        "k_proj.linear.weight": _SQUARE,
        "v_proj.linear.weight": np.zeros((2 * UNITS, UNITS)),
    },
    "llama.cpp": {
        "time_mix_decay.weight": BASE,
        "time_mix_first.weight": np.zeros((4, 8)),
        "time_mix_decay_w1.weight": INNER.T,
        "time_mix_decay_w2.weight": OUTER.T,
        "time_mix_lerp_x.weight": OWN_MIXING.reshape(1, 1, UNITS),
        "time_mix_lerp_fused.weight": np.concatenate([MIXING, np.zeros(4 * UNITS)]).reshape(
            5, 1, 1, UNITS
        ),
        "time_mix_w1.weight": MOVING_INNER.T,
        "time_mix_w2.weight": MOVING_OUTER.swapaxes(1, 2),
        "time_mix_key.weight": _SQUARE,
        "time_mix_value.weight": _SQUARE,
    },
}
RWKV7_LAYERS: dict[str, dict[str, np.ndarray]] = {
    "RWKV-LM": {
        "w0": BASE.reshape(1, 1, UNITS),
        "w1": INNER,
        "w2": OUTER,
        "x_w": MIXING.reshape(1, 1, UNITS),
        "k_k": np.ones((1, 1, UNITS)),
        "value.weight": _SQUARE,
        "r_k": np.zeros((4, 8)),
    },
    "flash-linear-attention": {
        "w_lora.lora.2.bias": BASE,
        "w_lora.lora.0.weight": INNER.T,
        "w_lora.lora.2.weight": OUTER.T,
        "x_w": MIXING.reshape(1, 1, UNITS),
        "k_k": np.ones(UNITS),
        "v_proj.weight": _SQUARE,
        "r_k": np.zeros((4, 8)),
    },
    "llama.cpp": {
        "time_mix_w0.weight": BASE,
        "time_mix_w1.weight": INNER.T,
        "time_mix_w2.weight": OUTER.T,
        "time_mix_lerp_fused.weight": np.stack([_SQUARE[0], MIXING, *_SQUARE[:4]]).reshape(
            6, 1, 1, UNITS
        ),
        "time_mix_k_k.weight": np.ones(UNITS),
        "time_mix_value.weight": _SQUARE,
        "time_mix_r_k.weight": np.zeros((4, 8)),
    },
}

RG_LRU = {
    "recurrent_param": normal(6) - 2,
    "recurrent_gate_bias": normal(2, 3),
    "recurrent_gate_weight": normal(2, 3, 3),
    "input_gate_bias": normal(2, 3),
    "input_gate_weight": normal(2, 3, 3),
}
_RENAMED = ("a_param", "a_gate.b", "a_gate.w", "input_gate.b", "input_gate.w")
RECURRENT_GEMMA = dict(zip(_RENAMED, RG_LRU.values(), strict=True))
TURNING = RECURRENT_GEMMA | {"a_imag_param": uniform(-2, 2, 6)}
HIPPOGRIFF = {
    "layers.0.hawk.gates.weight": normal(10, 5),
    "layers.0.hawk.gates.bias": normal(10),
    "layers.0.hawk.forget_base": uniform(-9, -4, 5),
    "layers.0.hawk.alpha_log_scale": np.array([np.log(8)]),
}
GRIFFIN_TORCH = {f"rglru.{role}": normal(5) for role in ("ba", "bx", "Lambda")} | {
    f"rglru.{role}": normal(5, 5) for role in ("Wa", "Wx")
}

INPUT, FORGET = 5 * normal(HEADS), 5 * normal(HEADS)
MLSTM_LARGE = {
    "igate_preact.bias": INPUT,
    "fgate_preact.bias": FORGET,
    "k.weight": np.zeros((4, WIDTH)),
    "v.weight": np.zeros((8, WIDTH)),
}
MLSTM_FUSED = {
    "ifgate_preact.bias": np.concatenate([INPUT, FORGET]),
    "ifgate_preact.weight": 0.1 * normal(2 * HEADS, WIDTH),
    "qkv_opreact.weight": np.zeros((2 * 4 + 2 * 8, WIDTH)),
    "out_proj.weight": np.zeros((WIDTH, 8)),
}
MLSTM_BLOCK = {
    "igate.bias": INPUT,
    "fgate.bias": FORGET,
    "igate.weight": 0.1 * normal(HEADS, 3 * WIDTH),
    "fgate.weight": 0.1 * normal(HEADS, 3 * WIDTH),
    "outnorm.weight": np.ones(WIDTH),
}
SLSTM_BIAS = normal(4, 2, 3)
SLSTM_VANILLA = {"_bias_": SLSTM_BIAS.ravel(), "_recurrent_kernel_": np.zeros((2, 12, 3))}
SLSTM_CUDA = {
    "_bias_": SLSTM_BIAS.swapaxes(0, 1).ravel(),
    "_recurrent_kernel_": np.zeros((2, 3, 12)),
}


def sru(columns: int = 4, width: int = 3) -> Arrays:
    """An SRU of 4 inputs, whose matrices have 3 or 4 columns of each unit."""
    random = np.random.default_rng(columns)
    shapes = {"weight": (4, columns * width), "weight_c": (2 * width,), "bias": (2 * width,)}
    return {name: random.normal(size=shape) for name, shape in shapes.items()} | {
        "scale_x": np.ones(1)
    }


def min_rnn(gates: int, *, fused: bool = True, scale: float = 1.0) -> Arrays:
    """A minGRU, of one gate, or a minLSTM, in either naming: 7 units behind 4 inputs."""
    random = np.random.default_rng(6)
    weights = random.normal(0, scale, (gates + 1, 7, 4))
    biases = random.normal(size=(gates + 1, 7))
    if fused:
        name = "to_hidden_and_gate" if gates == 1 else "to_hidden_and_f_i_gate"
        return {f"{name}.weight": weights.reshape(-1, 4), f"{name}.bias": biases.ravel()}
    names = ("linear_h", "linear_z") if gates == 1 else ("linear_h", "linear_f", "linear_i")
    arrays = {f"{name}.weight": weight for name, weight in zip(names, weights, strict=True)}
    return arrays | {f"{name}.bias": bias for name, bias in zip(names[1:], biases[1:], strict=True)}


GATELOOP = {
    "to_qkv.weight": normal(3 * 4 * 3, 5),
    "to_a.0.weight": normal(2 * 4, 5),
    "to_a.0.bias": np.array([1.2, -0.7, -0.9, 0.8, -1.1, -0.6, 0.7, 1.5]),
}
SIMPLE_GATELOOP = {"to_qkva.0.weight": normal(15, 5), "norm.gamma": np.ones(5)}


def mamba3(
    *, groups: int = 1, rank: int = 1, state: int = 8, fraction: float = 0.5, scale: float = 0.3
) -> Arrays:
    """A mixer of 4 heads of 2 channels whose in_proj has the rows of the library's."""
    random = np.random.default_rng(9)
    rows = 2 * 8 + 2 * state * groups * rank + 3 * 4 + int(state * fraction) // 2
    return {
        "mixer.dt_bias": random.uniform(-4, 1, 4),
        "mixer.B_bias": np.ones((4, rank, state)),
        "mixer.C_bias": np.ones((4, rank, state)),
        "mixer.in_proj.weight": random.normal(0, scale, (rows, 6)),
        "mixer.out_proj.weight": np.ones((6, 8)),
    }


_PRODUCT = {
    name: np.repeat(array, 2, axis=0) if name[:2] in ("k_", "v_", "b_") else array
    for name, array in GATED_DELTA_NET.items()
}
_RATES, _STEPS = uniform(-2, 1, 4, 3), uniform(-4, 1, 4)
_GROUPS = {"groups": "2"}
_RWKV_CONVERTED = {
    "RWKV-4": -np.exp(np.linspace(-2, 0.5, 6)),
    "RWKV-5": np.exp(-np.exp(np.linspace(-2, 0.5, 6))).reshape(2, 3, 1),
}
_HYDRA = mamba2(2)

LAYERS: dict[str, Layer] = {
    "Mamba": Layer(Mamba(), {"mixer.A_log": _RATES, "mixer.dt_proj.bias": _STEPS}, driven=False),
    "Zamba": Layer(
        Mamba(),
        {
            "mamba.A_log": _RATES.reshape(2, 2, 3),
            "mamba.dt_proj_bias": _STEPS.reshape(2, 2),
            "mamba.dt_proj_weight": normal(2, 2, 4),
            "mamba.x_proj_weight": normal(2, 10, 2),
        },
    ),
    "VMamba": Layer(
        Mamba(),
        {
            "op.x_proj_weight": normal(2, 6, 2),
            "op.dt_projs_weight": normal(2, 2, 2),
            "op.dt_projs_bias": _STEPS.reshape(2, 2),
            "op.A_logs": _RATES,
            "op.Ds": np.ones(4),
        },
    ),
    "Mamba in GGUF": Layer(GgufMamba(), GGUF_MAMBA),
    "Mamba-2 in GGUF": Layer(GgufMamba(), GGUF_MAMBA_2),
    "Mamba-2": Layer(Mamba2(), mamba2(bias=False), _GROUPS),
    "Mamba-2 with a bias": Layer(Mamba2(), mamba2(), _GROUPS),
    "Hydra": Layer(Mamba2(), _HYDRA, _GROUPS, driven=False),
    "Hydra (backward)": Layer(Mamba2(), _HYDRA, _GROUPS, index=1, driven=False),
    "Gated DeltaNet": Layer(GatedDeltaNet(), GATED_DELTA_NET),
    "Gated DeltaProduct": Layer(GatedDeltaNet(), _PRODUCT, driven=False),
    "Comba": Layer(
        GatedDeltaNet(),
        GATED_DELTA_NET | {"D": np.ones(HEADS), "decay": np.ones(HEADS)},
        driven=False,
    ),
    "Qwen3-Next in GGUF": Layer(GatedDeltaNet(), QWEN3_NEXT, driven=False),
    "Qwen3.5 in GGUF": Layer(GatedDeltaNet(), QWEN3_5),
    "KDA": Layer(KDA(), KDA_LAYER),
    "KDA with a safe gate": Layer(KDA(), KDA_LAYER, {"kda_lower_bound": "-5"}),
    "Kimi-Linear in GGUF": Layer(KDA(), KIMI_LINEAR),
    "Gated DeltaNet-2": Layer(
        KDA(),
        KDA_LAYER
        | {
            "b_proj.weight": normal(HEADS * KEYS, WIDTH),
            "w_proj.weight": normal(HEADS * VALUES, WIDTH),
        },
        driven=False,
    ),
    "GLA": Layer(GLA(), GLA_LAYER),
    "GLA without a root": Layer(GLA(), GLA_LAYER, {"gate_logit_normalizer": "1"}),
    "simple GLA": Layer(GLA(), SIMPLE_GLA),
    "MesaNet": Layer(GLA(), MESA_NET),
    "HGRN": Layer(HGRN(), hgrn(), index=2, driven=False),
    **{name: Layer(RWKV(), arrays, driven=False) for name, arrays in RWKV_LAYERS.items()},
    **{f"RWKV-6, {name}": Layer(RWKV(), arrays) for name, arrays in RWKV6_LAYERS.items()},
    **{
        f"{name} of the rwkv package": Layer(
            RWKV(),
            {"att.time_decay": stored, "att.time_first": np.zeros(6), **TRANSPOSED},
            driven=False,
        )
        for name, stored in _RWKV_CONVERTED.items()
    },
    **{f"RWKV-7, {name}": Layer(RWKV7(), arrays) for name, arrays in RWKV7_LAYERS.items()},
    "RG-LRU": Layer(RGLRU(), RG_LRU),
    "recurrentgemma": Layer(RGLRU(), RECURRENT_GEMMA),
    "recurrentgemma, complex": Layer(RGLRU(), TURNING, driven=False),
    "hippogriff": Layer(Hawk(), HIPPOGRIFF),
    "griffin-torch": Layer(Hawk(), GRIFFIN_TORCH, driven=False),
    "mLSTM": Layer(MLSTM(), MLSTM_LARGE, driven=False),
    "mLSTM, fused": Layer(MLSTM(), MLSTM_FUSED),
    "mLSTM of a block": Layer(MLSTM(), MLSTM_BLOCK),
    "sLSTM": Layer(SLSTM(), SLSTM_VANILLA, driven=False),
    "sLSTM of the cuda backend": Layer(SLSTM(), SLSTM_CUDA, driven=False),
    "SRU": Layer(SRU(), sru() | {"weight_c": np.zeros(6)}),
    "SRU of three matrices": Layer(SRU(), sru(3) | {"weight_c": np.zeros(6)}),
    "SRU++ of one projection": Layer(
        SRU(), sru() | {"weight_c": np.zeros(6), "weight_proj": normal(6, 4)}
    ),
    "QRNN": Layer(
        QRNN(),
        {"rnn.layers.0.linear.weight": normal(12, 3), "rnn.layers.0.linear.bias": normal(12)},
    ),
    "QRNN of two parts": Layer(
        QRNN(),
        {"qrnn.layers.0.linear.weight": normal(8, 3), "qrnn.layers.0.linear.bias": normal(8)},
        {"output_gate": "no"},
    ),
    "minGRU": Layer(MinGRU(), min_rnn(1)),
    "minGRU of the paper": Layer(MinGRU(), min_rnn(1, fused=False)),
    "minLSTM": Layer(MinLSTM(), min_rnn(2), driven=False),
    "minLSTM of the paper": Layer(MinLSTM(), min_rnn(2, fused=False), driven=False),
    "GateLoop": Layer(
        GateLoop(), GATELOOP | {"to_a.0.bias": 3 + GATELOOP["to_a.0.bias"]}, driven=False
    ),
    "Mamba-3": Layer(Mamba3(), mamba3(), driven=False),
    "Mamba-3 of a softplus": Layer(
        Mamba3(), mamba3(state=9), {"rate_function": "softplus"}, driven=False
    ),
}
# No parameter moves their λ or γ at zero input.
STILL: dict[str, Layer] = {
    "DeltaNet": Layer(DeltaNet(), DELTA_NET),
    "gated slot attention": Layer(GLA(), SLOT_ATTENTION),
    "HGRN of one layer": Layer(HGRN(), hgrn("", layers=1)),
    "RetNet": Layer(RetNet(), RETNET),
    "RetNet of torchscale": Layer(TorchscaleRetNet(), TORCHSCALE),
    "lightning attention": Layer(LightningAttention(), LIGHTNING),
    "simple GateLoop": Layer(SimpleGateLoop(), SIMPLE_GATELOOP),
    "minGRU without a bias": Layer(
        MinGRU(), {"to_hidden_and_gate.weight": min_rnn(1)["to_hidden_and_gate.weight"]}
    ),
    "minLSTM without biases": Layer(
        MinLSTM(), {name: a for name, a in min_rnn(2, fused=False).items() if "weight" in name}
    ),
}
