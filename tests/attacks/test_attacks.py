"""Every attack file gets its one line, or is read without doing what it asks for."""

from __future__ import annotations

import importlib
import resource
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from attacks.build import ATTACKS, MARKER

from memcurse_cli.checkpoints.open import open_checkpoint
from memcurse_cli.errors import CheckpointError

# Each of these modules registers the attacks of one more format.
for module in sorted(Path(__file__).parent.glob("*_files.py")):
    importlib.import_module(f"attacks.{module.stem}")

SECONDS = 40.0  # of CPU, so that a busy machine fails nothing
MEMORY = 1_500_000  # kilobytes of address space that an attack may add


def peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


@pytest.mark.parametrize("name", ATTACKS)
def test_attack(name: str, tmp_path: Path) -> None:
    build, outcome = ATTACKS[name]
    path = build(tmp_path)
    modules, before, start = set(sys.modules), peak(), time.process_time()
    try:
        with open_checkpoint(path) as store:
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
    assert not (tmp_path / MARKER).exists()
    assert time.process_time() - start < SECONDS
    assert peak() - before < MEMORY
    assert not {module.partition(".")[0] for module in set(sys.modules) - modules} & {
        "torch",
        "jax",
    }


def test_the_pickles_do_run_code_where_they_are_unpickled(tmp_path: Path) -> None:
    import pickle

    path = ATTACKS["plain_pickle"][0](tmp_path)
    pickle.loads(path.read_bytes())
    assert (tmp_path / MARKER).exists()
