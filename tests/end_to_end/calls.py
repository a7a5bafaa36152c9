"""The calls that every command is held to its contract by."""

from __future__ import annotations

import pytest
from end_to_end.command import SAMPLES

FILES = {"LRU": "lru", "GRU": "gru", "CURSED": "dense_linear_rnn"}
FILES["COMPLEX"] = "complex_diagonal_rnn"
PLACES = {name: [str(SAMPLES / f"{file}.safetensors")] for name, file in FILES.items()}
(SAMPLE,), (CURSED,) = PLACES["LRU"], PLACES["CURSED"]
PLACES |= {"RUN": [str(SAMPLES / "run")], "HERE": ["--no-cache", "--jobs", "1"]}
FAILING = "check LRU --max-step-effect 0.2 --exit-zero"
PRINTING = [
    *("inspect LRU", "inspect LRU --json", "inspect LRU --format html", "simulate LRU"),
    *("predict --rho 0.5", "predict --plot", "predict --ring 0.9:0.99"),
    *("check CURSED --exit-zero", f"{FAILING} --format github"),
    *(f"{FAILING} --format sarif", f"{FAILING} --format junit"),
    *("compare LRU CURSED", "compare LRU LRU --json", "compare COMPLEX LRU --format html"),
    *("track RUN HERE", "track RUN HERE --format csv"),
    *("track RUN HERE --json", "track RUN HERE --format html"),
    *("landscape", "landscape --parametrization polar --json"),
    *("rule", "rule MC204", "autocorrelation noise.csv", "hessian LRU", "hessian LRU --json"),
    *("groups CURSED", "groups LRU --optax", "families", "formats", "schema check", "settings"),
]
"""Calls of every command but those that always write a checkpoint."""

FIRST = {call.split()[0]: call for call in reversed(PRINTING)}
each_call = pytest.mark.parametrize("call", PRINTING)


def words(call: str) -> list[str]:
    """The arguments that a line stands for."""
    return [word for one in call.split() for word in PLACES.get(one, [one])]
