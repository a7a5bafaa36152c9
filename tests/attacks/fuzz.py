"""Coverage-guided fuzzing of every loader with atheris, which is installed for it alone.

Usage: python tests/attacks/fuzz.py CORPUS [-max_total_time=600] [other flags of libFuzzer]

The corpus folder is filled with a small valid file of every format when it is empty. An input that
ends in anything but a CheckpointError of one printable line is written to the current folder.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["memcurse_cli.checkpoints"]):
    from memcurse_cli.checkpoints.open import open_checkpoint
from memcurse_cli.errors import CheckpointError

FILES = Path(__file__).parents[1] / "checkpoints" / "files"


def fill(corpus: Path) -> None:
    """Write the valid files: those of the fuzzing tests, and those that libraries have written."""
    from checkpoints.test_fuzzing import KINDS, valid

    corpus.mkdir(parents=True, exist_ok=True)
    for kind in KINDS:
        (corpus / kind.replace(" ", "-")).write_bytes(valid(kind))
    for path in FILES.iterdir():
        if path.is_file():
            (corpus / path.name).write_bytes(path.read_bytes())


def survive(path: Path) -> None:
    """Open a file and read all of it; raise where the outcome is not one that is allowed."""
    lines: list[str] = []
    try:
        with open_checkpoint(path) as store:
            for name, spec in store.tensors.items():
                assert name.isprintable()
                try:
                    assert store.read(name).shape == spec.shape
                except CheckpointError as error:
                    lines.append(str(error))
    except CheckpointError as error:
        lines.append(str(error))
    assert all(line.isprintable() and len(line) < 2000 for line in lines)


def main() -> None:
    """Fuzz until libFuzzer's flags end it."""
    corpus = Path(sys.argv[1])
    if not corpus.is_dir() or not any(corpus.iterdir()):
        fill(corpus)
    folder = Path(tempfile.mkdtemp())
    path = folder / "checkpoint"

    def target(content: bytes) -> None:
        path.write_bytes(content)
        survive(path)

    atheris.Setup(sys.argv, target)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
