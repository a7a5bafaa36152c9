"""The formats that are read, in the order in which they are asked. A new format is one line."""

from __future__ import annotations

from memcurse_cli.checkpoints.format import CheckpointFormat
from memcurse_cli.checkpoints.gguf import Gguf
from memcurse_cli.checkpoints.hdf5.keras import KerasArchive, KerasHdf5, KerasShards
from memcurse_cli.checkpoints.jax.equinox import EquinoxLeaves
from memcurse_cli.checkpoints.jax.flax_msgpack import FlaxMsgpack
from memcurse_cli.checkpoints.jax.orbax import Orbax
from memcurse_cli.checkpoints.numpy.npy import NpyFiles
from memcurse_cli.checkpoints.numpy.npz import Npz
from memcurse_cli.checkpoints.onnx.model import Onnx
from memcurse_cli.checkpoints.safetensors import Safetensors
from memcurse_cli.checkpoints.shards import Shards
from memcurse_cli.checkpoints.tensorflow.bundle import TensorBundle
from memcurse_cli.checkpoints.torch.distributed import Distributed
from memcurse_cli.checkpoints.torch.legacy import PyTorchLegacy
from memcurse_cli.checkpoints.torch.plain_pickle import PlainPickle
from memcurse_cli.checkpoints.torch.stable_baselines import StableBaselines
from memcurse_cli.checkpoints.torch.zip import PyTorch

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
