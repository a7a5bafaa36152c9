"""Attack files in pickle protocols 0 and 1, whose values are lines of text."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
from attacks.build import COMMAND, Evaluates, Executes, attack, attacks

# Enough instructions to be known by them.
BEGINNING = b"(dp0\nS'a'\np1\nI1\nsS'w'\np2\n"
TEXT = b"S'" + COMMAND + b"'\n"
TREE = {"w": np.eye(20), "a": Executes(), "b": Evaluates()}

attacks(
    "a.pkl",
    {
        "text_pickle_that_reduces": ("no tensor", b"cos\nsystem\n(" + TEXT + b"tR."),
        "text_pickle_of_an_instance": ("no tensor", b"(" + TEXT + b"ios\nsystem\n."),
        "pickle_of_an_object_of_a_function": ("no tensor", b"(cos\nsystem\n" + TEXT + b"o."),
        "text_pickle_that_reconstructs": (
            "no tensor",
            b"ccopy_reg\n_reconstructor\np0\n(cos\nsystem\np1\n" + TEXT + b"NtRp2\n" + TEXT + b"b.",
        ),
        "text_pickle_beside_weights": ("opens", pickle.dumps(TREE, 0)),
        "text_pickle_with_a_persistent_id": (
            "storage outside itself",
            b"(dp0\nS'w'\np1\nP/etc/passwd\ns.",
        ),
        "text_pickle_of_a_number_with_letters": (
            "invalid literal for int",
            BEGINNING + b"I" + b"7" * 900 + b"x\ns.",
        ),
        "text_pickle_of_a_million_digits": (
            "a line of more than",
            BEGINNING + b"L" + b"7" * 10**6 + b"L\ns.",
        ),
        "text_pickle_of_instances_within_each_other": (
            "nested more than",
            BEGINNING + b"(" * 10**5 + b"ios\nsystem\n" * 10**5 + b"s.",
        ),
    },
)


@attack("a line of more than")
def text_pickle_of_a_line_without_end(directory: Path) -> Path:
    path = directory / "a.pkl"
    with path.open("wb") as file:
        file.write(BEGINNING + b"V")
        file.truncate(300_000_000)
    return path


@attack("its long lines have more than")
def text_pickle_of_long_lines(directory: Path) -> Path:
    path = directory / "a.pkl"
    with path.open("wb") as file:
        file.write(BEGINNING + b"V")
        for end in range(200_000_000, 1_000_000_000, 200_000_000):
            file.seek(end)
            file.write(b"\n0V")
    return path
