"""Every attack file gets its one line, or is read without doing what it asks for."""

from __future__ import annotations

import contextlib
import importlib
import json
import pickle
import sys
import tarfile
import time
from pathlib import Path

import numpy as np
import pytest
from attacks.build import ATTACKS, MARKER, Builder, peak

from memcurse_cli.checkpoints.open import open_checkpoint
from memcurse_cli.errors import CheckpointError

HERE = Path(__file__).parent
SECONDS = 40.0  # of CPU, so that a busy machine fails nothing
MEMORY = 1_500_000  # kilobytes of address space that an attack may add

# Each of these modules registers the attacks of one more format.
for module in sorted(HERE.glob("*_files.py")):
    importlib.import_module(f"attacks.{module.stem}")


def extracted(name: str, file: str) -> Builder:
    """What a library has written (README.md), of the archive."""

    def build(directory: Path) -> Path:
        with tarfile.open(HERE / "files" / "library.tar.xz") as archive:
            for member in archive:
                if member.name.startswith(f"{name}/"):
                    member.name = member.name.removeprefix(f"{name}/")
                    if member.issym() and member.linkname.startswith("/"):
                        # To a file that is there, on whatever machine.
                        member.linkname = str(directory.parent / f"{directory.name}-outside")
                        Path(member.linkname).write_bytes(bytes(4096))
                    archive.extract(member, directory, filter="fully_trusted")
        return directory / file

    return build


for name, (outcome, file) in json.loads((HERE / "files" / "library.json").read_text()).items():
    ATTACKS[name] = (extracted(name, file), outcome)


def check(build: Builder, outcome: str, directory: Path) -> None:
    """Open what a builder writes, and read all of it where it opens."""
    path = build(directory)
    modules, before, start = set(sys.modules), peak(), time.process_time()
    try:
        with contextlib.chdir(directory), open_checkpoint(path) as store:
            assert store.tensors
            for tensor in store.tensors:
                assert tensor.isprintable()
                assert np.isfinite(store.read(tensor)).all()
        assert outcome == "opens"
    except CheckpointError as error:
        line = str(error)
        assert outcome in line
        assert line.isprintable()
        assert len(line) < 1000
    assert not (directory / MARKER).exists()
    assert time.process_time() - start < SECONDS
    assert peak() - before < MEMORY
    new = {module.partition(".")[0] for module in set(sys.modules) - modules}
    assert not new & {"torch", "jax", "h5py", "onnx", "flax"}


@pytest.mark.parametrize("name", ATTACKS)
def test_attack(name: str, tmp_path: Path) -> None:
    check(*ATTACKS[name], tmp_path)


def test_the_pickles_do_run_code_where_they_are_unpickled(tmp_path: Path) -> None:
    content = ATTACKS["plain_pickle"][0](tmp_path).read_bytes()
    with contextlib.chdir(tmp_path):
        pickle.loads(content)
    assert (tmp_path / MARKER).exists()
