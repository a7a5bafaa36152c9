"""The setups of the second calibration as data: networks, tasks, optimizers; two questions each.

From the start, which rates learn; from the trained network, which rates keep its loss. The linear
students of `setups` are asked both as well.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from jax import Array

from benchmarks.calibration import tasks
from benchmarks.calibration.networks import LAYERS, Stack, Start
from benchmarks.calibration.setups import BATCH as LINEAR_BATCH
from benchmarks.calibration.setups import NETWORKS as LINEAR
from benchmarks.calibration.setups import SETUPS
from benchmarks.calibration.setups import STEPS as LINEAR_STEPS
from benchmarks.calibration.sweep import (
    ADAM,
    RATES,
    Draw,
    Loss,
    Optimizer,
    Values,
    linear_task,
)
from benchmarks.calibration.tasks import Task
from memcurse_cli.experiments.training import Parameters

STEPS = 1500
BATCHES = {"own teacher": 8, "linear teacher": 8}
"""Sequences per step; the other tasks, of which few steps are read, have `BATCH`."""
BATCH = 16
WIDE_RATES = tuple(float(10 ** (exponent / 3)) for exponent in range(-12, 1))
"""1e-4 to 1, three to a decade: gated networks bear more than linear ones."""
DEEP = ("norm", "glu", "skip")
TORCH, ORTHOGONAL = "torch", "orthogonal"

OPTIMIZERS = {
    "": ADAM,
    "decay 0.01": Optimizer(decay=0.01),
    "decay 0.1": Optimizer(decay=0.1),
    "schedule": Optimizer(scheduled=True),
    "clip": Optimizer(clipped=True),
    "coloured": ADAM,
}
"""What is varied; ``coloured`` are inputs that are not white."""


@dataclass(frozen=True)
class Problem:
    """A network and what it is trained on.

    Attributes:
        kind: a name of `LAYERS`.
        task: ``own teacher``, ``linear teacher``, ``adding``, ``copying`` or ``digits``.
        units: of every layer.
        horizon: T.
        start: `TORCH` or `ORTHOGONAL`; of linear layers neither counts.
        forget_bias: what the gate that keeps the state starts with; None as torch has it.
        modulus: the smallest |λ| of a linear teacher, and of an LRU's start.
        layers: how many.
        block: what stands around each of them.
        seed: of everything random.
        held_out: whether it has no part in choosing rules.
        variant: a name of `OPTIMIZERS`.
    """

    kind: str
    task: str
    units: int
    horizon: int
    start: str = TORCH
    forget_bias: float | None = None
    modulus: float = 0.9
    layers: int = 1
    block: tuple[str, ...] = ()
    seed: int = 0
    held_out: bool = False
    variant: str = ""

    @property
    def linear(self) -> bool:
        """Whether it is one of the linear sweep."""
        return self.kind in LINEAR

    @property
    def steps(self) -> int:
        """How many from the start."""
        return LINEAR_STEPS if self.linear else STEPS

    @property
    def rates(self) -> tuple[float, ...]:
        """Those that are tried."""
        return RATES if self.linear else WIDE_RATES

    def assignment(self) -> Task:
        """Its task."""
        correlated = self.variant == "coloured"
        if self.linear:
            # As the linear sweep has it, whose targets are not scaled.
            silent = linear_task(LINEAR[self.kind], **self._linear)[2]

            def draw(key: Array, batch: int) -> Any:
                inputs = tasks.noise(key, batch, self.horizon, False)
                return inputs[..., None], inputs[..., None]

            return Task(1, 1, self.horizon, self.horizon, draw, False, silent)
        if self.task == "linear teacher":
            return tasks.linear_teacher(self.horizon, self.seed, self.modulus, correlated)
        if self.task == "own teacher":
            student = Stack(LAYERS[self.kind], 1, self.units, 1, 1)
            return tasks.own_teacher(student, self.horizon, self.seed, correlated)
        named = {"adding": tasks.adding, "copying": tasks.copying, "digits": tasks.digits}
        return named[self.task](self.horizon)

    @property
    def _linear(self) -> dict[str, Any]:
        fields = ("modulus", "horizon", "seed")
        return {**{name: getattr(self, name) for name in fields}, "batch": LINEAR_BATCH}

    def network(self, task: Task) -> Stack:
        """What is trained."""
        start = Start(self.start == ORTHOGONAL, self.forget_bias, modulus=self.modulus)
        return Stack(
            LAYERS[self.kind],
            self.layers,
            self.units,
            task.inputs,
            task.outputs,
            self.block,
            start,
        )

    def initial(self, network: Stack) -> Values:
        """The weights that every run from the start begins with."""
        return network.initialise(np.random.default_rng([self.seed, 1]))

    def training(self, network: Stack, task: Task) -> tuple[Loss, Draw]:
        """The loss of a batch, and batches."""
        if self.linear:
            loss, draw, _ = linear_task(LINEAR[self.kind], **self._linear)
            return loss, draw

        def of_batch(parameters: Parameters, batch: Any) -> Array:
            inputs, target = batch
            return task.loss(network.outputs(parameters, inputs), target)

        return of_batch, lambda key: task.draw(key, BATCHES.get(self.task, BATCH))

    @property
    def optimizer(self) -> Optimizer:
        """How it is trained."""
        return OPTIMIZERS[self.variant]


def _gated(kind: str, *rows: tuple[Any, ...]) -> list[Problem]:
    return [Problem(kind, *row) for row in rows]


def _deep(*rows: tuple[Any, ...]) -> list[Problem]:
    """Rows of kind, task, units, horizon, layers, block and modulus."""
    found = []
    for kind, task, units, horizon, layers, block, modulus in rows:
        start, bias = (ORTHOGONAL, 1.0) if kind == "GRU" else (TORCH, None)
        found.append(Problem(kind, task, units, horizon, start, bias, modulus, layers, block))
    return found


OWN, TAUGHT = "own teacher", "linear teacher"
_CALIBRATION = [
    *_gated(
        "GRU",
        (OWN, 32, 100),
        (OWN, 16, 200, ORTHOGONAL, 1.0),
        (OWN, 64, 50, ORTHOGONAL, 0.0),
        (TAUGHT, 32, 100, TORCH, None, 0.9),
        (TAUGHT, 16, 150, ORTHOGONAL, 2.0, 0.97),
        ("adding", 32, 50, ORTHOGONAL, 1.0),
        ("copying", 24, 50, ORTHOGONAL, 1.0),
        ("digits", 32, 64, ORTHOGONAL, 1.0),
        ("digits", 128, 64),
    ),
    *_gated(
        "LSTM",
        (OWN, 32, 100),
        (OWN, 16, 200, ORTHOGONAL, 1.0),
        (OWN, 64, 50, ORTHOGONAL, 2.0),
        (TAUGHT, 32, 100, TORCH, None, 0.9),
        (TAUGHT, 16, 150, ORTHOGONAL, 2.0, 0.97),
        ("adding", 32, 50, ORTHOGONAL, 2.0),
        ("copying", 24, 50, ORTHOGONAL, 1.0),
        ("digits", 32, 64, ORTHOGONAL, 0.0),
        ("digits", 64, 64, TORCH, 1.0),
    ),
    *_gated(
        "tanh",
        (OWN, 32, 100),
        (OWN, 16, 200, ORTHOGONAL),
        (OWN, 64, 50, ORTHOGONAL),
        (TAUGHT, 32, 100, ORTHOGONAL, None, 0.9),
        (TAUGHT, 16, 300, ORTHOGONAL, None, 0.97),
        ("adding", 64, 50, ORTHOGONAL),
        ("digits", 32, 64, ORTHOGONAL),
    ),
    *_gated(
        "minGRU",
        (OWN, 32, 100),
        (OWN, 16, 300, TORCH, 2.0),
        (OWN, 64, 50, TORCH, 0.0),
        (TAUGHT, 32, 100, TORCH, 1.0, 0.9),
        ("adding", 32, 50, TORCH, 2.0),
        ("digits", 32, 64, TORCH, 2.0),
    ),
    *_deep(
        ("GRU", OWN, 16, 100, 2, (), 0.9),
        ("GRU", "digits", 16, 64, 3, DEEP, 0.9),
        ("minGRU", "adding", 16, 50, 2, DEEP, 0.9),
        ("LRU stack", TAUGHT, 16, 100, 2, DEEP, 0.95),
        ("LRU stack", "digits", 16, 64, 4, DEEP, 0.9),
        ("LRU stack", "adding", 32, 100, 2, ("norm", "skip"), 0.95),
        ("S4D stack", TAUGHT, 16, 100, 2, DEEP, 0.9),
        ("S4D stack", "digits", 16, 64, 3, DEEP, 0.9),
        ("S4D stack", "adding", 16, 100, 2, ("norm", "skip"), 0.9),
    ),
]
_HELD_OUT = [
    *_gated(
        "GRU",
        (OWN, 24, 150),
        (OWN, 48, 80, ORTHOGONAL, 0.0),
        (OWN, 20, 60, TORCH, 2.0),
        (TAUGHT, 24, 150, ORTHOGONAL, 1.0, 0.95),
        (TAUGHT, 48, 60, TORCH, None, 0.93),
        ("adding", 24, 80, ORTHOGONAL, 2.0),
        ("copying", 40, 40, ORTHOGONAL, 1.0),
        ("digits", 24, 128, ORTHOGONAL, 1.0),
        ("digits", 48, 64),
    ),
    *_gated(
        "LSTM",
        (OWN, 24, 150),
        (OWN, 48, 80, ORTHOGONAL, 0.0),
        (OWN, 20, 60, TORCH, 2.0),
        (TAUGHT, 24, 150, ORTHOGONAL, 1.0, 0.95),
        (TAUGHT, 128, 50, TORCH, None, 0.93),
        ("adding", 24, 80, ORTHOGONAL, 1.0),
        ("copying", 40, 40, ORTHOGONAL, 2.0),
        ("digits", 24, 128, ORTHOGONAL, 2.0),
        ("digits", 48, 64),
    ),
    *_gated(
        "tanh",
        (OWN, 24, 150),
        (OWN, 48, 80, ORTHOGONAL),
        (OWN, 128, 60),
        (TAUGHT, 24, 200, ORTHOGONAL, None, 0.95),
        (TAUGHT, 48, 60, TORCH, None, 0.93),
        ("adding", 32, 60, ORTHOGONAL),
        ("digits", 48, 64, ORTHOGONAL),
    ),
    *_gated(
        "minGRU",
        (OWN, 24, 150, TORCH, 1.0),
        (OWN, 48, 80),
        (OWN, 20, 250, TORCH, 2.0),
        (TAUGHT, 24, 150, TORCH, 1.0, 0.95),
        ("adding", 48, 80, TORCH, 1.0),
        ("digits", 48, 64, TORCH, 1.0),
    ),
    *_deep(
        ("GRU", TAUGHT, 20, 80, 2, (), 0.93),
        ("GRU", "adding", 12, 60, 3, DEEP, 0.9),
        ("minGRU", "digits", 24, 64, 3, DEEP, 0.9),
        ("LRU stack", TAUGHT, 24, 150, 3, DEEP, 0.93),
        ("LRU stack", "digits", 24, 128, 2, ("norm", "skip"), 0.95),
        ("LRU stack", "adding", 24, 80, 2, DEEP, 0.9),
        ("S4D stack", TAUGHT, 12, 150, 3, ("norm", "skip"), 0.93),
        ("S4D stack", "digits", 24, 64, 2, DEEP, 0.9),
        ("S4D stack", "copying", 24, 60, 2, DEEP, 0.9),
    ),
]
_VARIED = (
    Problem("GRU", OWN, 16, 60, ORTHOGONAL, 1.0),
    Problem("GRU", TAUGHT, 16, 80, ORTHOGONAL, 1.0, 0.95),
    Problem("LSTM", OWN, 16, 60, ORTHOGONAL, 1.0),
    Problem("LSTM", TAUGHT, 16, 80, ORTHOGONAL, 1.0, 0.95),
    Problem("tanh", OWN, 16, 80, ORTHOGONAL),
    Problem("tanh", TAUGHT, 16, 80, ORTHOGONAL, None, 0.95),
    Problem("minGRU", OWN, 16, 100, TORCH, 1.0),
    Problem("LRU stack", TAUGHT, 16, 80, modulus=0.95, layers=2, block=DEEP),
)


def _problems() -> list[Problem]:
    """All, so mixed that any first part is a fair sample; then the variants.

    Half of the linear students' tasks come after these, as they are many.
    """
    new = [
        replace(one, seed=first + index, held_out=held_out)
        for held_out, first, rows in ((False, 100, _CALIBRATION), (True, 300, _HELD_OUT))
        for index, one in enumerate(rows)
    ]
    old = [
        Problem(
            one.network,
            TAUGHT,
            one.units,
            one.horizon,
            modulus=one.modulus,
            seed=one.seed,
            held_out=one.held_out,
        )
        for one in SETUPS
    ]
    students = len(LINEAR)
    early = [one for place, one in enumerate(old) if place // students % 2 == 0]
    mixed = new + early
    random.Random(0).shuffle(mixed)
    varied = [
        replace(one, seed=500 + index, variant=variant)
        for index, one in enumerate(_VARIED)
        for variant in OPTIMIZERS
    ]
    random.Random(1).shuffle(varied)
    return mixed + varied + [one for one in old if one not in early]


PROBLEMS = _problems()
"""Every one that is measured, in this order."""
