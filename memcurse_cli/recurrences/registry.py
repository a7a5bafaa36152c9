"""The families that are read, the more specific first. A new family is one line."""

from __future__ import annotations

from memcurse_cli.recurrences.allennlp_lstm import ALLENNLP_LSTM
from memcurse_cli.recurrences.annotated_s4 import AnnotatedS4, AnnotatedS4D
from memcurse_cli.recurrences.block_diagonal import BlockDiagonalRNN
from memcurse_cli.recurrences.co_rnn import CoRNN
from memcurse_cli.recurrences.complex_diagonal import ComplexDiagonalRNN
from memcurse_cli.recurrences.delta_net import DeltaNet
from memcurse_cli.recurrences.dense_rnn import DenseLinearRNN, ElmanRNN
from memcurse_cli.recurrences.dss import DSS
from memcurse_cli.recurrences.ema import EMA
from memcurse_cli.recurrences.family import Family
from memcurse_cli.recurrences.fast_grnn import FastGRNN
from memcurse_cli.recurrences.flax_cells import FLAX_GRU, FLAX_LSTM, FLAX_MGU, FLAX_SIMPLE
from memcurse_cli.recurrences.gated_delta_net import GatedDeltaNet
from memcurse_cli.recurrences.gateloop import GateLoop
from memcurse_cli.recurrences.gateloop_simple import SimpleGateLoop
from memcurse_cli.recurrences.gguf_mamba import GgufMamba
from memcurse_cli.recurrences.gla import GLA
from memcurse_cli.recurrences.gru import GRU
from memcurse_cli.recurrences.haiku_cells import HAIKU_GRU, HAIKU_LSTM, HAIKU_RNN, SONNET_LSTM
from memcurse_cli.recurrences.haste import HASTE_GRU, HASTE_LSTM
from memcurse_cli.recurrences.hawk import Hawk
from memcurse_cli.recurrences.hgrn import HGRN
from memcurse_cli.recurrences.ind_rnn import IndRNN
from memcurse_cli.recurrences.kda import KDA
from memcurse_cli.recurrences.keras_cells import KERAS_GRU, KERAS_LSTM, KERAS_SIMPLE_RNN
from memcurse_cli.recurrences.layer_norm_gru import LayerNormGRU
from memcurse_cli.recurrences.leaky_rnn import LeakyRNN
from memcurse_cli.recurrences.lem import LEM
from memcurse_cli.recurrences.light_gru import LightGRU
from memcurse_cli.recurrences.lightning_attention import LightningAttention
from memcurse_cli.recurrences.linoss import LinOSS
from memcurse_cli.recurrences.liquid import LTC, LiquidLSTM
from memcurse_cli.recurrences.liquid_cfc import CfC
from memcurse_cli.recurrences.lmu import LMU
from memcurse_cli.recurrences.low_rank_rnn import LowRankRNN
from memcurse_cli.recurrences.lru import LRU
from memcurse_cli.recurrences.lstm import LSTM
from memcurse_cli.recurrences.mamba import Mamba
from memcurse_cli.recurrences.mamba2 import Mamba2
from memcurse_cli.recurrences.mamba3 import Mamba3
from memcurse_cli.recurrences.mgu import MGU
from memcurse_cli.recurrences.min_gru import MinGRU
from memcurse_cli.recurrences.min_lstm import MinLSTM
from memcurse_cli.recurrences.mlstm import MLSTM
from memcurse_cli.recurrences.multi_headed_ema import MultiHeadedEMA
from memcurse_cli.recurrences.multiplicative_lstm import MultiplicativeLSTM
from memcurse_cli.recurrences.onnx_nodes import ONNX_GRU, ONNX_LSTM, ONNX_RNN
from memcurse_cli.recurrences.orthogonal_rnn import OrthogonalRNN
from memcurse_cli.recurrences.parcae import Parcae
from memcurse_cli.recurrences.qrnn import QRNN
from memcurse_cli.recurrences.retnet import RetNet
from memcurse_cli.recurrences.rg_lru import RGLRU
from memcurse_cli.recurrences.rwkv import RWKV
from memcurse_cli.recurrences.rwkv7 import RWKV7
from memcurse_cli.recurrences.s4_dplr import S4DPLR
from memcurse_cli.recurrences.s4d import S4D
from memcurse_cli.recurrences.s5 import S5
from memcurse_cli.recurrences.slstm import SLSTM
from memcurse_cli.recurrences.sru import SRU
from memcurse_cli.recurrences.striped_hyena import StripedHyena
from memcurse_cli.recurrences.tf_cells import TENSORFLOW_GRU, TENSORFLOW_LSTM, TENSORFLOW_RNN
from memcurse_cli.recurrences.torch_recurrent import TorchRecurrent
from memcurse_cli.recurrences.torchscale_retnet import TorchscaleRetNet
from memcurse_cli.recurrences.unicornn import UnICORNN

FAMILIES: tuple[Family, ...] = (
    LRU(),
    RGLRU(),
    Hawk(),
    RWKV(),
    RWKV7(),
    MLSTM(),
    SLSTM(),
    GatedDeltaNet(),
    KDA(),
    DeltaNet(),
    GLA(),
    HGRN(),
    RetNet(),
    TorchscaleRetNet(),
    GateLoop(),
    SimpleGateLoop(),
    LightningAttention(),
    MinGRU(),
    MinLSTM(),
    SRU(),
    QRNN(),
    MultiplicativeLSTM(),
    TorchRecurrent(),
    LSTM,
    GRU,
    ALLENNLP_LSTM,
    MGU(),
    LayerNormGRU(),
    LightGRU(),
    FastGRNN(),
    LEM(),
    LTC(),
    CfC(),
    LiquidLSTM(),
    UnICORNN(),
    IndRNN(),
    # They have Keras's names.
    HASTE_LSTM,
    HASTE_GRU,
    KERAS_LSTM,
    KERAS_GRU,
    KERAS_SIMPLE_RNN,
    TENSORFLOW_LSTM,
    TENSORFLOW_GRU,
    TENSORFLOW_RNN,
    ONNX_LSTM,
    ONNX_GRU,
    ONNX_RNN,
    FLAX_LSTM,
    FLAX_GRU,
    FLAX_MGU,
    FLAX_SIMPLE,
    HAIKU_LSTM,
    SONNET_LSTM,
    HAIKU_GRU,
    HAIKU_RNN,
    AnnotatedS4(),
    AnnotatedS4D(),
    DSS(),
    EMA(),
    MultiHeadedEMA(),
    Parcae(),
    LinOSS(),
    LMU(),
    S4DPLR(),
    S4D(),
    S5(),
    StripedHyena(),
    Mamba(),
    Mamba2(),
    Mamba3(),
    GgufMamba(),
    ComplexDiagonalRNN(),
    LeakyRNN(),
    LowRankRNN(),
    CoRNN(),
    OrthogonalRNN(),
    DenseLinearRNN(),
    BlockDiagonalRNN(),
    # Last, since it also takes hidden weights whose shape fits no other family.
    ElmanRNN(),
)
