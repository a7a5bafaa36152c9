"""The examples of docs/examples run, and print what a user is told to expect."""

from __future__ import annotations

import sys

from end_to_end.command import ROOT, program

EXAMPLES = ROOT / "docs" / "examples"


def test_flax_and_optax_watches_a_training_run() -> None:
    done = program(sys.executable, EXAMPLES / "flax_and_optax.py")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert [line.split(":")[0] for line in lines] == [f"step {step}" for step in (0, 100, 200, 300)]
    losses = [float(line.split("loss ")[1].split(",")[0]) for line in lines]
    assert losses[-1] < 0.7 * losses[0]
    assert all("verdict 0, longest memory" in line for line in lines)


def test_every_example_is_tested() -> None:
    assert [path.name for path in sorted(EXAMPLES.glob("*.py"))] == ["flax_and_optax.py"]
