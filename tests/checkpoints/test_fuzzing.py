"""Whatever a file holds, the only exception is a CheckpointError of one printable line."""

from __future__ import annotations

import io
import pickle
import warnings
import zipfile
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from checkpoints.fuzzing import FUZZ, changed, survives
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import save as save_safetensors
from safetensors.torch import save as save_torch

from memcurse_cli.checkpoints.open import open_checkpoint
from memcurse_cli.errors import CheckpointError

PICKLE_OPCODES = bytes(
    getattr(pickle, name)[0]
    for name in dir(pickle)
    if name.isupper()
    and isinstance(getattr(pickle, name), bytes)
    and len(getattr(pickle, name)) == 1
)


@cache
def valid(kind: str) -> bytes:
    """A small valid file of each format."""
    state = {"rnn.weight_hh_l0": torch.eye(3), "rnn.bias_hh_l0": torch.zeros(3)}
    arrays = {name: tensor.numpy() for name, tensor in state.items()}
    checkpoint = {"model": state, "optimizer": {"state": {0: {"exp_avg": torch.ones(3)}}}}
    buffer = io.BytesIO()
    if kind == "safetensors":
        return save_safetensors(arrays, {"format": "pt"})
    if kind in ("zip", "legacy"):
        torch.save(checkpoint, buffer, _use_new_zipfile_serialization=kind == "zip")
    elif kind == "deepspeed":
        ranks = {"ds_version": "0.16.2", "mp_world_size": 2, "param_shapes": [{"w": (3, 3)}]}
        torch.save({"module": state, **ranks}, buffer)
    elif kind == "float8":
        matrix = torch.ones(4, 4).to(torch.float8_e4m3fn)
        return save_torch({"w": matrix, "w_scale": torch.ones(4, 1), "v": matrix.clone()})
    elif kind == "module":
        torch.save(torch.nn.GRU(2, 2), buffer)
    elif kind == "torchscript":
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.jit.save(torch.jit.script(torch.nn.Linear(2, 2)), buffer)
    elif kind == "npy":
        np.save(buffer, arrays["rnn.weight_hh_l0"])
    elif kind == "npz":
        np.savez(buffer, **arrays)
    elif kind == "compressed npz":
        np.savez_compressed(buffer, **arrays)
    elif kind == "equinox":
        buffer.write(b'{"size": 20}\n')
        for array in arrays.values():
            np.save(buffer, array)
    elif kind == "agent":
        with zipfile.ZipFile(buffer, "w") as archive:
            policy = io.BytesIO()
            torch.save(state, policy)
            archive.writestr("data", "{}")
            archive.writestr("policy.pth", policy.getvalue())
    elif kind == "quantised":
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            network = torch.nn.Sequential(torch.nn.LSTM(2, 2))
            torch.save(torch.ao.quantization.quantize_dynamic(network).state_dict(), buffer)
    elif kind == "pickle":
        pickle.dump({"params": {"lstm": {"kernel": np.ones((20, 20))}}, "sd": state}, buffer)
    elif kind in ("pickle 0", "pickle 1"):
        pickle.dump({"lstm": {"kernel": np.arange(400.0)}, "sd": state}, buffer, int(kind[-1]))
    elif kind == "index":
        buffer.write(b'{"metadata": {}, "weight_map": {"w": "a.safetensors", "v": "b.bin"}}')
    return buffer.getvalue()


KINDS = (
    "safetensors",
    "float8",
    "deepspeed",
    "zip",
    "legacy",
    "module",
    "torchscript",
    "npy",
    "npz",
    "compressed npz",
    "equinox",
    "agent",
    "quantised",
    "pickle",
    "pickle 0",
    "pickle 1",
    "index",
)


@pytest.mark.parametrize("kind", KINDS)
def test_the_unchanged_file_is_read(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "checkpoint"
    path.write_bytes(valid(kind))
    if kind == "index":
        with pytest.raises(CheckpointError, match="no such file"):
            open_checkpoint(path)
    else:
        with open_checkpoint(path) as store:
            assert store.tensors


@FUZZ
@given(st.binary(max_size=400))
def test_random_bytes(content: bytes) -> None:
    survives(content)


@FUZZ
@given(
    st.sampled_from(
        [
            b"\x80\x02",
            b"\x80\x04",
            b"(dp0\n(lp1\nI1\na",
            b"PK\x03\x04",
            b"PK\x05\x06",
            b'\x40\0\0\0\0\0\0\0{"',
        ]
    ),
    st.binary(max_size=400),
)
def test_random_bytes_after_a_magic_number(magic: bytes, content: bytes) -> None:
    survives(magic + content)


@FUZZ
@given(st.lists(st.sampled_from(PICKLE_OPCODES), max_size=40), st.binary(max_size=20))
def test_random_instructions(opcodes: list[int], operands: bytes) -> None:
    survives(b"\x80\x04" + bytes(opcodes) + operands + b".")


@pytest.mark.parametrize("kind", KINDS)
@FUZZ
@given(data=st.data())
def test_a_changed_file(kind: str, data: st.DataObject) -> None:
    survives(changed(valid(kind), data))
