"""What keeping the state in few bits does, told and seen: `python -m benchmarks.storage`.

Writes results.json and the table of docs/precision.md, in about ten minutes on one core.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.measure import environment
from benchmarks.storage import linear, models
from benchmarks.storage.rounding import CONTROLS, EXPLICIT_BITS, ROUNDINGS
from benchmarks.storage.seen import Recurrent, Seen, see
from memcurse_cli import inspect
from memcurse_cli.schema.report import LayerReport

PAGE = Path(__file__).parents[2] / "docs" / "precision.md"
RESULTS = Path(__file__).with_name("results.json")
MARKS = "<!-- storage -->", "<!-- /storage -->"
HORIZON, SEQUENCES, TRAINED = 512, 128, 200
SMALL, CLOSE = 0.3, 0.2  # told is to be within 20 % of seen where both are below 30 %
SPREAD = 0.1, 0.5, 0.9
LIBRARIES = ("torch", "transformers", "jax", "numpy")
TYPES = ROUNDINGS | CONTROLS


def compared(layer: LayerReport, seen: dict[str, Seen]) -> dict[str, dict[str, Any]]:
    """Of every type the median and p90 of both over eigenvalues, and p10, p50 and p90 of ratios.

    Ratios are those of small errors; ``moves`` has them of eigenvalues whose decay alone is not
    lost in rounding, ``1 - |λ|`` being more than half a spacing.
    """
    assert layer.storage is not None
    sides = {"zero input": layer.storage.types}
    if layer.gates is not None and layer.gates.storage:
        sides["moving"] = layer.gates.storage
    modulus = np.hypot(*np.array(layer.eigenvalues.values).T)
    found: dict[str, dict[str, Any]] = {}
    for dtype, (error, uncertainty) in seen.items():
        stored, _, how = dtype.partition(", ")
        moves = 1 - modulus > 2.0 ** -EXPLICIT_BITS.get(stored, 0) / 2
        found[dtype] = {"seen": _order(error), "uncertainty": _order(uncertainty)}
        for side, types in sides.items():
            (errors,) = (one.errors for one in types if one.dtype == stored)
            # At random the error has twice the variance.
            told = np.minimum(np.array(errors) * (2**0.5 if how == "stochastic" else 1.0), 1.0)
            small, ratio = (error < SMALL) & (told < SMALL), told / error
            found[dtype][side] = {"told": _order(told), "ratio": _order(ratio[small], *SPREAD)}
            found[dtype][side]["moves"] = _order(ratio[small & moves], *SPREAD)
    return found


def _order(values: NDArray[np.float64], *shares: float) -> list[float]:
    if not values.size:
        return []
    return [float(f"{value:.3g}") for value in np.quantile(values, shares or (0.5, 0.9))]


def measured() -> Iterator[dict[str, Any]]:
    """Every layer of every network, before and after training."""
    for trained in (False, True):
        for family in ("LRU", "S4D"):
            tensors, transition, readin = linear.build(family, TRAINED * trained)
            layers = inspect(tensors, horizon=HORIZON, values=True).layers
            yield from _of(
                family, trained, layers, linear.Stepped(transition, readin, HORIZON, SEQUENCES)
            )
        for family, (*_, sequences) in models.MODELS.items():
            model = models.build(family)
            if trained:
                models.train(model, TRAINED)
            with TemporaryDirectory() as folder:
                model.save_pretrained(folder)
                layers = inspect(folder, horizon=HORIZON, values=True, gates=True).layers
            stepped = models.Stepped(model, HORIZON, sequences, task=trained)
            yield from _of(family, trained, layers, stepped)


def _of(
    family: str, trained: bool, layers: tuple[LayerReport, ...], network: Recurrent
) -> Iterator[dict[str, Any]]:
    counts = [layer.eigenvalues.count for layer in layers]
    together = see(network, HORIZON, counts, TYPES)
    for number, layer in enumerate(layers):
        seen = together[number]
        shared = {"family": family, "trained": trained, "layer": number}
        if number:  # what comes from the errors of the layer below is no part of what is told
            yield {**shared, "rounded": "all", "types": compared(layer, seen)}
            seen = see(network, HORIZON, counts, TYPES, (number,))[number]
        yield {**shared, "rounded": "alone", "types": compared(layer, seen)}


def rows(results: list[dict[str, Any]]) -> Iterator[str]:
    """A row for each layer that is rounded alone, in bold where told is not within 20 % of seen."""
    yield "| network | layer | " + " | ".join(ROUNDINGS) + " |"
    yield "|---" * (2 + len(ROUNDINGS)) + "|"
    for one in results:
        if one["rounded"] == "alone":
            cells = " | ".join(_cell(one["types"][dtype]) for dtype in ROUNDINGS)
            name = f"{one['family']}, {'trained' if one['trained'] else 'random'}"
            yield f"| {name} | {one['layer'] + 1} | {cells} |"


def _cell(of: dict[str, Any]) -> str:
    side = of.get("moving", of["zero input"])
    shown = f"{100 * side['told'][0]:.2g} / {100 * of['seen'][0]:.2g}"
    return shown if abs(side["told"][0] / of["seen"][0] - 1) <= CLOSE else f"**{shown}**"


def main() -> None:
    """Measure, and write both."""
    torch.set_num_threads(1)
    results = []
    for one in measured():
        results.append(one)
        print(one["family"], one["trained"], one["layer"], one["rounded"], flush=True)
    settings = {"horizon": HORIZON, "training steps": TRAINED, "seeds": [0, 1, 2]}
    document = {"environment": environment(LIBRARIES), "settings": settings, "layers": results}
    RESULTS.write_text(json.dumps(document, indent=1) + "\n")
    text = PAGE.read_text(encoding="utf-8")
    start, end = text.index(MARKS[0]) + len(MARKS[0]), text.index(MARKS[1])
    table = "\n".join(["", *rows(results), ""])
    PAGE.write_text(text[:start] + table + text[end:], encoding="utf-8")


if __name__ == "__main__":
    main()
