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
    from checkpoints.fuzzing import survives_at

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


def main() -> None:
    """Fuzz until libFuzzer's flags end it."""
    corpus = Path(sys.argv[1])
    if not corpus.is_dir() or not any(corpus.iterdir()):
        fill(corpus)
    folder = Path(tempfile.mkdtemp())
    path = folder / "checkpoint"

    def target(content: bytes) -> None:
        path.write_bytes(content)
        survives_at(path)

    atheris.Setup(sys.argv, target)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
