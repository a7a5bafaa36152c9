"""What every format is fuzzed with: changed files, and what must hold of each."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from memcurse_cli.checkpoints.open import open_checkpoint
from memcurse_cli.checkpoints.store import TensorStore
from memcurse_cli.errors import CheckpointError

LONGEST_LINE = 2000
EXAMPLES = int(os.environ.get("MEMCURSE_FUZZ_EXAMPLES", "150"))
FUZZ = settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def refused(store: TensorStore, name: str, shape: tuple[int, ...]) -> list[str]:
    """Why a tensor is not read, or nothing where it is."""
    try:
        array = store.read(name)
    except CheckpointError as error:
        return [str(error)]
    assert array.shape == shape
    return []


def survives(content: bytes) -> None:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "checkpoint"
        path.write_bytes(content)
        survives_at(path)


def survives_at(path: Path) -> None:
    """Open a checkpoint and read all that can be read of it."""
    lines: list[str] = []
    try:
        with open_checkpoint(path) as store:
            shapes = {name: spec.shape for name, spec in store.tensors.items()}
            for name, shape in shapes.items():
                assert name.isprintable()
                lines += refused(store, name, shape)
    except CheckpointError as error:
        lines.append(str(error))
    assert all(line.isprintable() and len(line) < LONGEST_LINE for line in lines)


def changed(content: bytes, data: st.DataObject) -> bytes:
    """The file with one to four changes: bytes set, inserted, removed, repeated or cut off."""
    changing = bytearray(content)
    for _ in range(data.draw(st.integers(1, 4), "changes")):
        place = data.draw(st.integers(0, max(0, len(changing) - 1)), "place")
        length = data.draw(st.integers(1, 8), "length")
        change = data.draw(st.sampled_from(["set", "insert", "remove", "repeat", "cut"]), "change")
        if change == "set":
            new = data.draw(st.binary(min_size=length, max_size=length))
            changing[place : place + length] = new
        elif change == "insert":
            changing[place:place] = data.draw(st.binary(max_size=8))
        elif change == "remove":
            del changing[place : place + length]
        elif change == "repeat":
            changing[place:place] = changing[place : place + length]
        else:
            del changing[place:]
    return bytes(changing)


def survives_in_folder(source: Path, data: st.DataObject) -> None:
    """Open a copy of a folder with one of its files changed."""
    with tempfile.TemporaryDirectory() as root:
        folder = Path(shutil.copytree(source, Path(root) / "copy"))
        files = sorted(path for path in folder.rglob("*") if path.is_file())
        file = data.draw(st.sampled_from(files), "file")
        file.chmod(0o600)
        file.write_bytes(changed(file.read_bytes(), data))
        survives_at(folder)
