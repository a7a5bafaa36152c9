"""Whatever a file holds, the only exception is a CheckpointError of one printable line."""

from __future__ import annotations

import io
import pickle
import pickletools
import warnings
import zipfile
from collections.abc import Callable
from functools import cache

import numpy as np
import pytest
import torch
from checkpoints.fuzzing import FUZZ, changed, survives
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import save as save_safetensors
from safetensors.torch import save as save_torch

PICKLE_OPCODES = bytes(ord(opcode.code) for opcode in pickletools.opcodes)
MAGIC = (
    *(b"", b"\x80\x02", b"\x80\x04", b"(dp0\n(lp1\nI1\na"),
    *(b"PK\x03\x04", b"PK\x05\x06", b'\x40\0\0\0\0\0\0\0{"'),
)
STATE = {"rnn.weight_hh_l0": torch.eye(3), "rnn.bias_hh_l0": torch.zeros(3)}
ARRAYS = {name: tensor.numpy() for name, tensor in STATE.items()}
TRAINED = {"model": STATE, "optimizer": {"state": {0: {"exp_avg": torch.ones(3)}}}}
MATRIX = torch.ones(4, 4).to(torch.float8_e4m3fn)
RANKS = {"ds_version": "0.16.2", "mp_world_size": 2, "param_shapes": [{"w": (3, 3)}]}
LISTED = {"lstm": {"kernel": np.arange(400.0)}, "sd": STATE}


def _equinox(file: io.BytesIO) -> None:
    file.write(b'{"size": 20}\n')
    for array in ARRAYS.values():
        np.save(file, array)


def _agent(file: io.BytesIO) -> None:
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("data", "{}")
        archive.writestr("policy.pth", valid("zip"))


def _quantised(file: io.BytesIO) -> None:
    network = torch.nn.Sequential(torch.nn.LSTM(2, 2))
    torch.save(torch.ao.quantization.quantize_dynamic(network).state_dict(), file)


# A small valid file of each format.
WRITE: dict[str, Callable[[io.BytesIO], object]] = {
    "safetensors": lambda file: file.write(save_safetensors(ARRAYS, {"format": "pt"})),
    "float8": lambda file: file.write(
        save_torch({"w": MATRIX, "w_scale": torch.ones(4, 1), "v": MATRIX.clone()})
    ),
    "deepspeed": lambda file: torch.save({"module": STATE, **RANKS}, file),
    "zip": lambda file: torch.save(TRAINED, file),
    "legacy": lambda file: torch.save(TRAINED, file, _use_new_zipfile_serialization=False),
    "module": lambda file: torch.save(torch.nn.GRU(2, 2), file),
    "torchscript": lambda file: torch.jit.save(torch.jit.script(torch.nn.Linear(2, 2)), file),
    "npy": lambda file: np.save(file, ARRAYS["rnn.weight_hh_l0"]),
    "npz": lambda file: np.savez(file, **ARRAYS),
    "compressed npz": lambda file: np.savez_compressed(file, **ARRAYS),
    "equinox": _equinox,
    "agent": _agent,
    "quantised": _quantised,
    "pickle": lambda file: pickle.dump(LISTED, file),
    "pickle 0": lambda file: pickle.dump(LISTED, file, 0),
    "pickle 1": lambda file: pickle.dump(LISTED, file, 1),
    "index": lambda file: file.write(
        b'{"metadata": {}, "weight_map": {"w": "a.safetensors", "v": "b.bin"}}'
    ),
}
KINDS = tuple(WRITE)


@cache
def valid(kind: str) -> bytes:
    file = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        WRITE[kind](file)
    return file.getvalue()


@FUZZ
@given(st.sampled_from(MAGIC), st.binary(max_size=400))
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
