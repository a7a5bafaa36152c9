"""Layers that are run: which of them can be, for how long, and what is reported of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from memcurse_cli.checkpoints.store import TensorStore
from memcurse_cli.checkpoints.untrusted.names import printable
from memcurse_cli.diagnosis.settings import Settings
from memcurse_cli.errors import UsageError
from memcurse_cli.families.gate_inputs import GateDrive, JointDrive
from memcurse_cli.families.reading import split_name
from memcurse_cli.families.recurrence import ParameterGroup, Recurrence
from memcurse_cli.schema.simulation import (
    TOO_LARGE,
    Measured,
    SimulatedGroup,
    SimulatedState,
    Simulation,
)
from memcurse_cli.theory import simulation
from memcurse_cli.theory.duals import ACTIVATIONS, Dual
from memcurse_cli.theory.gates.laws import GateValues, Motion, Share
from memcurse_cli.theory.linalg import Floats, Integers
from memcurse_cli.theory.simulation import CellDynamics, Draw, Estimate, Memory, Run
from memcurse_cli.theory.stored_state import STATE_TYPES

CHEAP = 1e6  # multiplications of a step that is run without being asked
SHORTEST, LONGEST, MEMORIES = 100, 2000, 5  # steps: so many memories, within bounds
FEWEST, MOST = 16, 512  # sequences
ROUNDED = 64  # sequences whose state is rounded to every type
# Stability: sequences for every draw of signs, how many draws, and how many rates are tried.
DRIVEN, DRAWS, TRIED = 2, (4, 16), 6
STARTS, DIRECTIONS, WARM = 4, 64, 100  # of perturbations, and the steps before them
CHAOTIC = 3.0  # standard errors by which an exponent is above 0
UNKNOWN = "what its gates see is not in the file, or its step is none that can be run"
OVERFLOWS = "its state or its tangents leave the range of a float when it is run"


def simulate(recurrence: Recurrence, settings: Settings) -> tuple[Simulation | None, str | None]:
    """What a layer does when it is run from a zero state, or why it is not run, as a clause."""
    dynamics = dynamics_of(recurrence, settings)
    if isinstance(dynamics, str):
        return None, dynamics
    if dynamics.step > CHEAP and not settings.simulate:
        return None, TOO_LARGE
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        return _run(dynamics, settings)


def _run(dynamics: CellDynamics, settings: Settings) -> tuple[Simulation | None, str | None]:
    """A third of the work finds the memory; the rest is spent on sequences of so many of it."""
    most, given = LONGEST, settings.inputs
    if given is not None:
        if dynamics.noisy or given.shape[-1] != dynamics.width:
            takes = "one for every state" if dynamics.noisy else str(dynamics.width)
            return None, f"its inputs are {takes}, those given {given.shape[-1]}"
        most = given.shape[1]
    each = settings.work / 3 / (dynamics.step * STARTS)
    followed = 1 if dynamics.diagonal else min(DIRECTIONS, dynamics.order)
    followed = int(np.clip(each / (2 * simulation.SPLIT), 1, followed))
    longest = int(np.clip(each / 2 / min(followed, simulation.KEPT), SHORTEST, most))
    warm = min(WARM, most // 2)
    drive = _inputs(dynamics, settings, STARTS)
    memory = simulation.remembered(
        dynamics, drive, STARTS, followed, warm, min(longest, most - warm)
    )
    steps = settings.horizon or int(np.clip(MEMORIES * memory.lag.value, SHORTEST, LONGEST))
    share = settings.work / (dynamics.step * (2 + len(dynamics.tensors)) * steps)
    sequences = int(np.clip(share, FEWEST, MOST))
    steps = min(max(SHORTEST, int(steps * min(1.0, share / sequences))), steps, most)
    drive = _inputs(dynamics, settings, sequences)
    run = simulation.run(dynamics, drive, sequences, steps)
    found = _report(dynamics, run, memory, steps, settings)
    if isinstance(found, Simulation) and dynamics.plain and settings.horizon is not None:
        found = replace(found, stability_rate=_stability_rate(dynamics, steps, settings))
    if isinstance(found, Simulation) and settings.simulate:
        sequences = min(sequences, ROUNDED)
        drive = _inputs(dynamics, settings, sequences)
        errors = simulation.rounding_errors(dynamics, drive, sequences, steps, STATE_TYPES)
        stored = (
            SimulatedState(dtype, *(_measured(one) for one in pair))
            for dtype, pair in zip(STATE_TYPES, errors, strict=True)
        )
        return replace(found, stored=tuple(stored)), None
    return (found, None) if isinstance(found, Simulation) else (None, found)


def _stability_rate(dynamics: CellDynamics, steps: int, settings: Settings) -> float:
    """As of `Simulation`, from as many draws as the work allows."""
    assert settings.horizon is not None
    each = TRIED * 2 * DRIVEN * steps * dynamics.step
    draws = int(np.clip(settings.work / each, *DRAWS))
    drive = islice(_inputs(dynamics, settings, draws * DRIVEN), steps)
    inputs = [x.reshape(draws, DRIVEN, -1) for x in drive]
    return simulation.stability_rate(dynamics, inputs, settings.horizon)


def _measured(figure: Estimate) -> Measured | None:
    return Measured(*figure) if np.isfinite(figure).all() else None


def _inputs(dynamics: CellDynamics, settings: Settings, sequences: int) -> Iterator[Floats]:
    """Inputs of the statistics that are declared, or those that are given, drawn by sequence."""
    random = np.random.default_rng([simulation.SEED, sequences])
    if settings.inputs is not None:
        chosen = settings.inputs[random.integers(len(settings.inputs), size=sequences)]
        yield from np.moveaxis(chosen, 1, 0)
        return
    shape = sequences, dynamics.width
    for x in simulation.drawn_inputs(settings.autocorrelation, shape, random):
        yield settings.input_scale * x


def _report(
    dynamics: CellDynamics, run: Run, memory: Memory, steps: int, settings: Settings
) -> Simulation | str:
    moved = {
        tensor: (run.effect(tensor, dynamics.owners.get(tensor)), run.sensitivity(tensor))
        for tensor in dynamics.tensors
        if tensor in run.moved
    }
    if run.second_moment.value == 0:
        return "its state stays at zero when it is run"
    if not np.isfinite([*run.second_moment, *np.ravel([*moved.values()])]).all():
        return OVERFLOWS
    exponent = run.exponent
    grows = exponent.value > CHAOTIC * exponent.error
    chaotic = grows and dynamics.bent is not None
    lag = memory.lag
    if exponent.value < 0 and -1 / exponent.value > lag.value:
        tau = -1 / exponent.value
        lag = Estimate(tau, tau**2 * exponent.error)
    endless = grows or not (memory.ended or exponent.value < 0)
    return Simulation(
        sequences=len(run.squares),
        steps=steps,
        inputs="drawn" if settings.inputs is None else "given",
        second_moment=Measured(*run.second_moment),
        exponent=Measured(*exponent) if math.isfinite(exponent.value) else None,
        chaotic=chaotic,
        memory=None if endless else Measured(*lag),
        lag=Measured(*memory.lag),
        memory_at_least=not memory.ended or memory.directions < dynamics.order,
        saturated=run.saturated,
        groups=tuple(
            SimulatedGroup(
                dynamics.tensors[tensor],
                tensor,
                rate := settings.rate_of(tensor),
                Measured(rate * effect.value, rate * effect.error),
                Measured(*sensitivity),
            )
            for tensor, (effect, sensitivity) in moved.items()
        ),
    )


def given_inputs(store: TensorStore, inputs: NDArray[Any], embeddings: str | None) -> Floats:
    """(N, T, F) inputs, of tokens the rows of the tensor of that name; raises `UsageError`."""
    if embeddings is not None:
        if embeddings not in store.tensors:
            what = f"no tensor is called {printable(embeddings, 80)!r}"
            raise UsageError(what, where="--embeddings", remedy="name the embedding")
        rows = store.read(embeddings)
        tokens = np.asarray(inputs)
        whole = rows.ndim == 2 and tokens.ndim == 2 and not np.mod(tokens, 1).any()
        if not whole or tokens.min(initial=0) < 0 or tokens.max(initial=0) >= len(rows):
            what = "the inputs are no (batch, time) numbers of rows of the embedding"
            raise UsageError(what, where="--inputs", remedy="give token numbers from 0 on")
        inputs = rows[tokens.astype(np.intp)]
    inputs = np.asarray(inputs, np.float64)
    if inputs.ndim != 3 or 0 in inputs.shape or not np.isfinite(inputs).all():
        what = f"finite inputs of shape (batch, time, features) are needed, not {inputs.shape}"
        raise UsageError(what, where="--inputs", remedy="or tokens with --embeddings TENSOR")
    return inputs


def dynamics_of(recurrence: Recurrence, settings: Settings) -> CellDynamics | str:
    """How a layer is run, or why it is not, as a clause."""
    if recurrence.dynamics is not None:
        return recurrence.dynamics
    if recurrence.dense is not None:
        return _dense(recurrence)
    drive = recurrence.gate
    if (isinstance(drive, GateDrive) and drive.state is None) or (
        isinstance(drive, JointDrive) and isinstance(drive.law, Share)
    ):
        return _driven(recurrence, drive, settings)
    return UNKNOWN if recurrence.input_dependent else _diagonal(recurrence)


def _diagonal(recurrence: Recurrence) -> CellDynamics:
    """``h' = λ h + γ B x`` of a layer whose λ stays as it is."""
    eigenvalues, gain = np.exp(recurrence.log_eigenvalues), np.exp(recurrence.log_gain)
    readin = recurrence.readin

    def begin(draw: Draw) -> Callable[[Any, Any], Any]:
        kept, taken = Dual(eigenvalues), Dual(gain)
        for group, signs in _drawn(recurrence.parameters, draw):
            kept = kept + _spread(group, signs, group.eigenvalue_derivative, recurrence.size)
            if group.log_gain_derivative is not None:
                along = gain[group.eigenvalue] * group.log_gain_derivative
                taken = taken + _spread(group, signs, along, recurrence.size)
        return lambda h, x: kept * h + taken * (x if readin is None else x @ readin.T)

    width = recurrence.size if readin is None else readin.shape[1]
    return CellDynamics(
        recurrence.size,
        slice(None),
        width,
        {one.tensor: one.name.partition("[")[0] for one in recurrence.parameters},
        begin,
        owners=_owners(recurrence.parameters, recurrence.size),
        diagonal=True,
    )


def _drawn_gates(
    drive: GateDrive | JointDrive, seen: float
) -> Callable[[np.random.Generator, tuple[int, ...]], GateValues]:
    """λ and γ of pre-activations that are drawn, for inputs of this second moment."""
    if isinstance(drive, JointDrive):
        law, several = drive.law, drive.preactivations(seen)
        gates = several.mean.shape[-1]
        return lambda random, shape: (
            law(several.at(random.standard_normal((*shape, gates)))).nominal
        )
    gate = drive.gate.preactivation(seen)
    write = None if drive.write_gate is None else drive.write_gate.preactivation(seen)

    def values(random: np.random.Generator, shape: tuple[int, ...]) -> GateValues:
        found = drive.law(gate.mean + gate.spread * random.standard_normal(shape))
        if write is None or drive.write is None:
            return found
        opened = drive.write(write.mean + write.spread * random.standard_normal(shape))
        moved = {
            name: Motion(of.eigenvalue, of.gain * opened.value)
            for name, of in found.motions.items()
        }
        by_write = Motion(np.zeros(shape), found.gain * opened.slope)
        moved.setdefault(drive.write.parameter, by_write)
        return found._replace(gain=found.gain * opened.value, motions=moved)

    return values


def _driven(
    recurrence: Recurrence, drive: GateDrive | JointDrive, settings: Settings
) -> CellDynamics:
    """``h' = λ(z) h + γ(z) x`` with pre-activations drawn anew at every step, as declared."""
    gates = _drawn_gates(drive, settings.input_scale**2)
    groups = [group for group in recurrence.parameters if group.name in drive.motions]

    def begin(draw: Draw) -> Callable[[Any, Any], Any]:
        drawn, random = list(_drawn(groups, draw)), np.random.default_rng(simulation.SEED)

        def step(h: Any, x: Floats) -> Any:
            values = gates(random, x.shape)
            kept, taken = Dual(values.eigenvalue), Dual(values.gain)
            for group, signs in drawn:
                parameter, scale = drive.motions[group.name]
                by_eigenvalue, by_gain = (
                    of[:, group.eigenvalue] for of in values.motions[parameter]
                )
                kept = kept + _spread(group, signs, scale * by_eigenvalue, recurrence.size)
                taken = taken + _spread(group, signs, scale * by_gain, recurrence.size)
            return kept * h + taken * x

        return step

    return CellDynamics(
        recurrence.size,
        slice(None),
        recurrence.size,
        {one.tensor: one.name.partition("[")[0] for one in groups},
        begin,
        owners=_owners(groups, recurrence.size),
        noisy=True,
        diagonal=True,
    )


def _drawn(groups: Any, draw: Draw) -> Iterator[tuple[ParameterGroup, Floats]]:
    """The groups with the signs that are drawn for them, if any are."""
    for group in groups:
        signs = draw(group.tensor, np.zeros(group.size))
        if isinstance(signs, Dual):
            yield group, signs.tangents[group.tensor]


def _owners(groups: Sequence[ParameterGroup], size: int) -> dict[str, Integers]:
    """The scalar of each unit, of groups that have one for every unit."""
    found = {}
    for group in groups:
        owners = np.zeros(size, np.intp)
        owners[group.eigenvalue] = group.scalar
        if len(np.unique(group.eigenvalue)) == size == group.eigenvalue.size:
            found[group.tensor] = owners
    return found


def _spread(group: ParameterGroup, signs: Floats, derivative: NDArray[Any], size: int) -> Dual:
    """0 with what the signs of a group move of every eigenvalue."""
    entries: NDArray[Any] = signs[:, group.scalar] * derivative
    moved = np.zeros((len(signs), size), entries.dtype)
    if np.array_equal(group.eigenvalue, np.arange(size)):
        moved = entries
    else:
        np.add.at(moved.T, group.eigenvalue, entries.T)
    return Dual(np.zeros(size), {group.tensor: moved})


def _dense(recurrence: Recurrence) -> CellDynamics:
    """``h' = φ(A h + B x + b)``."""
    dense = recurrence.dense
    assert dense is not None
    bent, readin = ACTIVATIONS[dense.activation], recurrence.readin

    def begin(draw: Draw) -> Callable[[Any, Any], Any]:
        matrix = draw(dense.tensor, dense.matrix)
        bias = 0.0 if dense.bias is None else dense.bias
        return lambda h, x: bent(h @ matrix.T + (x if readin is None else x @ readin.real.T) + bias)

    width = recurrence.size if readin is None else readin.shape[1]
    named = {dense.tensor: split_name(dense.tensor)[1]}
    return CellDynamics(recurrence.size, slice(None), width, named, begin)
