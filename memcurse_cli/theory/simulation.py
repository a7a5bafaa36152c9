"""Running a cell on drawn sequences, with its tangents: memory and sensitivity without a formula.

Every figure is a mean over S independent sequences, each with inputs and random signs of its own,
so that its standard error is that of the S values (section 10 of the theory).
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from memcurse_cli.theory.autocorrelation import Autocorrelation
from memcurse_cli.theory.devices import arrays_on_device, beside, fetched
from memcurse_cli.theory.duals import Dual, Weight
from memcurse_cli.theory.linalg import Array, Floats, Integers, array_namespace
from memcurse_cli.theory.rounding import Dtype
from memcurse_cli.theory.stored_state import keep

RANK = 4  # of the random signs of a matrix, whose figures scatter less the higher it is
REMEMBERED = 1 / math.e
SPLIT, KEPT = 64, 4  # the lag from which so many directions are followed alone
FORGOTTEN = 0.1  # a norm below which a perturbation is not taken to come back to 1/e
UNBOUNDED = 1e12  # one that has grown for good
PER_UNIT = 100  # multiplications that the functions of a unit cost, beside its weights
MEMORY = "memory"  # the direction of a perturbation of the state
SEED = 0

Step = Callable[[Any, Any], Any]
"""The next states (S, order) from states and inputs (S, width), with tangents or without."""
Draw = Callable[[str, Floats], Any]
"""What to compute with in the place of a vector or of a matrix of a tensor: itself, or a dual."""


class CellDynamics(Struct, frozen=True):
    """A cell that can be run."""

    order: int  # of its state
    shown: slice  # the part of it that the layer puts out
    width: int  # of its inputs
    tensors: Mapping[str, str]  # those that it reads, and what each is called in its layer
    begin: Callable[[Draw], Step]  # reads them
    weights: int = 0  # how many multiplications a step takes in matrices
    # The part of the state that a tanh bounds or bends, and where that is 0.95; None without one.
    bent: tuple[slice, float] | None = None
    # Where the scalars of a tensor move units of their own: which of them, by unit.
    owners: Mapping[str, Integers] = {}
    noisy: bool = False  # what it is given is drawn for every state, and is no input of the layer
    diagonal: bool = False  # no unit sees another: the norm of a perturbation is its largest entry
    plain: str = ""  # ``GRU``, ``LSTM`` or ``tanh``: the cell that it is, with nothing added
    untouched: Callable[[], bool] = lambda: False  # asks its weights for `initial`

    @property
    def initial(self) -> bool:
        """Whether its weights stand as an initialiser left them, for which all are read."""
        return self.untouched()

    @property
    def step(self) -> int:
        """How many multiplications a step is worth."""
        return self.weights + PER_UNIT * self.order

    def norms(self, perturbation: Array) -> Floats:
        """(S,) of (S, n) perturbations."""
        order, xp = np.inf if self.diagonal else 2, array_namespace(perturbation)
        return fetched(xp.linalg.vector_norm(perturbation, ord=order, axis=-1))


class Estimate(NamedTuple):
    """A figure from S independent sequences, and its standard error."""

    value: float
    error: float

    @classmethod
    def mean(cls, values: Floats) -> Estimate:
        """That of (S,) values."""
        if not np.isfinite(values).all():
            return cls(float(values.mean()), 0.0)
        scale = float(np.abs(values).max()) or 1.0  # squares of what is large overflow
        error = scale * float((values / scale).std(ddof=1)) / math.sqrt(len(values))
        return cls(float(values.mean()), error)

    @classmethod
    def root_ratio(cls, above: Floats, below: Floats) -> Estimate:
        """√(E a / E b) of (S,) values that belong together in pairs."""
        ratio = float(above.mean() / below.mean()) if below.any() else math.nan
        error = cls.mean(above - ratio * below).error / float(below.mean()) if ratio > 0 else 0.0
        return cls(math.sqrt(ratio), error / (2 * math.sqrt(ratio)) if ratio > 0 else 0.0)


class Signs:
    """Random signs of every tensor that a cell reads, anew for each of S sequences."""

    def __init__(self, sequences: int, random: np.random.Generator, weights: int = 0) -> None:
        self.sequences, self._random, self._weights = sequences, random, weights

    def __call__(self, tensor: str, values: Floats) -> Dual | Weight:
        """A matrix or a vector whose tangent along its tensor is a draw of uncorrelated signs."""
        (there,) = arrays_on_device(self._weights, values)
        if values.ndim == 1:
            return Dual(there, {tensor: self._draw(values.size)})
        left, right = (self._draw(RANK, size) for size in values.shape)
        return Weight(there, {tensor: (left / math.sqrt(RANK), right)})

    def _draw(self, *shape: int) -> Array:
        signs = _signs(self._random, (self.sequences, *shape))
        return arrays_on_device(self._weights, signs)[0]


class Stepped:
    """Every tensor that a cell reads after D steps of a rate, each along random signs."""

    def __init__(self, rate: float, draws: int, random: np.random.Generator) -> None:
        self.rate, self.draws, self._random = rate, draws, random

    def __call__(self, tensor: str, values: Floats) -> Floats | Weight:
        """(D, 1, n) of a vector, (D, m, n) of a matrix, for (D, S, ...) states."""
        stepped = values + self.rate * _signs(self._random, (self.draws, *values.shape))
        return stepped[:, None] if values.ndim == 1 else Weight(stepped)


def _signs(random: np.random.Generator, shape: tuple[int, ...]) -> Floats:
    return np.where(random.integers(0, 2, shape, dtype=np.int8), 1.0, -1.0)


def drawn_inputs(
    autocorrelation: Autocorrelation, shape: tuple[int, int], random: np.random.Generator
) -> Iterator[Floats]:
    """Stationary Gaussian inputs (S, width) of R(Δ) = Σ w ρ^Δ cos ωΔ, independent, step by step."""
    parts = []
    for weight, rho, frequency in autocorrelation.parts:
        turn = rho * complex(math.cos(frequency), math.sin(frequency))
        parts.append((math.sqrt(weight), turn, math.sqrt((1 - rho) * (1 + rho))))

    def noise(turn: complex) -> Any:
        real = random.standard_normal(shape)
        return real + 1j * random.standard_normal(shape) if turn.imag else real

    held = [noise(turn) for _, turn, _ in parts]
    while True:
        yield np.sum(
            [scale * now.real for (scale, *_), now in zip(parts, held, strict=True)], axis=0
        )
        held = [
            (turn if turn.imag else turn.real) * now + fresh * noise(turn)
            for (_, turn, fresh), now in zip(parts, held, strict=True)
        ]


class Run(Struct, frozen=True):
    """What S sequences of T steps from a zero state showed at the last step."""

    squares: Floats  # (S, n) h² of every unit that the layer shows
    moved: Mapping[str, Floats]  # (S, n) (dh/dω)² summed over a tensor's entries, by tensor
    exponents: Floats  # (S,) the mean growth of a perturbation per step; -inf where it vanished
    saturated: float | None  # the share of units beyond `CellDynamics.bent`

    @property
    def second_moment(self) -> Estimate:
        """E h² of a unit."""
        return Estimate.mean(self.squares.mean(axis=1))

    @property
    def exponent(self) -> Estimate:
        """The leading Lyapunov exponent Λ₁ per step."""
        return Estimate.mean(self.exponents)

    def sensitivity(self, tensor: str) -> Estimate:
        """Σ E‖dh/dω‖² over the entries of a tensor."""
        return Estimate.mean(self.moved[tensor].sum(axis=1))

    def effect(self, tensor: str, owners: Integers | None = None) -> Estimate:
        """√(E‖dh/dω‖² / E‖h‖²) of a whole tensor: what a unit of all of its entries does.

        Of scalars that move units of their own, ``owners`` (n,), that of the 99th percentile.
        """
        if owners is None:
            return Estimate.root_ratio(self.moved[tensor].sum(axis=1), self.squares.sum(axis=1))
        count = int(owners.max()) + 1
        moved, held = np.zeros((2, len(self.squares), count))
        np.add.at(moved.T, owners, self.moved[tensor].T)
        np.add.at(held.T, owners, self.squares.T)
        sizes = held.mean(axis=0)
        ratios = np.divide(moved.mean(axis=0), sizes, out=np.zeros(count), where=sizes > 0)
        order, place = np.argsort(ratios), 0.99 * (count - 1)
        below, above = (
            Estimate.root_ratio(moved[:, unit], held[:, unit])
            for unit in (order[int(place)], order[math.ceil(place)])
        )
        share = place - int(place)
        value = math.sqrt((1 - share) * below.value**2 + share * above.value**2)
        return Estimate(value, (1 - share) * below.error + share * above.error)


def run(
    dynamics: CellDynamics, inputs: Iterator[Floats], sequences: int, steps: int, seed: int = SEED
) -> Run:
    """Drive a cell from a zero state, with the tangents of every tensor along random signs."""
    random = np.random.default_rng(seed)
    # Of these alone all that a step takes in is drawn, or is the state or the input.
    weights = dynamics.weights if dynamics.plain else 0
    step = dynamics.begin(Signs(sequences, random, weights))
    return _driven(dynamics, step, inputs, (sequences,), steps, random, weights)


@np.errstate(divide="ignore")  # the logarithm of a perturbation that has vanished
def _driven(
    dynamics: CellDynamics,
    step: Step,
    inputs: Iterator[Floats],
    sequences: tuple[int, ...],
    steps: int,
    random: np.random.Generator,
    weights: int = 0,
) -> Run:
    """A perturbation of the state is set back to norm 1 at every step; how much it grew counts
    from the second half on."""
    shape = *sequences, dynamics.order
    tangent = np.ones(shape) if dynamics.diagonal else random.standard_normal(shape)
    began, moving = arrays_on_device(weights, np.zeros(shape), tangent)
    state = Dual(began, {MEMORY: moving})
    growth = np.zeros(sequences)
    for index in range(steps):
        state = step(state, beside(next(inputs), began))
        norm = dynamics.norms(state.tangents[MEMORY])
        if index >= steps // 2:
            growth += np.log(norm)
        scale = beside(np.where(norm > 0, norm, 1.0)[..., None], began)
        state = Dual(state.value, {**state.tangents, MEMORY: state.tangents[MEMORY] / scale})
    state = state.map(fetched)
    last = state[..., dynamics.shown]
    moved = {name: _squares(along) for name, along in last.tangents.items() if name != MEMORY}
    share = None
    if dynamics.bent is not None:
        part, limit = dynamics.bent
        share = float(np.mean(np.abs(state.value[..., part]) >= limit))
    return Run(_squares(last.value), moved, growth / (steps - steps // 2), share)


def _squares(values: NDArray[np.inexact]) -> Floats:
    """|·|² of every entry."""
    return np.asarray(values.real**2 + values.imag**2)


TRIALS = tuple(1e-5 * 2 ** (power / 2) for power in range(35))
"""The rates at which stability is tried, 1e-5 to 1.3."""


def stability_rate(
    dynamics: CellDynamics, inputs: Sequence[Floats], horizon: int, seed: int = SEED
) -> float:
    """The largest of `TRIALS` at which a step of random signs in every tensor leaves a cell stable.

    ``T (Λ₁(θ + lr s) - max(Λ₁(θ), 0)) < 1`` for at least half of D draws of s, with the same signs
    and inputs at every rate. The fewer are stable the larger the rate, so that a bisection finds
    it; 0 where the smallest is too large.

    Args:
        dynamics: the cell.
        inputs: (D, S, width) of every step, S sequences for each draw.
        horizon: T in steps, of which ``inputs`` may be fewer.
        seed: of what is drawn.
    """
    shape = inputs[0].shape[:2]

    def exponents(rate: float, draws: int) -> Floats:
        random = np.random.default_rng(seed)
        step = dynamics.begin(Stepped(rate, draws, random))
        run = _driven(dynamics, step, iter(inputs), shape, len(inputs), random)
        return np.asarray(run.exponents.mean(axis=1))

    own = max(float(exponents(0.0, 1).mean()), 0.0)

    def is_unstable(rate: float) -> bool:
        stable = horizon * (exponents(rate, len(inputs[0])) - own) < 1
        return bool(2 * np.count_nonzero(stable) < len(stable))

    place = bisect_left(TRIALS, True, key=is_unstable)
    return TRIALS[place - 1] if place else 0.0


def rounding_errors(
    dynamics: CellDynamics,
    inputs: Iterator[Floats],
    sequences: int,
    steps: int,
    dtypes: Sequence[Dtype],
    seed: int = SEED,
) -> list[tuple[Estimate, Estimate]]:
    """√(E‖q - h‖² / E‖h‖²) of states q that are rounded at every step, to nearest and at random.

    One pair for each type, from a zero state, at the last step; nan where a type overflows.
    """
    random = np.random.default_rng(seed)
    ways = [(dtype, chance) for dtype in dtypes for chance in (None, random)]
    step = dynamics.begin(lambda _, values: values)
    # The exact one and every rounded one side by side: what a step draws is the same for all.
    held: NDArray[Any] = np.zeros((1 + len(ways), sequences, dynamics.order))
    for _ in range(steps):
        exact, *rounded = step(Dual(held), next(inputs)).value
        kept = (keep(after, *way) for after, way in zip(rounded, ways, strict=True))
        held = np.stack([exact, *kept])
    state = held[0]
    size = _squares(state).sum(axis=1)
    found = [Estimate.root_ratio(_squares(one - state).sum(axis=1), size) for one in held[1:]]
    return list(zip(found[::2], found[1::2], strict=True))


class Memory(NamedTuple):
    """How long a perturbation of the state is seen."""

    lag: Estimate  # the mean over starts of the last Δ with ‖∂h[t+Δ]/∂h[t]‖₂ ≥ 1/e
    directions: int  # how many were followed: of fewer than the order, the lag is at least this
    ended: bool  # whether all starts had forgotten after the steps that were taken


def remembered(
    dynamics: CellDynamics,
    inputs: Iterator[Floats],
    starts: int,
    directions: int,
    warm: int,
    steps: int,
    seed: int = SEED,
) -> Memory:
    """The last lag at which orthonormal perturbations of a driven state keep 1/e of their size.

    The norm of what they have become is followed by power iteration, from the direction that was
    the largest a step before; that of a diagonal layer is the largest entry.
    """
    random = np.random.default_rng(seed)
    step = dynamics.begin(lambda _, values: values)
    state = np.zeros((starts, dynamics.order))
    for _ in range(warm):
        state = step(state, next(inputs))
    if dynamics.diagonal:
        block, directions = np.ones((1, *state.shape)), dynamics.order
    else:
        frame = np.linalg.qr(random.standard_normal((dynamics.order, directions)))[0]
        block = np.broadcast_to(frame.T[:, None], (directions, *state.shape))
    largest = np.full((starts, directions), directions**-0.5)
    last = np.zeros(starts)
    for lag in range(1, steps + 1):
        if lag == SPLIT and len(block) > KEPT:
            # What is largest by now stays so: the rest of the directions need not be followed.
            turned = np.linalg.svd(np.moveaxis(block, 0, -1), full_matrices=False)[2][:, :KEPT]
            block = np.einsum("skr,rsn->ksn", turned.conj(), block)
            largest = np.eye(KEPT)[np.zeros(starts, int)]
        after = step(Dual(state, {MEMORY: block}), next(inputs))
        state, block = after.value, after.tangents[MEMORY]
        diagonal = dynamics.diagonal
        norm = dynamics.norms(block[0]) if diagonal else np.linalg.norm(block, axis=(0, 2))
        size = norm.max()  # at least the norm that is sought
        if not FORGOTTEN <= size < UNBOUNDED:
            return Memory(Estimate.mean(last), directions, bool(size < FORGOTTEN))
        if not diagonal:
            for _ in range(2):
                image = np.einsum("sr,rsn->sn", largest, block)
                largest = np.einsum("rsn,sn->sr", block.conj(), image)
                square = np.linalg.norm(largest, axis=1)
                largest /= np.where(square > 0, square, 1.0)[:, None]
            norm = np.sqrt(square)
        last[norm >= REMEMBERED] = lag
    return Memory(Estimate.mean(last), directions, bool((last < steps).all()))
