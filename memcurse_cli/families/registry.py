"""The families that are read, the more specific first. A new family is one line.

A row's marks say what a file must have for its code to be imported; the family's `find` decides.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache
from importlib import import_module
from typing import cast

from memcurse_cli.families.family import Family

# Every family by its place below `memcurse_cli.families`, where a class stands for its instance.
# Marks are alternatives, parted by ``|``, of what has to stand in the file: parts of names between
# ``.``, ``/`` and ``,``, with a ``*`` for any beginning or end. A family without marks is only
# looked for by its name.
_MARKS = {
    "state_space.diagonal.LRU": "nu_log theta_log | nu theta gamma_log | params_log",
    "selective.mixing.RGLRU": "recurrent_param | a_param",
    "selective.mixing.Hawk": "forget_base | Lambda ba",
    "selective.rwkv.RWKV": "time_decay | w_proj | time_mix_decay",
    "selective.rwkv.RWKV7": "w0 | w_lora | time_mix_w0",
    "selective.xlstm.MLSTM": "igate_preact | ifgate_preact | igate fgate",
    "selective.xlstm.SLSTM": "_recurrent_kernel_",
    "selective.delta_rule.GatedDeltaNet": "A_log dt_bias | ssm_a ssm_dt",
    "selective.delta_rule.KDA": "A_log dt_bias b_proj | ssm_a ssm_dt ssm_beta",
    "selective.delta_rule.DeltaNet": "b_proj o_norm",
    "selective.linear_attention.GLA": "gk_proj | lambda_params a_proj | f_proj g_norm",
    "selective.linear_attention.HGRN": "f_proj i_proj",
    "selective.linear_attention.RetNet": "g_proj g_norm*",
    "selective.linear_attention.TorchscaleRetNet": "retnet_rel_pos",
    "selective.linear_attention.GateLoop": "to_qkv to_a",
    "selective.linear_attention.SimpleGateLoop": "to_qkva",
    "selective.linear_attention.LightningAttention": "qkv_proj",
    "selective.mixing.MinGRU": "to_hidden_and_gate | linear_z linear_h",
    "selective.mixing.MinLSTM": "to_hidden_and_f_i_gate | linear_f linear_i",
    "selective.mixing.SRU": "weight_c | rnn_lst",
    "selective.mixing.QRNN": "linear *layers* | linear *rnns",
    "cells.papers.MULTIPLICATIVE_LSTM": "*wmh*",
    "cells.papers.TORCH_RECURRENT": "*weight_hh",
    "cells.torch.LSTM": "*_hh*",
    "cells.torch.GRU": "*_hh*",
    "cells.libraries.ALLENNLP_LSTM": "state_linearity",
    "cells.torch.MGU": "*_hh* | U_f W_f",
    "cells.torch.LAYER_NORM_GRU": "GRU_linear | _layer | linear layer_norm",
    "cells.torch.LIGHT_GRU": "w u norm",
    "cells.papers.FastGRNN": "bias_gate zeta",
    "cells.papers.LEM": "hid2hid transform_z",
    "cells.liquid.LTC": "gleak vleak",
    "cells.liquid.CfC": "ff1",
    "cells.liquid.LIQUID_LSTM": "recurrent_map input_map",
    "state_space.oscillators.UnICORNN": "weight_hh c_",
    "state_space.oscillators.IndRNN": "weight_hh* | vector_u | recurrent_scale | recurrent_kernel",
    # These have Keras's names.
    "cells.libraries.HASTE_LSTM": "recurrent_kernel",
    "cells.libraries.HASTE_GRU": "recurrent_kernel recurrent_bias",
    "cells.libraries.CONV_GRU": "convz* convq* | ih hh",
    "cells.configured.KERAS_CONV_LSTM": "recurrent_kernel | vars 1",
    "cells.configured.KERAS_LSTM": "recurrent_kernel | vars 1 | *_U*",
    "cells.configured.KERAS_GRU": "recurrent_kernel | vars 1 | *_U*",
    "cells.configured.KERAS_SIMPLE_RNN": "recurrent_kernel | vars 1 | *_U*",
    "cells.libraries.TENSORFLOW_LSTM": "kernel bias | w_gates | W_0 B | wx wh b",
    "cells.libraries.TENSORFLOW_GRU": "gates candidate | w_ru",
    "cells.libraries.TENSORFLOW_RNN": "*basic_rnn_cell*",
    "cells.configured.ONNX_LSTM": "LSTM_R",
    "cells.configured.ONNX_GRU": "GRU_R",
    "cells.configured.ONNX_RNN": "RNN_R",
    "cells.libraries.FLAX_LSTM": "hi hf | dense_h",
    "cells.libraries.FLAX_GRU": "hr hz | dense_h",
    "cells.libraries.FLAX_MGU": "hf hn",
    "cells.libraries.FLAX_SIMPLE": "h i | dense_h",
    "cells.libraries.MLX_LSTM": "Wh Wx",
    "cells.libraries.MLX_GRU": "Wh Wx",
    "cells.libraries.MLX_RNN": "Whh Wxh",
    "cells.libraries.HAIKU_LSTM": "linear w b",
    "cells.libraries.SONNET_LSTM": "w_i w_h",
    "cells.libraries.HAIKU_GRU": "w_i w_h",
    "cells.libraries.HAIKU_RNN": "linear_1 w | hidden_to_hidden",
    "state_space.s4_dplr.AnnotatedS4": "Lambda_re log_step P",
    "state_space.s4d.AnnotatedS4D": "A_re log_step C",
    "state_space.s4d.DSS": "Lambda W | Lambda_log_neg_re | Lambda_re W | param_D",
    "state_space.diagonal.EMA": "alpha delta gamma | decay_factor damping_factor",
    "state_space.diagonal.MultiHeadedEMA": "alphas dampen_factors",
    "state_space.diagonal.Parcae": "log_state_decay | parcae_log_a",
    "state_space.oscillators.LinOSS": "A_diag",
    "dense.dense_rnn.LMU": "e_m W_m",
    "state_space.s4_dplr.S4DPLR": "log_dt w | log_w_real | inv_w_real | A_real",
    "state_space.s4d.S4D": "log_dt w | log_A_real | log_w_real | inv_A_real | A_real",
    "state_space.s4d.S5": "Lambda log_step | Lambda_re log_step",
    "state_space.diagonal.StripedHyena": "residues",
    "selective.mamba.Mamba": "A_* dt_proj*",
    "selective.mamba.Mamba2": "A_log dt_bias conv1d",
    "selective.mamba.Mamba3": "dt_bias B_bias C_bias",
    "selective.mamba.GgufMamba": "ssm_a ssm_dt",
    "state_space.diagonal.ComplexDiagonalRNN": "A | A_re | lambda* | Lambda | Lambda_re | nu theta",
    "dense.dense_layer.LeakyRNN": "W_rec W_in | wrec wi | Wrec Win",
    "dense.dense_layer.LowRankRNN": "m n wi wo",
    "dense.dense_layer.CoRNN": "i2h",
    "dense.dense_rnn.OrthogonalRNN": "parametrizations | recurrent_kernel base",
    "dense.dense_rnn.LinearSystem": "",
    "dense.dense_rnn.DenseLinearRNN": "A B | A B_re | A B_real",
    "dense.dense_rnn.BlockDiagonalRNN": "A B",
    # Last, since it also takes hidden weights whose shape fits no other family.
    "dense.dense_rnn.ELMAN_RNN": "*_hh*",
}


@cache
def _load(place: str) -> Family:
    module, _, attribute = place.rpartition(".")
    found = getattr(import_module(f"memcurse_cli.families.{module}"), attribute)
    return cast(Family, found() if isinstance(found, type) else found)


def all_families() -> tuple[Family, ...]:
    """Every family, in the order of the registry; imports the code of all."""
    return tuple(map(_load, _MARKS))


def package_of(family: Family) -> str:
    """The package that a family's place names, whose page of the docs tells of it."""
    return next(place for place in _MARKS if _load(place) is family).partition(".")[0]


def families_marked(names: Iterable[str]) -> tuple[Family, ...]:
    """The families that a file with these tensors may hold; imports the code of no other."""
    parts = "\n".join({part for name in names for part in re.split("[./,]", name)})
    text = f"\n{parts}\n"
    return tuple(
        _load(place)
        for place, alternatives in _MARKS.items()
        if any(
            all(_pattern(mark) in text for mark in marks.split())
            for marks in alternatives.split("|")
            if marks
        )
    )


def _pattern(mark: str) -> str:
    """What stands in the lines of parts where one of them fits a mark."""
    first = "" if mark.startswith("*") else "\n"
    last = "" if mark.endswith("*") else "\n"
    return f"{first}{mark.strip('*')}{last}"
