"""For every family the names and shapes of a small layer, as its own tests build it."""

from __future__ import annotations

import re

_TABLE = """
lru: params_log 5x3
rg_lru: a_param 6, a_gate.b 2x3, input_gate.b 2x3
hawk: rglru.ba 5, rglru.bx 5, rglru.Lambda 5, rglru.Wa 5x5, rglru.Wx 5x5
rwkv: time_decay 2, time_first 2
rwkv7: w0 1x1x6, k_k 1x1x6, r_k 2x3, value.weight 6x6
mlstm: ifgate_preact.bias 4, qkv_opreact.weight 24x8, out_proj.weight 8x8
slstm: _bias_ 24, _recurrent_kernel_ 2x12x3
gated_delta_net: attn.A_log 4, attn.dt_bias 4, attn.in_proj_ba.weight 8x6
kda: A_log 1x1x2x1, dt_bias 6, b_proj.weight 2x8, v_proj.weight 8x8
delta_net: q_proj.weight 6x8, k_proj.weight 6x8, v_proj.weight 8x8, b_proj.weight 2x8,
    o_norm.weight 4
gla: gk_proj.0.weight 4x8, gk_proj.1.bias 6
hgrn: f_proj.weight 4x4, i_proj.weight 4x4, o_proj.weight 4x4, g_norm.weight 4
retnet: layers.0.attn.q_proj.weight 6x6, layers.0.attn.k_proj.weight 6x6,
    layers.0.attn.v_proj.weight 12x6, layers.0.attn.g_proj.weight 12x6,
    layers.0.attn.o_proj.weight 6x12, layers.0.attn.g_norm.weight 4, layers.0.attn_norm.weight 6
torchscale_retnet: decoder.retnet_rel_pos.decay 3, decoder.retnet_rel_pos.angle 2,
    decoder.layers.0.retention.q_proj.weight 6x6, decoder.layers.0.retention.k_proj.weight 6x6,
    decoder.layers.0.retention.v_proj.weight 12x6, decoder.layers.0.retention.g_proj.weight 12x6,
    decoder.layers.0.retention.out_proj.weight 6x12
gateloop: to_qkv.weight 36x5, to_a.0.weight 8x5, to_a.0.bias 8
gateloop_simple: to_qkva.0.weight 15x5, norm.gamma 5
lightning_attention: slope_rate 2, qkv_proj.weight 12x4
min_gru: to_hidden_and_gate.weight 6x2
min_lstm: to_hidden_and_f_i_gate.weight 9x2
sru: encoder.rnn_lst.3.weight 4x12, encoder.rnn_lst.3.bias 6
qrnn: rnn.layers.0.linear.weight 12x3, rnn.layers.0.linear.bias 12
multiplicative_lstm: wx 3x16, wh 4x16, wmx 3x4, wmh 4x4, b 16
torch_recurrent: RAN.cells.0.weight_ih 12x3, RAN.cells.0.weight_hh 8x4, RAN.cells.0.bias_ih 8,
    RAN.cells.0.bias_hh 8
lstm: weight_ih 20x3, weight_hh 20x5, bias 20
gru: weight_hh 15x5, bias_hh 15
allennlp_lstm: _elmo_lstm._elmo_lstm.forward_layer_0.input_linearity.weight 16x5,
    _elmo_lstm._elmo_lstm.forward_layer_0.state_linearity.weight 16x4
mgu: weight_ih 8x3, weight_hh 8x4, bias_ih 8
layer_norm_gru: dynamics._cell._layer.weight 12x7, dynamics._cell._layer.bias 12
light_gru: w.weight 8x3, u.weight 8x4, norm.weight 8, norm.bias 8
fast_grnn: U 5x5, bias_gate 1x5, bias_update 1x5, zeta 1x1, nu 1x1
lem: inp2hid.weight 256x24, inp2hid.bias 256, hid2hid.weight 192x64, hid2hid.bias 192,
    transform_z.weight 64x64, transform_z.bias 64
liquid_ltc: rnn_cell.gleak 4, rnn_cell.vleak 4, rnn_cell.cm 4, rnn_cell.sigma 4x4,
    rnn_cell.mu 4x4, rnn_cell.w 4x4, rnn_cell.erev 4x4, rnn_cell.sensory_sigma 3x4,
    rnn_cell.sensory_mu 3x4, rnn_cell.sensory_w 3x4, rnn_cell.sensory_erev 3x4
liquid_cfc: rnn_cell.ff1.weight 4x7, rnn_cell.ff1.bias 4, rnn_cell.w_tau 1x4, rnn_cell.A 1x4
liquid_lstm: lstm.input_map.weight 16x3, lstm.input_map.bias 16, lstm.recurrent_map.weight 16x4
unicornn: RNNs.0.weight_hh 4, RNNs.0.c_ 4
ind_rnn: RNNs.0.indrnn1.weight_hh 4
haste_lstm: rnn.kernel 3x16, rnn.recurrent_kernel 4x16, rnn.bias 16
haste_gru: rnn.kernel 3x12, rnn.recurrent_kernel 4x12, rnn.bias 12, rnn.recurrent_bias 12
conv_gru: gru.ih.0.weight 8x8x3x3, gru.hh.0.weight 4x8x3x3
keras_conv_lstm: conv_lstm2d/kernel 3x3x2x16, conv_lstm2d/recurrent_kernel 3x3x4x16,
    conv_lstm2d/bias 16
keras_lstm: rnn/kernel 3x16, rnn/recurrent_kernel 4x16
keras_gru: gru/kernel 3x15, gru/recurrent_kernel 5x15, gru/bias 15
keras_simple_rnn: rnn/cell/vars/0 4x4, rnn/cell/vars/1 4x4
tf_lstm: lstm/w_gates 7x16, lstm/b_gates 16
tf_gru: rnn/gru_block_cell/w_ru 7x8, rnn/gru_block_cell/b_ru 8, rnn/gru_block_cell/w_c 7x4,
    rnn/gru_block_cell/b_c 4
tf_rnn: rnn/basic_rnn_cell/kernel 7x4, rnn/basic_rnn_cell/bias 4
onnx_lstm: n/LSTM_W 20x3, n/LSTM_R 20x5, n/LSTM_B 40
onnx_gru: n/GRU_W 12x3, n/GRU_R 12x4
onnx_rnn: n/RNN_W 4x3, n/RNN_R 4x4, n/RNN_B 8
flax_lstm: cell/dense_h/bias 20, cell/dense_h/kernel 5x20, cell/dense_i/kernel 3x20
flax_gru: cell/dense_h/kernel 5x15, cell/dense_i/bias 15, cell/dense_i/kernel 3x15
flax_mgu: cell/hf/kernel 5x5, cell/hn/bias 5, cell/hn/kernel 5x5, cell/if/bias 5,
    cell/if/kernel 3x5, cell/in/bias 5, cell/in/kernel 3x5
flax_simple: cell/h/kernel 5x5, cell/i/bias 5, cell/i/kernel 3x5
mlx_lstm: lstm.Wx 16x3, lstm.Wh 16x4, lstm.bias 16
mlx_gru: gru.Wx 12x3, gru.Wh 12x4, gru.b 12, gru.bhn 4
mlx_rnn: rnn.Wxh 4x3, rnn.Whh 4x4, rnn.bias 4
haiku_lstm: lstm/linear/w 7x16, lstm/linear/b 16
sonnet_lstm: lstm/w_i 3x16, lstm/w_h 4x16, lstm/b 16
haiku_gru: w_i 3x12, w_h 4x12
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
mamba: A_log 1x2, dt_proj.bias 1
mamba2: mixer.A_log 4, mixer.dt_bias 4, mixer.D 4, mixer.in_proj.weight 48x8,
    mixer.conv1d.weight 28x1x4, mixer.norm.weight 16
mamba3: any.dt_bias 4, any.B_bias 4x1x3, any.C_bias 4x1x3, any.in_proj.weight 40x8,
    any.out_proj.weight 8x8
gguf_mamba: blk.0.ssm_a 4x3, blk.0.ssm_dt.bias 4, blk.0.ssm_dt.weight 4x2, blk.0.ssm_x.weight 8x4
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
