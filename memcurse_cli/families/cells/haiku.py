"""The recurrent cores of Haiku, and of Sonnet 2, which names and orders its own alike."""

from __future__ import annotations

import re
from collections.abc import Mapping

from memcurse_cli.checkpoints.store import TensorSpec, TensorStore
from memcurse_cli.families.cells.layout import (
    IFGO,
    IGFO,
    STATE,
    ZRN,
    CellFamily,
    Layout,
    Variant,
    elman,
)
from memcurse_cli.families.dense.dense_layer import ACTIVATION
from memcurse_cli.families.family import Match, ReadOptions
from memcurse_cli.families.module_names import group_by_module

_CORE = Layout({"w_i": ZRN}, {"w_h": ZRN}, {"b": ZRN}, keeps=False)
_SONNET = Layout({"w_i": IFGO}, {"w_h": IFGO}, {"b": IFGO}, projection="projection")
_LINEAR = Layout({"kernel": IGFO}, {"kernel": IGFO}, {"bias": IGFO})
_RNNS = tuple(
    Layout(
        {f"{inputs}.w": STATE},
        {f"{hidden}.w": STATE},
        {f"{inputs}.b": STATE, f"{hidden}.b": STATE},
    )
    for inputs, hidden in (("linear", "linear_1"), ("input_to_hidden", "hidden_to_hidden"))
)
# A matrix and a bias alone are any linear layer's, and two of them any network's.
_LSTM = re.compile(r"(?:.*[./,])?\w*lstm\w*", re.IGNORECASE)
_RNN = re.compile(r"(?:.*[./,])?\w*rnn\w*", re.IGNORECASE)


def _lstms(tensors: Mapping[str, TensorSpec], family: str) -> list[Match]:
    """Modules that are called an LSTM and hold a linear of the shape of four gates."""
    roles = {"linear.w": "kernel", "linear.b": "bias"}
    found = []
    for module, names in group_by_module(tensors, roles).items():
        named = {roles[role]: name for role, name in names.items()}
        shapes = {role: tensors[name].shape for role, name in named.items()}
        if len(named) == len(roles) and _LSTM.fullmatch(module) and _LINEAR.fits(shapes):
            found.append(Match(module, named))
    return found


def _rnns(tensors: Mapping[str, TensorSpec], family: str) -> list[Match]:
    """Modules with the two linears, under Haiku's names only where the module is called an RNN."""
    haiku, sonnet = _RNNS
    called = [match for match in haiku.find(tensors, "") if _RNN.fullmatch(match.layer)]
    return called + sonnet.find(tensors, family)


def _rnn(store: TensorStore, match: Match, options: ReadOptions) -> Variant:
    return elman(options, default="relu" if "linear.w" in match.tensors else "tanh")


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
    matches=_lstms,
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
    layouts=_RNNS,
    matches=_rnns,
    variant=_rnn,
    assumptions=(ACTIVATION,),
)
