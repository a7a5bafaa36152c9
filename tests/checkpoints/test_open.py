"""What is opened, by its content, with the configuration and the weights that belong to it."""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from attacks.folder_files import CONFIGS
from checkpoints.test_fuzzing import valid
from end_to_end.command import program
from safetensors.numpy import save_file

from memcurse_cli.checkpoints.open import open_checkpoint
from memcurse_cli.checkpoints.registry import FORMATS
from memcurse_cli.checkpoints.select import select, select_flat
from memcurse_cli.checkpoints.untrusted.names import printable
from memcurse_cli.errors import CheckpointError

WEIGHTS = {"rnn.weight_hh_l0": np.eye(3, dtype=np.float32)}


def test_the_content_decides_and_not_the_extension(tmp_path: Path) -> None:
    save_file(WEIGHTS, tmp_path / "a.pt")
    torch.save({"w": torch.eye(2)}, tmp_path / "a.safetensors")
    with (tmp_path / "a.bin").open("wb") as file:
        np.savez(file, w=np.eye(2))
    torch.save({"w": torch.eye(2)}, tmp_path / "noextension", _use_new_zipfile_serialization=False)
    found = {path.name: open_checkpoint(path).format for path in tmp_path.iterdir()}
    assert found == {
        "a.pt": "safetensors",
        "a.safetensors": "PyTorch",
        "a.bin": "NumPy .npz",
        "noextension": "PyTorch legacy",
    }
    assert set(found.values()) <= {format.name for format in FORMATS}


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", "the file is empty; copy or download it again"),
        (
            b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 5\n",
            "git-LFS pointer, not the file that it stands for; run `git lfs pull`",
        ),
        (b"\n<!DOCTYPE html><html>", "a web page saved under a checkpoint's name"),
        (bytes(5000), "bytes are zero, as in a file whose writing was cut short"),
        (b"hello, world", 'its first bytes are "hello, world"; it reads safetensors, PyTorch, '),
        (b"\x89PNG\r\n\x1a\n", "its first bytes are 89 50 4e 47 0d 0a 1a 0a; it reads"),
        (b'{"a": 1}', "not a format that memcurse reads"),
    ],
)
def test_a_file_that_is_no_checkpoint_is_named(
    tmp_path: Path, content: bytes, expected: str
) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=re.escape(f"{path}: ") + f".*{re.escape(expected)}"):
        open_checkpoint(path)


@pytest.mark.parametrize("kind", ["safetensors", "zip", "legacy", "npz"])
def test_a_truncated_file_is_named_wherever_it_ends(tmp_path: Path, kind: str) -> None:
    path, whole = tmp_path / "a", valid(kind)
    for length in range(0, len(whole), max(1, len(whole) // 50)):
        path.write_bytes(whole[:length])
        with pytest.raises(CheckpointError):
            open_checkpoint(path)


def test_a_path_that_cannot_be_opened_is_named_without_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo.pt")
    kind = "neither a regular file nor a directory"
    for path, expected in (
        *((one, kind) for one in (tmp_path / "fifo.pt", Path(os.devnull), Path("/dev/zero"))),
        (tmp_path / "missing.pt", "no such file or directory; check the path"),
        (tmp_path / "missing" / "deep.pt", "no such file or directory"),
        (tmp_path / ("x" * 5000), "the path is too long"),
        (str(tmp_path) + "/a\0b", "null byte"),
    ):
        with pytest.raises(CheckpointError, match=expected) as caught:
            open_checkpoint(path)
        assert str(caught.value).isprintable()
        assert len(str(caught.value)) < 400


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_without_permission_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.pt").touch(0)
    with pytest.raises(CheckpointError, match="permission denied"):
        open_checkpoint(tmp_path / "a.pt")


def test_a_folder_in_the_place_of_a_file_that_a_checkpoint_names_is_refused(tmp_path: Path) -> None:
    (tmp_path / "shard.safetensors").mkdir()
    index = tmp_path / "model.safetensors.index.json"
    index.write_text('{"weight_map": {"a": "shard.safetensors"}}')
    opened = len(os.listdir("/dev/fd"))
    with pytest.raises(CheckpointError, match=r"shard\.safetensors: this is a folder"):
        open_checkpoint(index)
    assert len(os.listdir("/dev/fd")) == opened


def test_a_file_without_weights_is_named(tmp_path: Path) -> None:
    module = torch.nn.Linear(2, 2)
    optimizer = torch.optim.Adam(module.parameters())
    module(torch.ones(2)).sum().backward()
    optimizer.step()
    torch.save(optimizer.state_dict(), tmp_path / "optimizer.pt")
    with pytest.raises(CheckpointError, match=r"holds no weights .*optimiser state"):
        open_checkpoint(tmp_path / "optimizer.pt")
    torch.save({"epoch": 3}, tmp_path / "epoch.pt")
    with pytest.raises(CheckpointError, match="a dictionary of epoch and no tensor"):
        open_checkpoint(tmp_path / "epoch.pt")


def test_a_directory_gives_its_only_weights_or_those_of_the_known_name(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    torch.save({"training": 1}, tmp_path / "training_args.bin")
    (tmp_path / "optimizer.pt").write_bytes(b"")
    with pytest.raises(CheckpointError, match=r"no checkpoint; looked for model\.safetensors"):
        open_checkpoint(tmp_path)
    for step in ("500", "1000", "1500", "best"):  # a run of Trainer's
        (tmp_path / f"checkpoint-{step}").mkdir()
    with pytest.raises(CheckpointError, match="name one of its folders, as checkpoint-1500"):
        open_checkpoint(tmp_path)
    save_file(WEIGHTS, tmp_path / "epoch3.safetensors")
    with open_checkpoint(tmp_path) as store:
        assert list(store.tensors) == list(WEIGHTS)
        assert store.path == str(tmp_path)
    save_file(WEIGHTS, tmp_path / "b\x1b[2J.safetensors")
    with pytest.raises(CheckpointError, match=r"2 checkpoints: b\\x1b\[2J.safetensors, epoch3"):
        open_checkpoint(tmp_path)
    save_file({"known": np.eye(2)}, tmp_path / "model.safetensors")
    assert list(open_checkpoint(tmp_path).tensors) == ["known"]


def shards(directory: Path) -> Path:
    directory.mkdir(parents=True)
    torch.save({"a.weight": torch.eye(2)}, directory / "one.bin")
    torch.save({"b.weight": torch.ones(3)}, directory / "two.bin")
    index = {"weight_map": {"a.weight": "one.bin", "b.weight": "two.bin"}}
    (directory / "pytorch_model.bin.index.json").write_text(json.dumps(index))
    return directory


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda path: (path / "two.bin").unlink(), r"two\.bin: no such file"),
        (
            lambda path: shutil.copy(path / "one.bin", path / "two.bin"),
            r"tensor b\.weight is not in two\.bin",
        ),
        (
            lambda path: shutil.copy(path / "pytorch_model.bin.index.json", path / "two.bin"),
            r"two\.bin: this shard is not a safetensors or",
        ),
    ],
)
def test_shards_that_are_not_what_the_index_says_are_named(
    tmp_path: Path, change: Callable[[Path], object], expected: str
) -> None:
    path = shards(tmp_path / "shards")
    change(path)
    with pytest.raises(CheckpointError, match=expected):
        open_checkpoint(path)


def test_shards_of_pytorch_are_read_through_the_links_of_a_hugging_face_cache_too(
    tmp_path: Path,
) -> None:
    snapshot = shards(tmp_path / "snapshots" / "0123")
    with open_checkpoint(snapshot) as store:
        np.testing.assert_array_equal(store.read("b.weight"), np.ones(3))
        assert store.bytes_read == 12
        assert store.bytes == sum(file.stat().st_size for file in snapshot.iterdir())
        assert store.notes == ("2 shards of PyTorch",)
    (tmp_path / "blobs").mkdir()
    for number, path in enumerate(sorted(snapshot.iterdir())):
        path.rename(tmp_path / "blobs" / str(number))
        path.symlink_to(Path("..", "..", "blobs", str(number)))
    for path in (snapshot, snapshot / "pytorch_model.bin.index.json"):
        with open_checkpoint(path) as store:
            assert list(store.tensors) == ["a.weight", "b.weight"]


def test_a_report_imports_the_reader_of_its_own_format_alone(tmp_path: Path) -> None:
    save_file({"nu_log": np.zeros(4), "theta_log": np.zeros(4)}, tmp_path / "a.safetensors")
    code = (
        "import sys; from memcurse_cli import inspect\n"
        f"inspect({str(tmp_path / 'a.safetensors')!r})\n"
        "print([name.split('.')[2] for name in sys.modules if name.count('.') > 1"
        " and name.startswith('memcurse_cli.checkpoints.')])"
    )
    done = program(sys.executable, "-c", code)
    assert "safetensors" in done.stdout
    others = {"torch", "hdf5", "onnx", "jax", "tensorflow", "numpy", "gguf", "remote", "directory"}
    assert not {f"'{name}'" for name in others} & set(done.stdout.strip("[]\n").split(", "))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("layers.0.Λ_bar", "layers.0.Λ_bar"),
        ("a\x1b[2J\nb", "a\\x1b[2J\\nb"),
        ("\u202eabc\u2028", "\\u202eabc\\u2028"),
        ("\ud800", "\\ud800"),
        ("x" * 300, "x" * 99 + "…" + "x" * 100),
    ],
)
def test_printable(text: str, expected: str) -> None:
    assert printable(text) == expected
    assert printable(text).isprintable()
    assert len(printable("\x1b" * 10**6)) <= 200


def write(directory: Path, name: str, config: str) -> Path:
    (directory / "config.json").write_text(config)
    save_file({"a": np.eye(2)}, directory / name)
    return directory / name


@pytest.mark.parametrize(
    ("name", "config"),
    [
        ("model.safetensors", {"n_groups": 2}),
        ("model-00001-of-00002.safetensors", {"n_groups": 2}),
        ("my_model.safetensors", {}),
        ("model.safetensors", {"time_step_limit": [0.0, math.inf]}),  # as transformers 4 wrote it
    ],
)
def test_a_config_is_read_beside_a_file_of_hugging_faces_name_alone(
    tmp_path: Path, name: str, config: dict[str, Any]
) -> None:
    with open_checkpoint(write(tmp_path, name, json.dumps(config or {"a": 1}))) as store:
        assert store.config == config
        assert store.notes == ()


def test_it_is_read_through_the_directory_and_through_an_index(zoo: Path) -> None:
    for folder in ("fp32", "sharded"):
        with open_checkpoint(zoo / "hf_mamba" / folder) as store:
            assert store.config["model_type"] == "mamba"


@pytest.mark.parametrize("name", CONFIGS)
def test_what_is_wrong_with_it_is_a_note(tmp_path: Path, name: str) -> None:
    reason, build = CONFIGS[name]
    with open_checkpoint(build(tmp_path)) as store:
        assert store.tensors
        assert store.config == {}
        (note,) = store.notes
        assert reason in note
        assert note.isprintable()


TRAINED = ("cell.weight_hh_l0", "cell.bias_hh_l0", "out.weight")


def kept(*names: str) -> tuple[set[str], str]:
    weights, notes = select_flat(dict.fromkeys(names, 0))
    return set(weights), "; ".join(notes)


@pytest.mark.parametrize(
    ("container", "kind"),
    [
        *((name, "optimiser state") for name in ("exp_avg", "exp_avg_sq", "grads", "gradients")),
        *((name, "optimiser state") for name in ("acc_grads", "optimizer.0.momentum_buffer")),
        *((name, "averaged (EMA) copy") for name in ("model_ema", "ema_model", "a.b.swa_model")),
        ("average_model_state", "averaged (EMA) copy"),
    ],
)
def test_what_training_adds_by_the_name_of_its_container(container: str, kind: str) -> None:
    weights, note = kept(*TRAINED, *(f"{container}.{name}" for name in TRAINED))
    assert weights == set(TRAINED)
    assert re.match(rf"3 tensors of (an )?{re.escape(kind)}", note)


@pytest.mark.parametrize(
    ("trained", "averaged"),
    [("net", "net_ema"), ("actor", "ema_actor"), ("agent.net", "agent.net_EMA")],
)
def test_a_copy_is_called_after_what_it_averages(trained: str, averaged: str) -> None:
    names = {f"{trained}.{name}" for name in TRAINED}
    copies = {f"{averaged}.{name}" for name in TRAINED}
    assert kept(*names, *copies) == (
        names,
        f"3 tensors of an averaged (EMA) copy (such as {averaged}.cell.bias_hh_l0): left out",
    )
    # Without what it averages it is no copy, and neither is a part with other names in it.
    assert kept(*copies) == (copies, "")
    others = {f"{trained}.decoder.{name}" for name in TRAINED}
    assert kept(*others, *copies) == (others | copies, "")


def test_lightning_averages_where_the_weights_were() -> None:
    names = [(outer, name) for outer in ("state_dict", "current_model_state") for name in TRAINED]
    weights, notes = select(dict.fromkeys(names, 0))
    assert set(weights) == {("current_model_state", name) for name in TRAINED}
    assert len(notes) == 1
    alone = {("state_dict", name): 0 for name in TRAINED}
    assert select(alone) == (alone, [])


def test_moments_of_optax_and_slots_of_tensorflow_without_a_container() -> None:
    moments = [f"0/{moment}/{name}" for moment in ("mu", "nu") for name in TRAINED]
    assert kept("0/count", *moments, *TRAINED)[0] == {"0/count", *TRAINED}
    # An LRU of DeepMind's port has a nu of its own, and no count.
    assert kept("lru/nu", "lru/theta", "count")[0] == {"lru/nu", "lru/theta", "count"}
    assert kept("lru/count", "lru/nu")[0] == {"lru/count", "lru/nu"}
    # W_in/Momentum has no variable W_in beside it: it may be a weight.
    weights = {"W_rec", "W_in/Momentum", "Adam/kernel"}
    assert kept(*weights, "W_rec/Adam", "W_rec/Adam_1", "beta1_power")[0] == weights


@pytest.mark.parametrize("moments", [("mu", "nu"), ("m", "v"), ("momentum",)])
def test_moments_beside_the_weights_that_they_repeat(moments: tuple[str, ...]) -> None:
    weights = {f"params/{name}" for name in TRAINED}
    slots = [f"{moment}/{name}" for moment in moments for name in TRAINED]
    assert kept(*weights, *slots)[0] == weights
    # Keys, queries and values repeat each other's names too.
    attention = {f"{part}/{name}" for part in "qkv" for name in TRAINED}
    assert kept(*attention)[0] == attention
    others = {f"{moment}/layer/{name}" for moment in moments for name in TRAINED}
    assert kept(*weights, *others)[0] == weights | others


@pytest.mark.parametrize("copy", ["EMA", "Shadow", "polyak", "model_avg", "swa"])
def test_outermost_copies_repeat_another_tree(copy: str) -> None:
    weights = {f"model.{name}" for name in TRAINED}
    copies = [f"{copy}.{name}" for name in TRAINED]
    found, note = kept(*weights, *copies)
    assert found == weights
    assert "averaged (EMA) copy" in note
    assert kept(*TRAINED, *copies)[0] == set(TRAINED)
    assert kept(*copies) == (set(copies), "")
