"""Whether a memory that the report gives tells who learns: `python -m benchmarks.memory FOLDER`.

Trains what the folder does not hold yet (an hour on one core), and writes the table of
docs/memory.md.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.memory.train import LAGS, LEARNT, NETWORKS, TASKS, Run, runs, train_all
from memcurse_cli import inspect

PAGE = Path(__file__).parents[2] / "docs" / "memory.md"
RESULTS = Path(__file__).with_name("results.json")
MARKS = "<!-- table -->", "<!-- end -->"


def memory(path: Path, lag: int) -> float | None:
    """The memory that the report gives of the one layer in a file, run for the task's length."""
    report = inspect(path, horizon=lag + 1)
    return report.layers[0].memory


def measured(folder: Path) -> Iterator[dict[str, object]]:
    """Every run, with what was left of its loss, and its memory before and after training."""
    for run in runs():
        left = json.loads((folder / f"{run.name}.json").read_text())["left"]
        before, after = (
            memory(folder / f"{run.name}-{when}.safetensors", run.lag)
            for when in ("before", "after")
        )
        yield {**run._asdict(), "left": left, "before": before, "after": after}


def rows(results: Sequence[dict[str, object]]) -> Iterator[str]:
    """A row for each network and task, a cell for each lag: memory before → after, and ✓."""
    found = {Run(one["network"], one["task"], one["lag"]): one for one in results}  # type: ignore[arg-type]
    yield "| task | network | " + " | ".join(f"lag {lag}" for lag in LAGS) + " |"
    yield "|---" * (2 + len(LAGS)) + "|"
    for task in TASKS:
        for network in NETWORKS:
            cells = [_cell(found[Run(network, task, lag)]) for lag in LAGS]
            yield f"| {task} | {network} | " + " | ".join(cells) + " |"


def _cell(one: dict[str, object]) -> str:
    shown = [
        "∞" if memory is None else f"{memory:.2g}" if memory < 100 else f"{memory:.0f}"
        for memory in (one["before"], one["after"])
    ]
    learnt = " **learnt**" if float(str(one["left"])) < LEARNT else ""
    return f"{shown[0]} → {shown[1]}{learnt}"


def separation(results: Sequence[dict[str, object]], when: str) -> tuple[int, int, int, int]:
    """Runs that learnt with and without a memory of their lag, and that did not, likewise."""
    counts = [0, 0, 0, 0]
    for one in results:
        remembered = one[when]
        enough = remembered is None or float(str(remembered)) >= float(str(one["lag"]))
        learnt = float(str(one["left"])) < LEARNT
        counts[2 * (not learnt) + (not enough)] += 1
    return counts[0], counts[1], counts[2], counts[3]


def main() -> None:
    """Train, measure, write."""
    folder = Path(sys.argv[1])
    train_all(folder)
    results = list(measured(folder))
    RESULTS.write_text(json.dumps(results, indent=1) + "\n")
    text = PAGE.read_text(encoding="utf-8")
    start, end = text.index(MARKS[0]) + len(MARKS[0]), text.index(MARKS[1])
    said = ["", *rows(results), ""]
    for when in ("before", "after"):
        enough, short, missed, both = separation(results, when)
        said.append(
            f"Memory {when} training against the lag: of {enough + short} runs that learnt "
            f"{enough} remembered it, of {missed + both} that did not {missed}."
        )
        said.append("")
    PAGE.write_text(text[:start] + "\n".join(said) + text[end:], encoding="utf-8")


if __name__ == "__main__":
    main()
