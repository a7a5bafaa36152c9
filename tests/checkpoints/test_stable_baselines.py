"""Agents as Stable-Baselines3 writes them: a torch file in an archive of other files."""

from __future__ import annotations

import io
import json
import zipfile
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


@pytest.mark.parametrize("legacy", [False, True])
@pytest.mark.parametrize("compression", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_the_policy_is_read_and_nothing_else(
    tmp_path: Path, legacy: bool, compression: int
) -> None:
    torch.manual_seed(0)
    policy = Policy().state_dict()
    path = agent(tmp_path / "agent.zip", saved(policy, legacy), compression)
    with open_checkpoint(path) as store:
        assert store.format == "Stable-Baselines3"
        assert store.path == str(path)
        assert store.bytes == path.stat().st_size
        assert list(store.tensors) == list(policy)
        for name, tensor in policy.items():
            np.testing.assert_array_equal(store.read(name), tensor.numpy())


def test_both_networks_are_layers_of_the_report(tmp_path: Path) -> None:
    path = agent(tmp_path / "agent.zip", saved(Policy().state_dict()))
    report = memcurse_cli.inspect(path)
    assert [layer.name for layer in report.layers] == ["lstm_actor.l0", "lstm_critic.l0"]


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        (b"", "is not a file of torch.save"),
        (b"gASV", "is not a file of torch.save"),
        (saved({"weight": torch.ones(50, 50)})[:-2000], "policy.pth: a truncated or corrupt"),
    ],
)
def test_a_policy_that_is_no_torch_file_is_refused(
    tmp_path: Path, policy: bytes, message: str
) -> None:
    with pytest.raises(CheckpointError, match=message):
        open_checkpoint(agent(tmp_path / "agent.zip", policy))
