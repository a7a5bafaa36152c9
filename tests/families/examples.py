"""For every family the names and shapes of a small layer, as its own tests build it."""

from __future__ import annotations

import re

import numpy as np
from families.cell_steps import CASES
from families.selective.layers import LAYERS, STILL

# Of the families that are in neither, or have a layer there that is no small one.
_TABLE = """
hgrn: f_proj.weight 4x4, i_proj.weight 4x4, o_proj.weight 4x4, g_norm.weight 4
light_gru: w.weight 8x3, u.weight 8x4, norm.weight 8, norm.bias 8
lru: nu_log 4, theta_log 4, gamma_log 4, B_re 4x3, B_im 4x3, C_re 3x4, C_im 3x4, D 3
torch_recurrent: RAN.cells.0.weight_ih 12x3, RAN.cells.0.weight_hh 8x4, RAN.cells.0.bias_ih 8,
    RAN.cells.0.bias_hh 8
liquid_ltc: rnn_cell.gleak 4, rnn_cell.vleak 4, rnn_cell.cm 4, rnn_cell.sigma 4x4,
    rnn_cell.mu 4x4, rnn_cell.w 4x4, rnn_cell.erev 4x4, rnn_cell.sensory_sigma 3x4,
    rnn_cell.sensory_mu 3x4, rnn_cell.sensory_w 3x4, rnn_cell.sensory_erev 3x4
liquid_cfc: rnn_cell.ff1.weight 4x7, rnn_cell.ff1.bias 4, rnn_cell.w_tau 1x4, rnn_cell.A 1x4
unicornn: RNNs.0.weight_hh 4, RNNs.0.c_ 4
ind_rnn: RNNs.0.indrnn1.weight_hh 4
conv_gru: gru.ih.0.weight 8x8x3x3, gru.hh.0.weight 4x8x3x3
keras_conv_lstm: conv_lstm2d/kernel 3x3x2x16, conv_lstm2d/recurrent_kernel 3x3x4x16,
    conv_lstm2d/bias 16
keras_simple_rnn: rnn/cell/vars/0 4x4, rnn/cell/vars/1 4x4
tf_rnn: rnn/basic_rnn_cell/kernel 7x4, rnn/basic_rnn_cell/bias 4
onnx_lstm: n/LSTM_W 20x3, n/LSTM_R 20x5, n/LSTM_B 40
onnx_gru: n/GRU_W 12x3, n/GRU_R 12x4
onnx_rnn: n/RNN_W 4x3, n/RNN_R 4x4, n/RNN_B 8
flax_lstm: cell/dense_h/bias 20, cell/dense_h/kernel 5x20, cell/dense_i/kernel 3x20
flax_mgu: cell/hf/kernel 5x5, cell/hn/bias 5, cell/hn/kernel 5x5, cell/if/bias 5,
    cell/if/kernel 3x5, cell/in/bias 5, cell/in/kernel 3x5
flax_simple: cell/h/kernel 5x5, cell/i/bias 5, cell/i/kernel 3x5
mlx_rnn: rnn.Wxh 4x3, rnn.Whh 4x4, rnn.bias 4
haiku_rnn: vanilla_rnn/linear/w 3x4, vanilla_rnn/linear_1/w 4x4
annotated_s4: params/layers_0/seq/Lambda_re 4x3, params/layers_0/seq/Lambda_im 4x3,
    params/layers_0/seq/C 4x3x2, params/layers_0/seq/D 1x3, params/layers_0/seq/log_step 1x3,
    params/layers_0/seq/P 4x3, params/layers_0/seq/B 4x3
annotated_s4d: params/layers_0/seq/A_re 4x3, params/layers_0/seq/A_im 4x3,
    params/layers_0/seq/C 4x3x2, params/layers_0/seq/D 1x3, params/layers_0/seq/log_step 1x3,
    params/layers_0/seq/B_re 4x3, params/layers_0/seq/B_im 4x3
dss: kernel.log_dt 3, kernel.Lambda 4x2, kernel.W 2x3x4x2
ema: layers.0.mega.cema.alpha 3x4x1, layers.0.mega.cema.delta 3x4x1,
    layers.0.mega.cema.theta 3x1x1, layers.0.mega.cema.gamma 3x4x2, layers.0.mega.cema.omega 3x1
multi_headed_ema: alphas 3, dampen_factors 3, expansion 3x4, reduction 3x4
parcae: trunk.parcae_log_a 6, trunk.parcae_log_delta 6, trunk.parcae_b_cont 6x6,
    trunk.parcae_readout.weight 6x6
linoss: blocks.0.ssm.A_diag 4, blocks.0.ssm.B 4x3x2, blocks.0.ssm.C 3x4x2, blocks.0.ssm.D 3,
    blocks.0.ssm.steps 4
lmu: lmu.cell.A 6x6, lmu.cell.B 6x1, lmu.cell.e_m 1x6, lmu.cell.e_x 1x3, lmu.cell.e_h 1x5,
    lmu.cell.W_x 5x3, lmu.cell.W_h 5x5, lmu.cell.W_m 5x6
s4_dplr: kernel.P 1x2x3x2, kernel.B 1x2x3x2, kernel.log_dt 2, kernel.w 2x3x2, kernel.Q 1x2x3x2
s4d: kernel.log_dt 3, kernel.C 2x3x2x2, kernel.w 1x2x2
s5: Lambda_re 4, Lambda_im 4, log_step 4x1, B 4x3x2, C 3x4x2, D 3
striped_hyena: blocks.2.filter.log_poles 3x2x1, blocks.2.filter.residues 3x2, blocks.2.filter.D 3,
    blocks.2.filter.short_filter_weight 9x1x3
complex_diagonal: nu 4, theta 4
leaky_rnn: W_rec 2x2, W_in 2x1
low_rank_rnn: wi 3x12, m 12x2, n 12x2, wo 12x1, b 12, h0 12
co_rnn: rnn.i2h.weight 4x2, rnn.i2h.bias 4, rnn.h2h.weight 4x8
orthogonal_rnn: cell.recurrent_kernel.parametrizations.weight.original 5x5,
    cell.recurrent_kernel.parametrizations.weight.0.base 5x5
linear_system: A 3x3, C 2x3, Q 3x3, R 2x2
dense_linear: A 3x3, B 3
block_diagonal: A 6x2x2, B 12x1, C 1x12, D 1x1
dense_rnn: weight_hh 2x2
"""


def _shapes(row: str) -> dict[str, tuple[int, ...]]:
    """``weight_ih 20x3, bias 20``: names and shapes."""
    pairs = (tensor.split(" ") for tensor in row.split(", "))
    return {name: tuple(map(int, shape.split("x"))) for name, shape in pairs}


EXAMPLES: dict[str, dict[str, tuple[int, ...]]] = {
    row.partition(": ")[0]: _shapes(row.partition(": ")[2])
    for row in re.sub(r"\n {4}", " ", _TABLE).strip().splitlines()
}
for _layer in (LAYERS | STILL).values():
    EXAMPLES.setdefault(
        _layer.family.name, {name: array.shape for name, array in _layer.arrays.items()}
    )
for _case in CASES.values():
    EXAMPLES.setdefault(
        _case.family, {f"{_case.module}{name}": shape for name, shape in _case.shapes.items()}
    )


def drawn(family: str, seed: int = 0) -> dict[str, np.ndarray]:
    """Normal tensors of that layer."""
    generator = np.random.default_rng(seed)
    return {name: generator.normal(size=shape) for name, shape in EXAMPLES[family].items()}
