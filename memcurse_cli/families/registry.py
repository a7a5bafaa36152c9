"""The families that are read, the more specific first. A new family is one line."""

from __future__ import annotations

from memcurse_cli.families.cells.allennlp import ALLENNLP_LSTM
from memcurse_cli.families.cells.fast_grnn import FastGRNN
from memcurse_cli.families.cells.flax import FLAX_GRU, FLAX_LSTM, FLAX_MGU, FLAX_SIMPLE
from memcurse_cli.families.cells.haiku import HAIKU_GRU, HAIKU_LSTM, HAIKU_RNN, SONNET_LSTM
from memcurse_cli.families.cells.haste import HASTE_GRU, HASTE_LSTM
from memcurse_cli.families.cells.keras import KERAS_GRU, KERAS_LSTM, KERAS_SIMPLE_RNN
from memcurse_cli.families.cells.layer_norm_gru import LayerNormGRU
from memcurse_cli.families.cells.lem import LEM
from memcurse_cli.families.cells.light_gru import LightGRU
from memcurse_cli.families.cells.liquid import LTC, CfC, LiquidLSTM
from memcurse_cli.families.cells.mgu import MGU
from memcurse_cli.families.cells.multiplicative_lstm import MultiplicativeLSTM
from memcurse_cli.families.cells.onnx import ONNX_GRU, ONNX_LSTM, ONNX_RNN
from memcurse_cli.families.cells.tensorflow import TENSORFLOW_GRU, TENSORFLOW_LSTM, TENSORFLOW_RNN
from memcurse_cli.families.cells.torch import GRU, LSTM
from memcurse_cli.families.cells.torchrecurrent import TorchRecurrent
from memcurse_cli.families.dense.block_diagonal import BlockDiagonalRNN
from memcurse_cli.families.dense.co_rnn import CoRNN
from memcurse_cli.families.dense.dense_rnn import DenseLinearRNN, ElmanRNN
from memcurse_cli.families.dense.lmu import LMU
from memcurse_cli.families.dense.orthogonal import OrthogonalRNN
from memcurse_cli.families.dense.rate_rnn import LeakyRNN, LowRankRNN
from memcurse_cli.families.family import Family
from memcurse_cli.families.selective.delta_rule import KDA, DeltaNet, GatedDeltaNet
from memcurse_cli.families.selective.gateloop import GateLoop, SimpleGateLoop
from memcurse_cli.families.selective.gla import GLA
from memcurse_cli.families.selective.hgrn import HGRN
from memcurse_cli.families.selective.mamba import GgufMamba, Mamba
from memcurse_cli.families.selective.mamba2 import Mamba2
from memcurse_cli.families.selective.mamba3 import Mamba3
from memcurse_cli.families.selective.min_rnn import MinGRU, MinLSTM
from memcurse_cli.families.selective.qrnn import QRNN
from memcurse_cli.families.selective.retention import LightningAttention, RetNet, TorchscaleRetNet
from memcurse_cli.families.selective.rg_lru import RGLRU, Hawk
from memcurse_cli.families.selective.rwkv import RWKV, RWKV7
from memcurse_cli.families.selective.sru import SRU
from memcurse_cli.families.selective.xlstm import MLSTM, SLSTM
from memcurse_cli.families.state_space.complex_diagonal import ComplexDiagonalRNN
from memcurse_cli.families.state_space.dss import DSS
from memcurse_cli.families.state_space.ema import EMA, MultiHeadedEMA
from memcurse_cli.families.state_space.ind_rnn import IndRNN
from memcurse_cli.families.state_space.linoss import LinOSS
from memcurse_cli.families.state_space.lru import LRU
from memcurse_cli.families.state_space.parcae import Parcae
from memcurse_cli.families.state_space.s4.annotated import AnnotatedS4, AnnotatedS4D
from memcurse_cli.families.state_space.s4.dplr import S4DPLR
from memcurse_cli.families.state_space.s4.s4d import S4D
from memcurse_cli.families.state_space.s5 import S5
from memcurse_cli.families.state_space.striped_hyena import StripedHyena
from memcurse_cli.families.state_space.unicornn import UnICORNN

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
