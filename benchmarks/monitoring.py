"""`python -m benchmarks.monitoring`: what an inspection costs beside a training step.

Writes the table of docs/training-loop.md: medians of one step of Adam and of one inspection with
its scalars, on the same weights in memory, in the same process.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from transformers import MambaConfig, MambaForCausalLM

from memcurse_cli import inspect

PAGE = Path(__file__).parents[1] / "docs" / "training-loop.md"
MARKS = ("<!-- monitoring -->\n", "<!-- /monitoring -->")
REPEATS = 5
EVERY = 500


def main() -> None:
    """Measure and write."""
    rows = []
    for name, network, step in (_gru(), _mamba()):
        learning = _median(step)
        looking = _median(partial(_look, network))
        rows.append(
            f"| {name} | {1000 * learning:.0f} ms | {1000 * looking:.0f} ms "
            f"| {looking / learning / EVERY:.4%} |"
        )
    table = "\n".join(
        [
            f"| network | one step of Adam | one inspection | added by one every {EVERY} steps |",
            "|---|---|---|---|",
            *rows,
        ]
    )
    text = PAGE.read_text(encoding="utf-8")
    start, end = text.index(MARKS[0]) + len(MARKS[0]), text.index(MARKS[1])
    PAGE.write_text(text[:start] + "\n" + table + "\n\n" + text[end:], encoding="utf-8")


def _look(network: torch.nn.Module) -> None:
    inspect(network.state_dict(), horizon=512).scalars()


def _median(work: Callable[[], Any]) -> float:
    work()
    seconds = []
    for _ in range(REPEATS):
        started = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - started)
    return statistics.median(seconds)


def _gru() -> tuple[str, torch.nn.Module, Callable[[], None]]:
    network = torch.nn.GRU(512, 512, num_layers=2, batch_first=True)
    optimizer = torch.optim.Adam(network.parameters())
    data = torch.randn(16, 64, 512)

    def step() -> None:
        optimizer.zero_grad()
        network(data)[0].square().mean().backward()
        optimizer.step()

    return "GRU, 2 layers of 512, 16 × 64 inputs", network, step


def _mamba() -> tuple[str, torch.nn.Module, Callable[[], None]]:
    configuration = MambaConfig(hidden_size=256, num_hidden_layers=12, vocab_size=4096)
    network = MambaForCausalLM(configuration)
    optimizer = torch.optim.Adam(network.parameters())
    tokens = torch.randint(0, 4096, (2, 64))

    def step() -> None:
        optimizer.zero_grad()
        network(input_ids=tokens, labels=tokens).loss.backward()
        optimizer.step()

    return "Mamba, 12 layers of 256, 2 × 64 tokens", network, step


if __name__ == "__main__":
    main()
