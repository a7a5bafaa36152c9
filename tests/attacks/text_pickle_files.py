"""Attack files in pickle protocols 0 and 1, whose values are lines of text."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
from attacks.build import MARKER, Evaluates, Executes, attack

# Enough instructions to be known by them.
BEGINNING = b"(dp0\nS'a'\np1\nI1\nsS'w'\np2\n"


def _written(directory: Path, content: bytes) -> Path:
    (directory / "a.pkl").write_bytes(content)
    return directory / "a.pkl"


def _command(directory: Path) -> bytes:
    return f"S'touch {directory / MARKER}'\n".encode()


@attack("no tensor")
def text_pickle_that_reduces(directory: Path) -> Path:
    return _written(directory, b"cos\nsystem\n(" + _command(directory) + b"tR.")


@attack("no tensor")
def text_pickle_of_an_instance(directory: Path) -> Path:
    return _written(directory, b"(" + _command(directory) + b"ios\nsystem\n.")


@attack("no tensor")
def pickle_of_an_object_of_a_function(directory: Path) -> Path:
    return _written(directory, b"(cos\nsystem\n" + _command(directory) + b"o.")


@attack("no tensor")
def text_pickle_that_reconstructs(directory: Path) -> Path:
    content = b"ccopy_reg\n_reconstructor\np0\n(cos\nsystem\np1\n" + _command(directory)
    return _written(directory, content + b"NtRp2\n" + _command(directory) + b"b.")


@attack("opens")
def text_pickle_beside_weights(directory: Path) -> Path:
    tree = {"w": np.eye(20), "a": Executes(directory), "b": Evaluates(directory)}
    return _written(directory, pickle.dumps(tree, 0))


@attack("opens")
def pickle_of_protocol_1_beside_weights(directory: Path) -> Path:
    tree = {"w": np.eye(20), "a": Executes(directory), "b": Evaluates(directory)}
    return _written(directory, pickle.dumps(tree, 1))


@attack("storage outside itself")
def text_pickle_with_a_persistent_id(directory: Path) -> Path:
    return _written(directory, b"(dp0\nS'w'\np1\nP/etc/passwd\ns.")


@attack("a line of more than")
def text_pickle_of_a_line_without_end(directory: Path) -> Path:
    path = _written(directory, BEGINNING + b"V")
    with path.open("r+b") as file:
        file.truncate(300_000_000)
    return path


@attack("its long lines have more than")
def text_pickle_of_long_lines(directory: Path) -> Path:
    path = _written(directory, BEGINNING + b"V")
    with path.open("r+b") as file:
        for end in range(200_000_000, 1_000_000_000, 200_000_000):
            file.seek(end)
            file.write(b"\n0V")
    return path


@attack("do not fit together")
def text_pickle_of_a_number_with_letters(directory: Path) -> Path:
    return _written(directory, BEGINNING + b"I" + b"7" * 900 + b"x\ns.")


@attack("a line of more than")
def text_pickle_of_a_million_digits(directory: Path) -> Path:
    return _written(directory, BEGINNING + b"L" + b"7" * 10**6 + b"L\ns.")


@attack("do not fit together")
def text_pickle_of_an_instance_without_a_mark(directory: Path) -> Path:
    return _written(directory, BEGINNING + b"ios\nsystem\ns.")


@attack("nested more than")
def text_pickle_of_instances_within_each_other(directory: Path) -> Path:
    calls = b"(" * 10**5 + b"ios\nsystem\n" * 10**5
    return _written(directory, BEGINNING + calls + b"s.")


@attack("string without quotes")
def text_pickle_of_a_long_string_without_quotes(directory: Path) -> Path:
    return _written(directory, BEGINNING + b"S'" + b"x" * 2000 + b"\ns.")


@attack("a line of more than")
def text_pickle_of_an_endless_memo_index(directory: Path) -> Path:
    return _written(directory, BEGINNING + b"p" + b"9" * 2000 + b"\n.")
