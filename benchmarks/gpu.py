"""`python -m benchmarks gpu`: what a GPU that torch sees is worth, against all cores.

Eigendecompositions of dense matrices and of a batch, the scores of a large Hessian, and an LSTM
that is run; each as a share of what the card itself reaches in the same minutes, by a product of
matrices in double precision and by a copy. It needs the package and torch alone, and keeps what it
has measured in gpu.json after every part.
"""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from os import cpu_count
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.measure import environment
from memcurse_cli.checkpoints.open import MemoryStore
from memcurse_cli.errors import UsageError
from memcurse_cli.families.detect import detect, read_layer
from memcurse_cli.families.family import ReadOptions
from memcurse_cli.theory import devices
from memcurse_cli.theory.autocorrelation import WHITE
from memcurse_cli.theory.diagonality import DiagonalityTally
from memcurse_cli.theory.hessian import LayerHessian
from memcurse_cli.theory.linalg import eigendecompose
from memcurse_cli.theory.sensitivity import ParameterJacobian
from memcurse_cli.theory.simulation import drawn_inputs, run

RESULTS = Path(__file__).with_name("gpu.json")
TOLERANCE = 1e-10  # relative, of an eigenvalue of condition 1
FLOPS = 25  # times n³, of eigenvalues and eigenvectors (Golub & Van Loan 2013, section 7.5)
ONCE = 2048  # from which LAPACK is timed once: it takes minutes


class Sizes(NamedTuple):
    """How large everything is."""

    dense: Sequence[int] = (256, 512, 1024, 2048, 4096, 8192)
    batch: tuple[int, int] = (64, 512)
    hessian: tuple[int, int] = (65536, 1024)  # eigenvalues and steps
    lstm: tuple[int, int, int] = (1024, 16, 100)  # units, sequences and steps
    bound: int = 8192  # the order of the product, and of the copied matrix


def main() -> None:
    """Measure, print and keep; without a GPU one line on standard error and exit code 2."""
    try:
        place = devices.find_gpu("cuda")
    except UsageError as error:
        print(f"python -m benchmarks gpu: {error.what}", file=sys.stderr)
        raise SystemExit(2) from error
    measure(place, Sizes(), RESULTS)


def measure(place: Any, sizes: Sizes, results: Path) -> dict[str, Any]:
    """Every figure, of a device as torch names it."""
    import torch

    on_card = place.type == "cuda"
    found: dict[str, Any] = {
        "card": torch.cuda.get_device_name(place) if on_card else str(place),
        "environment": environment(("numpy", "scipy", "torch")),
    }

    def keep(name: str, figures: Any) -> None:
        found[name] = figures
        print(f"{name}: {json.dumps(figures)}", flush=True)
        results.write_text(json.dumps(found, indent=2) + "\n")

    with devices.work_on("cuda"):
        print(found["card"])
        keep("bounds", bounds(place, sizes.bound))
        fp64, bandwidth = found["bounds"]["fp64"], found["bounds"]["bandwidth"]
        rows: list[dict[str, float]] = []
        for order in sizes.dense:
            rows.append(dense(order, fp64))
            keep("dense", rows)
        keep("crossover", crossover(rows))
        keep("batch", batch(place, *sizes.batch, fp64))
        keep("hessian", large_hessian(*sizes.hessian, fp64))
        keep("simulation", simulated(*sizes.lstm, bandwidth))
    return found


def seconds(work: Callable[[], Any], times: int = 3) -> float:
    """The shortest of some runs after one that is not timed, or of one alone."""
    if times > 1:
        work()
    taken = []
    for _ in range(times):
        start = time.perf_counter()
        work()
        taken.append(time.perf_counter() - start)
    return min(taken)


def both(work: Callable[[], Any], times: int = 3) -> dict[str, float]:
    """The seconds of some work by the processor and by the GPU, transfers included."""
    with devices.work_on("cpu"):
        by_processor = seconds(work, times)
    by_gpu = seconds(work, 2)
    return {"cpu_seconds": by_processor, "gpu_seconds": by_gpu, "ratio": by_processor / by_gpu}


def bounds(place: Any, order: int) -> dict[str, float]:
    """Operations per second of a product in double precision, and bytes per second of a copy."""
    import torch

    matrix = torch.ones((order, order), dtype=torch.float64, device=place)
    other = torch.empty_like(matrix)

    def ended(work: Callable[[], Any]) -> None:
        work()
        if place.type == "cuda":
            torch.cuda.synchronize(place)

    product = seconds(lambda: ended(lambda: torch.matmul(matrix, matrix, out=other)))
    copy = seconds(lambda: ended(lambda: other.copy_(matrix)))
    return {"fp64": 2 * order**3 / product, "bandwidth": 2 * 8 * order**2 / copy}


def dense(order: int, fp64: float) -> dict[str, float]:
    """Eigenvalues and eigenvectors of one matrix, and by how much the eigenvalues differ."""
    matrix = np.random.default_rng(order).normal(size=(order, order)) / math.sqrt(order)
    kept: list[tuple[Any, Any]] = []
    figures = both(lambda: kept.append(eigendecompose(matrix)), 1 if order >= ONCE else 3)
    difference, by_condition = apart(*kept[0], kept[-1][0])
    if by_condition > TOLERANCE:
        raise ArithmeticError(f"eigenvalues of order {order} differ by {difference:.1e}")
    return {
        "n": order,
        **figures,
        "share_of_fp64": FLOPS * order**3 / figures["gpu_seconds"] / fp64,
        "difference": difference,
        "difference_by_condition": by_condition,
    }


def apart(values: Any, vectors: Any, others: Any) -> tuple[float, float]:
    """The largest |δλ|/|λ| of eigenvalues and the nearest others, and of it over λ's condition."""
    from scipy.spatial import KDTree

    conditions = np.linalg.norm(np.linalg.inv(vectors), axis=1)  # the columns of P have norm 1
    ours, theirs = (np.stack([one.real, one.imag], axis=1) for one in (values, others))
    forth, _ = KDTree(theirs).query(ours)
    back, nearest = KDTree(ours).query(theirs)
    np.maximum.at(forth, nearest, back)
    relative = forth / np.abs(values)
    return float(relative.max()), float((relative / conditions).max())


def crossover(rows: Sequence[dict[str, float]]) -> int | None:
    """The order from which the GPU is faster up to the largest; None where it never is."""
    faster = None
    for below, above in zip([None, *rows], rows, strict=False):
        if above["ratio"] < 1:
            faster = None
        elif faster is None:
            faster = above["n"]
            if below is not None:
                share = -math.log(below["ratio"]) / math.log(above["ratio"] / below["ratio"])
                faster = below["n"] * (above["n"] / below["n"]) ** share
    return None if faster is None else round(faster)


def batch(place: Any, count: int, order: int, fp64: float) -> dict[str, float]:
    """A batch at once on the GPU against one matrix per core; `auto` leaves it to the latter."""
    import torch
    from threadpoolctl import threadpool_limits

    matrices = np.random.default_rng(0).normal(size=(count, order, order)) / math.sqrt(order)

    def by_cores() -> None:
        with ThreadPoolExecutor(cpu_count()) as pool:
            list(pool.map(np.linalg.eig, matrices))

    with threadpool_limits(1, user_api="blas"):
        by_processor = seconds(by_cores)
    by_gpu = seconds(
        lambda: [part.cpu() for part in torch.linalg.eig(torch.from_numpy(matrices).to(place))], 2
    )
    return {
        "count": count,
        "n": order,
        "cpu_seconds": by_processor,
        "gpu_seconds": by_gpu,
        "ratio": by_processor / by_gpu,
        "share_of_fp64": FLOPS * count * order**3 / by_gpu / fp64,
    }


def large_hessian(size: int, horizon: int, fp64: float) -> dict[str, Any]:
    """The scores, by two Gram matrices of all responses, whose products are the bound."""
    random = np.random.default_rng(0)
    logs = -np.exp(random.uniform(-7, -2, size)) + 1j * random.uniform(0.1, 3, size)
    readin, readout = (random.normal(size=(size, 1)) + 0j for _ in range(2))
    places = np.arange(size)
    decay = ParameterJacobian(size, places, places, np.exp(logs) * logs.real)
    gain = 0.5 * np.log(-np.expm1(2 * logs.real)) + 0j
    hessian = LayerHessian(logs, gain, (decay,), readin, readout.T, horizon=horizon)
    (block,) = hessian.large_blocks(0)
    sharpness: list[float] = []

    def scored() -> None:
        tally = DiagonalityTally()
        tally.add_factored(block.factorise())
        sharpness.append(tally.scores().sharpness)

    taken = both(scored, 1)
    operations = 2 * 2 * size * block.samples**2
    return {
        "n": size,
        "steps": horizon,
        **taken,
        "share_of_fp64": operations / taken["gpu_seconds"] / fp64,
        "difference": abs(sharpness[-1] / sharpness[0] - 1),
    }


def simulated(units: int, sequences: int, steps: int, bandwidth: float) -> dict[str, float]:
    """An LSTM with all its tangents; its weights once a step are the bound."""
    random = np.random.default_rng(0)
    shapes = {
        "weight_ih_l0": (4 * units, units),
        "weight_hh_l0": (4 * units, units),
        "bias_ih_l0": (4 * units,),
        "bias_hh_l0": (4 * units,),
    }
    scale = units**-0.5
    state = {name: random.uniform(-scale, scale, shape) for name, shape in shapes.items()}
    with MemoryStore(state) as store:
        ((family, match),) = detect(store.tensors)
        dynamics = read_layer(family, store, match, ReadOptions(simulate=True)).dynamics
        assert dynamics is not None

        def work() -> None:
            inputs = drawn_inputs(WHITE, (sequences, units), np.random.default_rng(0))
            run(dynamics, inputs, sequences, steps)

        figures = both(work, 1)
    read = steps * 8 * sum(map(math.prod, shapes.values()))
    share = read / figures["gpu_seconds"] / bandwidth
    return {
        "units": units,
        "sequences": sequences,
        "steps": steps,
        **figures,
        "share_of_bandwidth": share,
    }


if __name__ == "__main__":
    main()
