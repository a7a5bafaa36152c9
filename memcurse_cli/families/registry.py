"""The families that are read, the more specific first. A new family is one line.

A row's marks say what a file must have for its code to be imported; the family's `find` decides.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache
from importlib import import_module
from typing import NamedTuple, cast

from memcurse_cli.families.family import Family


class _Row(NamedTuple):
    """One family: its module below `memcurse_cli.families`, and its class or itself in it.

    Marks are alternatives, parted by ``|``, of what has to stand in the file: parts of names
    between ``.``, ``/`` and ``,``, with a ``*`` for any beginning or end. A family without marks is
    only looked for by its name.
    """

    module: str
    attribute: str
    marks: str = ""


_ROWS = (
    _Row("state_space.diagonal", "LRU", "nu_log theta_log | nu theta gamma_log | params_log"),
    _Row("selective.mixing", "RGLRU", "recurrent_param | a_param"),
    _Row("selective.mixing", "Hawk", "forget_base | Lambda ba"),
    _Row("selective.rwkv", "RWKV", "time_decay | w_proj | time_mix_decay"),
    _Row("selective.rwkv", "RWKV7", "w0 | w_lora | time_mix_w0"),
    _Row("selective.xlstm", "MLSTM", "igate_preact | ifgate_preact | igate fgate"),
    _Row("selective.xlstm", "SLSTM", "_recurrent_kernel_"),
    _Row("selective.delta_rule", "GatedDeltaNet", "A_log dt_bias | ssm_a ssm_dt"),
    _Row("selective.delta_rule", "KDA", "A_log dt_bias b_proj | ssm_a ssm_dt ssm_beta"),
    _Row("selective.delta_rule", "DeltaNet", "b_proj o_norm"),
    _Row("selective.linear_attention", "GLA", "gk_proj | lambda_params a_proj | f_proj g_norm"),
    _Row("selective.linear_attention", "HGRN", "f_proj i_proj"),
    _Row("selective.linear_attention", "RetNet", "g_proj g_norm*"),
    _Row("selective.linear_attention", "TorchscaleRetNet", "retnet_rel_pos"),
    _Row("selective.linear_attention", "GateLoop", "to_qkv to_a"),
    _Row("selective.linear_attention", "SimpleGateLoop", "to_qkva"),
    _Row("selective.linear_attention", "LightningAttention", "qkv_proj"),
    _Row("selective.mixing", "MinGRU", "to_hidden_and_gate | linear_z linear_h"),
    _Row("selective.mixing", "MinLSTM", "to_hidden_and_f_i_gate | linear_f linear_i"),
    _Row("selective.mixing", "SRU", "weight_c | rnn_lst"),
    _Row("selective.mixing", "QRNN", "linear *layers* | linear *rnns"),
    _Row("cells.papers", "MULTIPLICATIVE_LSTM", "*wmh*"),
    _Row("cells.papers", "TORCH_RECURRENT", "*weight_hh"),
    _Row("cells.torch", "LSTM", "*_hh*"),
    _Row("cells.torch", "GRU", "*_hh*"),
    _Row("cells.libraries", "ALLENNLP_LSTM", "state_linearity"),
    _Row("cells.torch", "MGU", "*_hh* | U_f W_f"),
    _Row("cells.torch", "LAYER_NORM_GRU", "GRU_linear | _layer | linear layer_norm"),
    _Row("cells.torch", "LIGHT_GRU", "w u norm"),
    _Row("cells.papers", "FastGRNN", "bias_gate zeta"),
    _Row("cells.papers", "LEM", "hid2hid transform_z"),
    _Row("cells.liquid", "LTC", "gleak vleak"),
    _Row("cells.liquid", "CfC", "ff1"),
    _Row("cells.liquid", "LIQUID_LSTM", "recurrent_map input_map"),
    _Row("state_space.oscillators", "UnICORNN", "weight_hh c_"),
    _Row(
        "state_space.oscillators",
        "IndRNN",
        "weight_hh* | vector_u | recurrent_scale | recurrent_kernel",
    ),
    # These have Keras's names.
    _Row("cells.libraries", "HASTE_LSTM", "recurrent_kernel"),
    _Row("cells.libraries", "HASTE_GRU", "recurrent_kernel recurrent_bias"),
    _Row("cells.libraries", "CONV_GRU", "convz* convq* | ih hh"),
    _Row("cells.configured", "KERAS_CONV_LSTM", "recurrent_kernel | vars 1"),
    _Row("cells.configured", "KERAS_LSTM", "recurrent_kernel | vars 1 | *_U*"),
    _Row("cells.configured", "KERAS_GRU", "recurrent_kernel | vars 1 | *_U*"),
    _Row("cells.configured", "KERAS_SIMPLE_RNN", "recurrent_kernel | vars 1 | *_U*"),
    _Row("cells.libraries", "TENSORFLOW_LSTM", "kernel bias | w_gates | W_0 B | wx wh b"),
    _Row("cells.libraries", "TENSORFLOW_GRU", "gates candidate | w_ru"),
    _Row("cells.libraries", "TENSORFLOW_RNN", "*basic_rnn_cell*"),
    _Row("cells.configured", "ONNX_LSTM", "LSTM_R"),
    _Row("cells.configured", "ONNX_GRU", "GRU_R"),
    _Row("cells.configured", "ONNX_RNN", "RNN_R"),
    _Row("cells.libraries", "FLAX_LSTM", "hi hf | dense_h"),
    _Row("cells.libraries", "FLAX_GRU", "hr hz | dense_h"),
    _Row("cells.libraries", "FLAX_MGU", "hf hn"),
    _Row("cells.libraries", "FLAX_SIMPLE", "h i | dense_h"),
    _Row("cells.libraries", "MLX_LSTM", "Wh Wx"),
    _Row("cells.libraries", "MLX_GRU", "Wh Wx"),
    _Row("cells.libraries", "MLX_RNN", "Whh Wxh"),
    _Row("cells.libraries", "HAIKU_LSTM", "linear w b"),
    _Row("cells.libraries", "SONNET_LSTM", "w_i w_h"),
    _Row("cells.libraries", "HAIKU_GRU", "w_i w_h"),
    _Row("cells.libraries", "HAIKU_RNN", "linear_1 w | hidden_to_hidden"),
    _Row("state_space.s4_dplr", "AnnotatedS4", "Lambda_re log_step P"),
    _Row("state_space.s4d", "AnnotatedS4D", "A_re log_step C"),
    _Row("state_space.s4d", "DSS", "Lambda W | Lambda_log_neg_re | Lambda_re W | param_D"),
    _Row("state_space.diagonal", "EMA", "alpha delta gamma | decay_factor damping_factor"),
    _Row("state_space.diagonal", "MultiHeadedEMA", "alphas dampen_factors"),
    _Row("state_space.diagonal", "Parcae", "log_state_decay | parcae_log_a"),
    _Row("state_space.oscillators", "LinOSS", "A_diag"),
    _Row("dense.dense_rnn", "LMU", "e_m W_m"),
    _Row("state_space.s4_dplr", "S4DPLR", "log_dt w | log_w_real | inv_w_real | A_real"),
    _Row("state_space.s4d", "S4D", "log_dt w | log_A_real | log_w_real | inv_A_real | A_real"),
    _Row("state_space.s4d", "S5", "Lambda log_step | Lambda_re log_step"),
    _Row("state_space.diagonal", "StripedHyena", "residues"),
    _Row("selective.mamba", "Mamba", "A_* dt_proj*"),
    _Row("selective.mamba", "Mamba2", "A_log dt_bias conv1d"),
    _Row("selective.mamba", "Mamba3", "dt_bias B_bias C_bias"),
    _Row("selective.mamba", "GgufMamba", "ssm_a ssm_dt"),
    _Row(
        "state_space.diagonal",
        "ComplexDiagonalRNN",
        "A | A_re | lambda | lambda_* | Lambda | Lambda_re | nu theta",
    ),
    _Row("dense.dense_layer", "LeakyRNN", "W_rec W_in | wrec wi | Wrec Win"),
    _Row("dense.dense_layer", "LowRankRNN", "m n wi wo"),
    _Row("dense.dense_layer", "CoRNN", "i2h"),
    _Row("dense.dense_rnn", "OrthogonalRNN", "parametrizations | recurrent_kernel base"),
    _Row("dense.dense_rnn", "LinearSystem"),
    _Row("dense.dense_rnn", "DenseLinearRNN", "A B | A B_re | A B_real"),
    _Row("dense.dense_rnn", "BlockDiagonalRNN", "A B"),
    # Last, since it also takes hidden weights whose shape fits no other family.
    _Row("dense.dense_rnn", "ELMAN_RNN", "*_hh*"),
)


@cache
def _load(row: _Row) -> Family:
    found = getattr(import_module(f"memcurse_cli.families.{row.module}"), row.attribute)
    return cast(Family, found() if isinstance(found, type) else found)


def all_families() -> tuple[Family, ...]:
    """Every family, in the order of the registry; imports the code of all."""
    return tuple(_load(row) for row in _ROWS)


def package_of(family: Family) -> str:
    """The package that a family's row names, whose page of the docs tells of it."""
    return next(row.module for row in _ROWS if _load(row) is family).partition(".")[0]


def families_marked(names: Iterable[str]) -> tuple[Family, ...]:
    """The families that a file with these tensors may hold; imports the code of no other."""
    parts = "\n".join({part for name in names for part in re.split("[./,]", name)})
    text = f"\n{parts}\n"
    return tuple(
        _load(row)
        for row in _ROWS
        if any(
            all(_pattern(mark) in text for mark in marks.split())
            for marks in row.marks.split("|")
            if marks
        )
    )


def _pattern(mark: str) -> str:
    """What stands in the lines of parts where one of them fits a mark."""
    first = "" if mark.startswith("*") else "\n"
    last = "" if mark.endswith("*") else "\n"
    return f"{first}{mark.strip('*')}{last}"
