"""The formats that are read, in the order in which they are asked. A new format is one line."""

from __future__ import annotations

from memcurse_cli.checkpoints.distributed import Distributed
from memcurse_cli.checkpoints.equinox import EquinoxLeaves
from memcurse_cli.checkpoints.flax_msgpack import FlaxMsgpack
from memcurse_cli.checkpoints.format import CheckpointFormat
from memcurse_cli.checkpoints.gguf import Gguf
from memcurse_cli.checkpoints.keras import KerasArchive, KerasHdf5
from memcurse_cli.checkpoints.keras_shards import KerasShards
from memcurse_cli.checkpoints.npy_files import NpyFiles
from memcurse_cli.checkpoints.npz import Npz
from memcurse_cli.checkpoints.onnx import Onnx
from memcurse_cli.checkpoints.orbax import Orbax
from memcurse_cli.checkpoints.plain_pickle import PlainPickle
from memcurse_cli.checkpoints.pytorch import PyTorch
from memcurse_cli.checkpoints.pytorch_legacy import PyTorchLegacy
from memcurse_cli.checkpoints.safetensors import Safetensors
from memcurse_cli.checkpoints.shards import Shards
from memcurse_cli.checkpoints.stable_baselines import StableBaselines
from memcurse_cli.checkpoints.tensor_bundle import TensorBundle

FORMATS: tuple[CheckpointFormat, ...] = (
    Safetensors(),
    PyTorch(),
    PyTorchLegacy(),
    StableBaselines(),
    Distributed(),
    PlainPickle(),
    Npz(),
    # Its first array alone would be NumPy's.
    EquinoxLeaves(),
    NpyFiles(),
    KerasArchive(),
    KerasHdf5(),
    Onnx(),
    Gguf(),
    FlaxMsgpack(),
    Orbax(),
    KerasShards(),
    TensorBundle(),
    Shards([Safetensors(), PyTorch(), PyTorchLegacy()]),
)
