"""`python -m benchmarks.calibration`: train every setup, compare what was seen with the report.

Writes results.json here, and with it and networks.json the figure and the numbers of
docs/verdict.md. A setup that is in results.json already is not trained again, about 8 s each;
`--again` starts afresh. What the report says of the weights before training is always taken anew.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.calibration import measure
from benchmarks.calibration.outcomes import outcomes
from benchmarks.calibration.page import write_page
from benchmarks.calibration.setups import BATCH, NETWORKS, SETUPS, STEPS, Setup
from benchmarks.calibration.sweep import RATES, initialise, sweep
from memcurse_cli import inspect

RESULTS = Path(__file__).parent / "results.json"


def main() -> None:
    """Run what is missing and write everything down."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--again", action="store_true", help="train every setup again")
    again = parser.parse_args().again
    known = {} if again or not RESULTS.exists() else _known()
    results = []
    for index, setup in enumerate(SETUPS):
        seen = known.get(_key(asdict(setup))) or train(setup)
        results.append({**asdict(setup), **seen, **foresee(setup)})
        print(f"{index + 1}/{len(SETUPS)}", setup, flush=True)
        text = json.dumps({"rates": RATES, "setups": results}, indent=1, allow_nan=False)
        RESULTS.write_text(text + "\n", encoding="utf-8")
    write_page(results, [*measure.load(measure.RESULTS).values()])


def _known() -> dict[str, Any]:
    document = json.loads(RESULTS.read_text(encoding="utf-8"))
    if document["rates"] != list(RATES):
        return {}
    seen = ("outcomes", "lowest_loss")
    return {_key(result): {name: result[name] for name in seen} for result in document["setups"]}


def _key(setup: dict[str, Any]) -> str:
    return json.dumps([setup[field] for field in Setup.__dataclass_fields__])


def foresee(setup: Setup) -> dict[str, Any]:
    """What the report says of the weights before training: the usable rate, and what limits it."""
    start = initialise(NETWORKS[setup.network], setup.units, setup.modulus, setup.seed)
    usable = inspect(start, horizon=setup.horizon).usable_rate
    return {"at_start": {"rate": usable.rate, "limited_by": usable.limited_by}}


def train(setup: Setup) -> dict[str, Any]:
    """Train one setup at every rate."""
    runs = sweep(
        NETWORKS[setup.network],
        units=setup.units,
        modulus=setup.modulus,
        horizon=setup.horizon,
        seed=setup.seed,
        steps=STEPS,
        batch=BATCH,
    )
    found, lowest = outcomes(runs)
    return {"outcomes": found, "lowest_loss": lowest}


if __name__ == "__main__":
    main()
