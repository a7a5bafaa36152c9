"""Nothing heavy is imported on the way of the commands that must start at once."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from end_to_end.command import SAMPLES

HEAVY = ("torch", "jax", "transformers", "optax")
PROGRAM = """
import contextlib, io, json, sys
from memcurse_cli.__main__ import run
with contextlib.redirect_stdout(io.StringIO()):
    code = run(sys.argv[1:])
print(json.dumps({"code": code, "modules": sorted(sys.modules)}))
"""


def modules(*arguments: str) -> set[str]:
    """The top-level packages that a command has imported when it ends."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *arguments], capture_output=True, text=True, check=True
    )
    result = json.loads(done.stdout)
    assert result["code"] == 0
    return {module.partition(".")[0] for module in result["modules"]}


def test_help_imports_no_array_library() -> None:
    assert modules("--help").isdisjoint({*HEAVY, "numpy", "scipy"})


@pytest.mark.parametrize(
    "arguments",
    [
        ("predict", "--rho", "0.5"),
        ("families",),
        ("formats",),
    ],
    ids=lambda arguments: arguments[0],
)
def test_light_commands_import_nothing_heavy(arguments: tuple[str, ...]) -> None:
    assert modules(*arguments).isdisjoint({*HEAVY, "scipy"})


@pytest.mark.parametrize("sample", ["lru", "gru", "dense_linear_rnn"])
def test_inspect_of_a_small_safetensors_file_imports_nothing_heavy(sample: str) -> None:
    assert modules("inspect", str(SAMPLES / f"{sample}.safetensors")).isdisjoint(HEAVY)
