"""The calls that every command is held to its contract by."""

from __future__ import annotations

from pathlib import Path

import pytest
from end_to_end.command import SAMPLES

SAMPLE = SAMPLES / "lru.safetensors"
CURSED = SAMPLES / "dense_linear_rnn.safetensors"
NOISE = "noise.csv"
FAILING = (SAMPLE, "--max-step-effect", "0.2", "--exit-zero")
CALLS: dict[str, list[tuple[str | Path, ...]]] = {
    "inspect": [(SAMPLE,), (SAMPLE, "--json"), (SAMPLE, "--format", "html")],
    "predict": [("--rho", "0.5"), ("--plot",), ("--ring", "0.9:0.99")],
    "check": [
        (CURSED, "--exit-zero"),
        (*FAILING, "--format", "github"),
        (*FAILING, "--format", "sarif"),
        (*FAILING, "--format", "junit"),
    ],
    "compare": [
        (SAMPLE, CURSED),
        (SAMPLE, SAMPLE, "--json"),
        (SAMPLES / "complex_diagonal_rnn.safetensors", SAMPLE, "--format", "html"),
    ],
    "track": [
        (SAMPLES / "run", "--no-cache", "--jobs", "1"),
        (SAMPLES / "run", "--no-cache", "--jobs", "1", "--format", "csv"),
        (SAMPLES / "run", "--no-cache", "--jobs", "1", "--json"),
        (SAMPLES / "run", "--no-cache", "--jobs", "1", "--format", "html"),
    ],
    "landscape": [(), ("--parametrization", "polar", "--json")],
    "rule": [(), ("MC204",)],
    "autocorrelation": [(NOISE,)],
    "hessian": [(SAMPLE,), (SAMPLE, "--json")],
    "families": [()],
    "formats": [()],
    "schema": [("check",)],
    "settings": [()],
}
"""Calls of every command but train, which says one line of its own and needs JAX."""

PRINTING = [(command, *arguments) for command, calls in CALLS.items() for arguments in calls]
PAGES = [
    call
    for call in PRINTING
    if not {"--json", "--format", "schema", "--plot"} & set(map(str, call))
]
each_call = pytest.mark.parametrize(
    "arguments",
    PRINTING,
    ids=lambda arguments: "-".join(Path(one).name for one in arguments),
)
