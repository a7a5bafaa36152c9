"""Files of torch.save among a model's others: Stable-Baselines3's zip and NeMo's tar archives."""

from __future__ import annotations

import io
import json
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

import memcurse_cli
from memcurse_cli.checkpoints.open import open_checkpoint
from memcurse_cli.errors import CheckpointError

DATA = json.dumps({"policy_class": {":type:": "<class 'abc.ABCMeta'>", ":serialized:": "gASV"}})


class Policy(torch.nn.Module):
    """The recurrent parts of sb3_contrib's RecurrentActorCriticPolicy."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm_actor = torch.nn.LSTM(3, 4)
        self.lstm_critic = torch.nn.LSTM(3, 4)
        self.action_net = torch.nn.Linear(4, 2)


def saved(content: object, legacy: bool = False) -> bytes:
    buffer = io.BytesIO()
    torch.save(content, buffer, _use_new_zipfile_serialization=not legacy)
    return buffer.getvalue()


def agent(path: Path, policy: bytes, compression: int = zipfile.ZIP_STORED) -> Path:
    with zipfile.ZipFile(path, "w", compression) as archive:
        archive.writestr("data", DATA)
        archive.writestr("pytorch_variables.pth", saved({}))
        with archive.open("policy.pth", "w", force_zip64=True) as member:
            member.write(policy)
        archive.writestr("policy.optimizer.pth", saved({"lstm_actor.weight_hh_l0": torch.ones(9)}))
        archive.writestr("_stable_baselines3_version", "2.3.2")
    return path


def deflated_agent(path: Path, policy: bytes) -> Path:
    return agent(path, policy, zipfile.ZIP_DEFLATED)


def nemo(path: Path, weights: bytes, mode: str = "w") -> Path:
    """As NeMo's SaveRestoreConnector writes it: a folder's content under ``./``."""
    with tarfile.open(path, f"{mode}") as archive:
        for name, content in (
            ("./model_config.yaml", b"target: nemo.Model\n" * 40),
            ("./" + "tokenizer/" * 15 + "vocabulary.txt", b"a\nb\n"),  # a name of two headers
            ("./model_weights.ckpt", weights),
        ):
            member = tarfile.TarInfo(name)
            member.size, member.mtime = len(content), 1700000000.5  # type: ignore[assignment]
            archive.addfile(member, io.BytesIO(content))
    return path


def zipped_nemo(path: Path, weights: bytes) -> Path:
    return nemo(path, weights, "w:gz")


@pytest.mark.parametrize("legacy", [False, True])
@pytest.mark.parametrize(
    ("build", "format"),
    [
        (agent, "Stable-Baselines3"),
        (deflated_agent, "Stable-Baselines3"),
        (nemo, "NeMo"),
        (zipped_nemo, "NeMo"),
    ],
)
def test_the_weights_are_read_and_nothing_else(
    tmp_path: Path, build: Callable[[Path, bytes], Path], format: str, legacy: bool
) -> None:
    torch.manual_seed(0)
    policy = Policy().state_dict()
    path = build(tmp_path / "archive", saved(policy, legacy))
    with open_checkpoint(path) as store:
        assert store.format == format
        assert store.path == str(path)
        assert store.bytes == path.stat().st_size
        assert list(store.tensors) == list(policy)
        for name, tensor in policy.items():
            np.testing.assert_array_equal(store.read(name), tensor.numpy())
    report = memcurse_cli.inspect(path)
    assert [layer.name for layer in report.layers] == ["lstm_actor.l0", "lstm_critic.l0"]
    assert list(tmp_path.iterdir()) == [path]


def test_weights_in_a_tar_are_read_by_range(tmp_path: Path) -> None:
    weights = saved({"a": torch.ones(3), "w": torch.ones(1000, 1000)})
    with open_checkpoint(nemo(tmp_path / "a.nemo", weights)) as store:
        store.read("a")
        assert store.bytes_read == 12


@pytest.mark.parametrize("build", [agent, nemo])
@pytest.mark.parametrize(
    ("weights", "message"),
    [
        (b"", "is not a file of torch.save"),
        (b"gASV", "is not a file of torch.save"),
        (saved({"weight": torch.ones(50, 50)})[:-2000], ": a truncated or corrupt"),
    ],
)
def test_what_is_no_torch_file_is_refused(
    tmp_path: Path, build: Callable[[Path, bytes], Path], weights: bytes, message: str
) -> None:
    with pytest.raises(CheckpointError, match=message):
        open_checkpoint(build(tmp_path / "archive", weights))
