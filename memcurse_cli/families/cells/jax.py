"""The recurrent cells for JAX: of Flax, linen and nnx, of Haiku, and of Sonnet 2 in its names."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from memcurse_cli.checkpoints.store import TensorStore
from memcurse_cli.families.cells.layout import (
    IFGO,
    IGFO,
    RZN,
    STATE,
    ZRN,
    CellFamily,
    Layout,
    Variant,
    elman,
)
from memcurse_cli.families.dense.dense_layer import ACTIVATION
from memcurse_cli.families.family import Assumed, Assumption, Match, ReadOptions

RESIDUAL = Assumption(
    key="residual",
    default="no",
    choices=("no", "yes"),
    meaning="whether a SimpleCell of Flax adds its state before the activation",
)


def _linen(sides: Mapping[str, str]) -> Layout:
    """A module of each gate and side, named by letters: ``ii`` and ``hi`` of the input gate."""
    inputs = {f"i{letter}.kernel": (gate,) for gate, letter in sides.items()}
    hidden = {f"h{letter}.kernel": (gate,) for gate, letter in sides.items()}
    biases = {f"{side}{letter}.bias": (gate,) for gate, letter in sides.items() for side in "ih"}
    # `if` is a keyword, so that nnx's attribute is called if_.
    roles = {role: role for role in (*inputs, *hidden, *biases)}
    names = {role.replace("if.", "if_."): role for role in roles} | roles
    return Layout(inputs, hidden, biases, inner="hn.bias", names=names, stacks=True, told=True)


def _fused(gates: tuple[str, ...]) -> Layout:
    """nnx: one module of each side."""
    return Layout(
        {"dense_i.kernel": gates},
        {"dense_h.kernel": gates},
        {"dense_h.bias": gates, "dense_i.bias": gates},
        inner="",
        stacks=True,
        told=True,
    )


LSTMS = (_linen({"input": "i", "forget": "f", "cell": "g", "output": "o"}), _fused(IFGO))
GRUS = (_linen({"reset": "r", "update": "z", "new": "n"}), _fused(RZN))
MGU = replace(
    _linen({"update": "f", "new": "n"}), strangers=("hi.kernel", "hr.kernel", "hz.kernel")
)
SIMPLES = (_linen({"state": ""}), _fused(STATE))


def _simple(store: TensorStore, match: Match, options: ReadOptions) -> Variant:
    residual = Assumed(options)
    yes, plain = residual.choose(RESIDUAL) == "yes", elman(options, residual.sentences)
    return replace(plain, matrix=lambda stored: stored + np.eye(len(stored))) if yes else plain


FLAX_LSTM = CellFamily(
    name="flax_lstm",
    title="Flax LSTM",
    recognised_by="hi, hf, hg, ho beside ii, if, ig, io; or dense_h (H, 4H) beside dense_i",
    equation="λ = σ(b_f), γ = σ(b_i), fused columns i, f, g, o",
    source="flax.linen and flax.nnx LSTMCell and OptimizedLSTMCell; Gers et al. 2000",
    layouts=LSTMS,
)
# linen has the biases of r and z on the input side alone, and a second one of n inside the reset
# gate; nnx has all three on the input side.
FLAX_GRU = CellFamily(
    name="flax_gru",
    title="Flax GRU",
    recognised_by="hr, hz, hn beside ir, iz, in; or dense_h (H, 3H) beside dense_i",
    equation="λ = σ(b_z), γ = 1 - λ, fused columns r, z, n",
    source="flax.linen and flax.nnx GRUCell; Cho et al. 2014",
    layouts=GRUS,
)
FLAX_MGU = CellFamily(
    name="flax_mgu",
    title="Flax MGU (minimal gated unit)",
    recognised_by="hf, hn beside if, in, and no other gate",
    equation="λ = σ(b_f), γ = 1 - λ",
    source="flax.linen.MGUCell; Zhou et al. 2016, arXiv 1603.09420",
    layouts=(MGU,),
)
# Linearised: A = kernelᵀ, and I more with ``residual``.
FLAX_SIMPLE = CellFamily(
    name="flax_simple",
    title="Flax SimpleCell (dense)",
    recognised_by="h (H, H) beside i (inputs, H); or dense_h (H, H) beside dense_i",
    equation="λ = eig(kernelᵀ), plus 1 where residual=yes",
    source="flax.linen and flax.nnx SimpleCell; Elman 1990",
    layouts=SIMPLES,
    variant=_simple,
    assumptions=(ACTIVATION, RESIDUAL),
)

_CORE = Layout({"w_i": ZRN}, {"w_h": ZRN}, {"b": ZRN}, keeps=False)
_SONNET = Layout({"w_i": IFGO}, {"w_h": IFGO}, {"b": IFGO}, projection="projection")
# A matrix and a bias alone are any linear layer's, and two of them any network's.
_LINEAR = Layout(
    {"kernel": IGFO},
    {"kernel": IGFO},
    {"bias": IGFO},
    whole=True,
    names={"linear.w": "kernel", "linear.b": "bias"},
    module=re.compile(r"(?:.*[./,])?\w*lstm\w*", re.IGNORECASE),
)
_HAIKU_RNN, _SONNET_RNN = (
    Layout(
        {f"{inputs}.w": STATE},
        {f"{hidden}.w": STATE},
        {f"{inputs}.b": STATE, f"{hidden}.b": STATE},
        module=module,
    )
    for inputs, hidden, module in (
        ("linear", "linear_1", re.compile(r"(?:.*[./,])?\w*rnn\w*", re.IGNORECASE)),
        ("input_to_hidden", "hidden_to_hidden", None),
    )
)


# The reset gate acts before the matrix; the update gate writes where that of torch and Keras keeps.
HAIKU_GRU = CellFamily(
    name="haiku_gru",
    title="Haiku and Sonnet 2 GRU",
    recognised_by="w_h (H, 3H) beside w_i (inputs, 3H) and b (3H)",
    equation="λ = 1 - σ(b_z), γ = σ(b_z), columns z, r, a",
    source="haiku.GRU; sonnet.GRU of Sonnet 2; Cho et al. 2014",
    layouts=(_CORE,),
)
# The stored bias holds the forget_bias already.
SONNET_LSTM = CellFamily(
    name="sonnet_lstm",
    title="Sonnet 2 LSTM",
    recognised_by="w_h (H, 4H) beside w_i (inputs, 4H) and b (4H)",
    equation="λ = σ(b_f), γ = σ(b_i), columns i, f, g, o",
    source="sonnet.LSTM and UnrolledLSTM of Sonnet 2; Gers et al. 2000",
    layouts=(_SONNET,),
)
# One linear multiplies [x, h], and 1 is added to f whatever is stored.
HAIKU_LSTM = CellFamily(
    name="haiku_lstm",
    title="Haiku LSTM",
    recognised_by="linear/w (inputs + H, 4H) and linear/b (4H) in a module called lstm",
    equation="λ = σ(b_f + 1), γ = σ(b_i), columns i, g, f, o",
    source="haiku.LSTM; Gers et al. 2000",
    layouts=(_LINEAR,),
    variant=lambda *_: Variant(added={"forget": 1.0}),
)
# A = wᵀ of what is stored, linearised; its bias says at which slope.
HAIKU_RNN = CellFamily(
    name="haiku_rnn",
    title="Haiku and Sonnet 2 VanillaRNN (dense)",
    recognised_by=(
        "linear_1/w (H, H) beside linear/w (inputs, H) in a module called rnn; or "
        "hidden_to_hidden/w beside input_to_hidden/w"
    ),
    equation="λ = eig(wᵀ)",
    source="haiku.VanillaRNN; sonnet.VanillaRNN of Sonnet 2; Elman 1990",
    layouts=(_HAIKU_RNN, _SONNET_RNN),
    variant=lambda store, match, options: elman(
        options, default="relu" if "linear.w" in match.tensors else "tanh"
    ),
    assumptions=(ACTIVATION,),
)
