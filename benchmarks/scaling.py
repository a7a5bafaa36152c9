"""`python -m benchmarks.scaling`: how time and memory grow, each beside a named peer.

Ours and the peer's run in turn in this process; the figures join results.json, and their table
stands in docs/architecture.md.
"""

from __future__ import annotations

import math
import time
import tracemalloc
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from benchmarks.__main__ import keep
from benchmarks.calibration.page import markdown_table, put
from benchmarks.checkpoints import dense_weights, lru_layer, lru_recurrence
from benchmarks.peers import hessian_autodiff
from memcurse_cli import inspect
from memcurse_cli.reports.numbers import number
from memcurse_cli.theory.autocorrelation import WHITE
from memcurse_cli.theory.linalg import Complexes, Floats
from memcurse_cli.theory.moments import moments

PAGE = Path(__file__).parents[1] / "docs" / "architecture.md"
MARKS = ("<!-- scaling -->\n", "<!-- /scaling -->")

EIGENVALUES = 8_000_000
STEPS, STANDARD_ERROR, PILOT = 1024, 0.01, 512
MANY_CURVED, CURVED_STEPS, PRODUCTS = 65536, 300, 5
LAYERS = (16, 32, 64, 128, 256)
WIDTHS = (2**16, 2**17, 2**18, 2**19, 2**20)
ORDERS = (256, 512, 1024)


@dataclass(frozen=True)
class Row:
    """What was measured of ours and of the peer, by the names of the figures, and the limit."""

    ours: Mapping[str, float]
    peer: str
    theirs: Mapping[str, float]
    limit: str


def seconds(run: Callable[[], object], repeats: int = 1) -> float:
    """The median of some runs."""
    taken = []
    for _ in range(repeats):
        started = time.perf_counter()
        run()
        taken.append(time.perf_counter() - started)
    return float(np.median(taken))


def lru_logs(size: int) -> Complexes:
    """The log λ of an LRU."""
    weights = lru_recurrence(size)
    nu, theta = (weights[name].astype(np.float64) for name in ("nu_log", "theta_log"))
    return np.asarray(-np.exp(nu) + 1j * np.exp(theta))


def passes(logs: Any, repeats: int) -> Row:
    """Moments and κ = E|dh/dλ|²/E|h|² in passes of `numpy.exp`, and in sizes of its array."""

    def take() -> tuple[object, Floats]:
        found = moments(logs)
        return found, found.sensitivity / found.second_moment

    one, ours = seconds(lambda: np.exp(logs), repeats), seconds(take, repeats)
    tracemalloc.start()
    take()
    peak = tracemalloc.get_traced_memory()[1] / logs.nbytes
    tracemalloc.stop()
    return Row(
        {"passes": ours / one, "arrays": peak},
        "`numpy.exp` of the array of log λ",
        {"seconds": one, "MiB": logs.nbytes / 2**20},
        "25 passes, 3 arrays",
    )


def monte_carlo(
    eigenvalues: Complexes, sequences: int, seed: int
) -> tuple[tuple[Floats, Floats], tuple[Floats, Floats]]:
    """E|h|² and E|dh/dλ|² after `STEPS` steps of drawn white noise, and their standard errors.

    h and its derivative run step by step, as any cell does, `PILOT` sequences at a time.
    """
    random = np.random.default_rng(seed)
    sums, squares = np.zeros((2, 2, eigenvalues.size))
    for start in range(0, sequences, PILOT):
        h = np.zeros((min(PILOT, sequences - start), eigenvalues.size), np.complex128)
        s = np.zeros_like(h)
        for _ in range(STEPS):
            s = eigenvalues * s + h
            h = eigenvalues * h + random.standard_normal((len(h), 1))
        for place, drawn in enumerate((h, s)):
            values = drawn.real**2 + drawn.imag**2
            sums[place] += values.sum(axis=0)
            squares[place] += (values**2).sum(axis=0)
    means = sums / sequences
    errors = np.sqrt((squares / sequences - means**2) / (sequences - 1))
    return (means[0], means[1]), (errors[0], errors[1])


def against_monte_carlo(size: int, standard_error: float) -> Row:
    """Closed forms against sequences enough for a standard error of the median eigenvalue's."""
    logs = lru_logs(size)
    means, errors = monte_carlo(np.exp(logs), PILOT, 0)
    worst = max(float(np.median(e / m)) for e, m in zip(errors, means, strict=True))
    sequences = int(np.ceil(PILOT * (worst / standard_error) ** 2))
    theirs = seconds(lambda: monte_carlo(np.exp(logs), sequences, 1))
    ours = seconds(lambda: moments(logs, WHITE, STEPS), 101)
    return Row(
        {"seconds": ours, "times faster": theirs / ours},
        f"NumPy: Monte Carlo to {100 * standard_error:g} %, step by step",
        {"seconds": theirs, "sequences": sequences},
        "1e4 times faster",
    )


def growth(
    sizes: Sequence[int],
    weights: Callable[[int], Mapping[str, Any]],
    peer: str,
    work: Callable[[Mapping[str, Any]], object],
    limit: str,
) -> Row:
    """The exponents b of ``seconds = a size^b``, by least squares of logarithms."""
    taken = []
    for size in sizes:
        drawn = weights(size)
        taken.append((seconds(lambda d=drawn: inspect(d), 3), seconds(lambda d=drawn: work(d), 3)))

    def said(times: Sequence[float]) -> dict[str, float]:
        exponent = np.polyfit(np.log(sizes), np.log(times), 1)[0]
        return {"exponent": float(exponent), f"seconds at {sizes[-1]}": times[-1]}

    ours, theirs = zip(*taken, strict=True)
    return Row(said(ours), peer, said(theirs), limit)


def stacked(layers: int) -> dict[str, Any]:
    """A stack of LRU layers of 64 units."""
    return {
        f"layers.{index}.{name}": array
        for index in range(layers)
        for name, array in lru_recurrence(64, index).items()
    }


def eigenvalues_by_hand(weights: Mapping[str, Any]) -> None:
    """λ of every LRU layer."""
    for name in weights:
        if name.endswith("nu_log"):
            nu, theta = weights[name], weights[name.replace("nu_log", "theta_log")]
            np.exp(-np.exp(nu.astype(np.float64)) + 1j * np.exp(theta.astype(np.float64)))


def eig(weights: Mapping[str, Any]) -> None:
    """The eigendecomposition of a dense recurrence."""
    np.linalg.eig(weights["A"])


def hessian(size: int, products: int) -> Row:
    """The Hessian's scores over the recurrent parameters of an LRU, and their stated errors."""
    with TemporaryDirectory() as folder:
        path = f"{folder}/lru.safetensors"
        save_file(lru_layer(size), path)
        reports = []
        ours = seconds(lambda: reports.append(inspect(path, horizon=CURVED_STEPS)))
        theirs = seconds(lambda: hessian_autodiff(path, products, CURVED_STEPS))
    (layer,) = reports[0].layers
    scores = layer.hessian
    assert scores is not None, layer.hessian_reason
    return Row(
        {
            "seconds": ours,
            "error of sharpness": scores.sharpness_error / scores.sharpness,
            "of Adam's residual": scores.adam_residual_error / scores.adam_residual,
            "of diagonality": scores.diagonality_error / scores.diagonality,
        },
        f"PyHessian: {products} products each for sharpness and trace",
        {"seconds": theirs},
        "60 s and a stated error",
    )


def rows(share: float = 1.0) -> Iterator[tuple[str, Row]]:
    """Every row; a share below 1 takes sizes so much smaller, to see that all of them run."""
    several = 5
    count = int(share * EIGENVALUES)
    modulus = -np.geomspace(1e-4, 1.0, count)
    yield f"moments and κ of {count:,} real λ", passes(modulus, several)
    complex_logs = modulus + 1j * np.linspace(0, np.pi, count)
    yield f"moments and κ of {count:,} complex λ", passes(complex_logs, several)
    del modulus, complex_logs
    yield (
        f"both moments of 256 λ after {STEPS} steps",
        against_monte_carlo(256, STANDARD_ERROR / share**0.5),
    )
    grown = (
        ("layers", LAYERS, stacked, "NumPy: λ of every layer", eigenvalues_by_hand, "1"),
        ("eigenvalues", WIDTHS, lru_recurrence, "NumPy: λ", eigenvalues_by_hand, "1"),
        ("a dense matrix", ORDERS, dense_weights, "`numpy.linalg.eig`", eig, "3"),
    )
    for of, sizes, *how in grown:
        sizes = [math.ceil(share * size) for size in sizes]
        yield f"seconds of inspect over {of}", growth(sizes, *how)
    size = math.ceil(share * MANY_CURVED)
    yield f"Hessian scores of an LRU of {size:,} λ", hessian(size, PRODUCTS)


def said(figures: Mapping[str, float]) -> str:
    """Named figures in one cell."""
    return ", ".join(f"{name} {number(value, 3)}" for name, value in figures.items())


def table(found: Mapping[str, Any]) -> str:
    """The rows as results.json has them, as Markdown."""
    return markdown_table(
        ["what", "memcurse", "peer", "its figures", "limit"],
        [
            [what, said(row["ours"]), row["peer"], said(row["theirs"]), row["limit"]]
            for what, row in found.items()
        ],
    )


def main() -> None:
    """Measure, print and keep."""
    found = {what: asdict(row) for what, row in rows()}
    print(table(found))
    put({MARKS: table(found)}, PAGE)
    keep({"scaling": found})


if __name__ == "__main__":
    main()
