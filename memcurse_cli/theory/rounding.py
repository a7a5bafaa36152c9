"""What storing a recurrent parameter in fewer bits does to it and to the state."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import numpy as np

from memcurse_cli.theory.autocorrelation import Autocorrelation
from memcurse_cli.theory.finite_sums import ChangeSums, Readout, summed_products
from memcurse_cli.theory.linalg import Complexes, Floats
from memcurse_cli.theory.moments import bilinear, turned_parts

if TYPE_CHECKING:
    from memcurse_cli.theory.dense.sensitivity import DenseSystem

Dtype = Literal["bfloat16", "float16", "float32", "float8_e4m3fn", "float8_e5m2", "int8"]

EXPONENT_BITS = 0x7FF << 52  # of a float64
LARGEST_INTEGER = 127  # int8 without -128, so that it is symmetric
ROUNDING = 1e-18  # share of a sum of squares below which a further half adds nothing
MOST_DOUBLINGS = 48
SMALLEST_LOG = 700.0  # -log|λ'| of a λ' that is 0
# Bits of the fraction, exponents of the smallest and the largest power of 2, largest number. From
# here rather than from ml_dtypes, whose import costs a fortieth of a small report's time.
FORMATS: dict[Dtype, tuple[int, int, int, float]] = {
    "bfloat16": (7, -126, 127, 2.0**128 - 2.0**120),
    "float16": (10, -14, 15, 65504.0),
    "float32": (23, -126, 127, 2.0**128 - 2.0**104),
    "float8_e4m3fn": (3, -6, 8, 448.0),
    "float8_e5m2": (2, -14, 15, 57344.0),
}


def spacing(values: Floats, dtype: Dtype, largest: float | None = None) -> Floats:
    """The distance between neighbours of a type at each value: its unit in the last place.

    Below the smallest normal number it is that of the subnormal ones; inf for a value that rounds
    beyond the largest number. int8 stands for integers times one scale, max|ω|/127 of the values or
    of a whole tensor whose ``largest`` |ω| is given, so that its spacing is that scale.
    """
    if dtype == "int8":
        if largest is None:
            largest = float(np.abs(values).max(initial=0.0))
        return np.full(values.shape, largest / LARGEST_INTEGER)
    fraction_bits, smallest, greatest, end = FORMATS[dtype]
    unit = np.abs(values, out=np.empty(values.shape))
    np.maximum(unit, 2.0**smallest, out=unit)
    beyond = ~(unit < end + 2.0 ** (greatest - fraction_bits - 1))
    bits = unit.view(np.int64)
    bits &= EXPONENT_BITS  # leaves the power of 2 at or below it
    unit *= 2.0**-fraction_bits
    unit[beyond] = np.inf
    return unit


def rounded(values: Floats, dtype: Dtype, largest: float | None = None) -> Floats:
    """The nearest number of a type, of two alike the even one; inf beyond its range."""
    return multiples(values, spacing(values, dtype, largest))


def multiples(values: Floats, unit: Floats, random: np.random.Generator | None = None) -> Floats:
    """Values as multiples of units, which are overwritten; inf where a unit is.

    The nearest, of two alike the even one, or at random one of both neighbours, without bias.
    """
    beyond = np.isinf(unit)
    unit[beyond | (unit == 0)] = 1.0  # int8 has no unit where all is 0
    found = values / unit
    if random is None:
        np.rint(found, out=found)
    else:
        np.floor(found + random.random(found.shape), out=found)
    found *= unit
    return np.where(beyond, np.copysign(np.inf, values), found) if beyond.any() else found


def rounding_steps(
    values: Floats, dtype: Dtype, *, stored: bool = False, largest: float | None = None
) -> Floats:
    """δω = round(ω) - ω of every element when ω is stored in a type; not finite beyond its range.

    Of values ``stored`` in it already, the root mean square of an error that is uniform over one
    spacing; a zero was a zero.
    """
    if not stored:
        return np.asarray(rounded(values, dtype, largest) - values)
    return np.where(values == 0, 0.0, spacing(values, dtype, largest) / np.sqrt(12))


def rounding_error(relative_sensitivity: Floats, steps: Floats) -> Floats:
    """The relative error √(E|δh|²/E|h|²) = √κ(ω) |δω| for small δω; inf where not finite."""
    moved = np.abs(steps)
    fits = np.isfinite(moved)
    exact = moved == 0  # nothing moves, however sensitive the state is
    kappa = np.where(exact, 0.0, relative_sensitivity)
    return np.where(fits, np.sqrt(kappa) * np.where(fits, moved, 1.0), np.inf)


def state_change(
    log_eigenvalues: Complexes,
    log_moved: Complexes,
    log_gain_ratio: Complexes,
    autocorrelation: Autocorrelation,
    horizon: int | None,
    readout: Readout,
) -> Floats:
    """(n,) E|h' - h|² / |γ|² of ``h = λ h + γ x`` and ``h' = λ' h' + γ' x``, inf where it diverges.

    On an infinite sequence it is ``|g|² F(λ', λ') + F(λ, λ) - 2 Re g F(λ', λ)`` with F(α, β) =
    E[h_α h̄_β] at γ = 1 and g = γ'/γ; on a finite one nothing cancels.
    """

    def joint(one: Complexes, other: Complexes) -> Complexes:
        return np.asarray(bilinear(one, other.conj(), autocorrelation).hh)

    change = np.zeros(log_eigenvalues.shape)
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        if horizon is None:
            ratio = np.exp(log_gain_ratio)
            change = (
                np.abs(ratio) ** 2 * joint(log_moved, log_moved).real
                + joint(log_eigenvalues, log_eigenvalues).real
                - 2 * (ratio * joint(log_moved, log_eigenvalues)).real
            )
            change = np.where((log_eigenvalues.real < 0) & (log_moved.real < 0), change, np.inf)
        else:
            for weight, rho, turn in turned_parts(autocorrelation):
                turned = log_eigenvalues + 1j * turn, log_moved + 1j * turn
                sums = ChangeSums(*turned, np.expm1(log_gain_ratio), rho)
                change = change + weight * summed_products(sums, rho, horizon, readout)[-1]
    return np.where(np.isfinite(change), np.maximum(change, 0.0), np.inf)


def moved_logs(
    log_eigenvalues: Complexes, derivative: Complexes, steps: Floats, *, bounded: bool
) -> Complexes:
    """log λ' of (n,) eigenvalues whose parameters move by δω, whatever its size.

    A ``bounded`` parameter moves the decay in proportion, as exponentials do and a sigmoid near 1;
    the angle too where its rate is itself. Otherwise λ' = λ + δω dλ/dω.
    """
    decay, angle = log_eigenvalues.real, log_eigenvalues.imag
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        rate = derivative / np.exp(log_eigenvalues)
        share = steps * rate  # δ log λ to first order
        if bounded:
            grown = np.clip(np.where(decay == 0, 0.0, share.real / decay), -700, 700)
            logarithm = np.abs(rate.imag - angle) <= 1e-9 * np.abs(angle)
            turned = np.where(logarithm, angle * np.exp(steps), angle + share.imag)
            return np.asarray(decay * np.exp(grown) + 1j * turned)
        small = np.abs(share) < 0.5
        growth = share.real * (2 + share.real) + share.imag**2  # |1 + δλ/λ|² - 1
        near = 0.5 * np.log1p(np.where(small, growth, 0.0)) + 1j * np.angle(1 + share)
        far = np.log(np.where(small, 1.0, np.exp(log_eigenvalues) + steps * derivative))
    far = np.where(np.isfinite(far), far, -SMALLEST_LOG)
    return np.where(small, log_eigenvalues + near, far)


def matrix_state_change(system: DenseSystem, change: Floats) -> tuple[float, float]:
    """E‖h' - h‖² and E‖h‖² of ``h = A h + B x`` and ``h' = (A + δA) h' + B x``.

    By ``d = (A + δA) d + δA h``, where nothing cancels; an infinite sequence needs every |λ| < 1.
    """
    matrix, readin = system.matrix, system.inputs
    size, inputs = readin.shape
    moved = powers = 0.0
    for part in system.autocorrelation.parts:
        if part.weight == 0:
            continue
        pole = part.pole * np.eye(inputs)
        transition = np.block(
            [
                [pole, np.zeros((inputs, 2 * size))],
                [readin @ pole, matrix, np.zeros((size, size))],
                [np.zeros((size, inputs)), change, matrix + change],
            ]
        )
        start = np.concatenate([np.eye(inputs), readin, np.zeros_like(readin)])
        kept = slice(inputs if part.rho == 0 else 0, None)
        answers = _MatrixTransition(transition[kept, kept], start[kept])
        (products,) = (
            _endless_products(answers, part.rho)
            if system.horizon is None
            else summed_products(answers, part.rho, system.horizon, system.read_at)
        )
        squares = np.diagonal(products).real
        powers += part.weight * float(np.sum(squares[-2 * size : -size]))
        moved += part.weight * float(np.sum(squares[-size:]))
    return moved, powers


class _MatrixTransition:
    """M^k of a matrix M and y(0), as `summed_products` takes it."""

    def __init__(self, transition: Floats, start: Floats) -> None:
        self.transition = self.power = transition
        self.start, self.steps = start, 1

    def first_products(self) -> tuple[Floats]:
        return (np.asarray(self.start @ self.start.conj().T),)

    def products(self) -> tuple[Floats]:
        seen = self.power @ self.start
        return (np.asarray(seen @ seen.conj().T),)

    def applied(self, sums: tuple[Floats]) -> tuple[Floats]:
        return (np.asarray(self.power @ sums[0] @ self.power.conj().T),)

    def double(self) -> None:
        self.power, self.steps = self.power @ self.power, 2 * self.steps

    def append_step(self) -> None:
        self.power, self.steps = self.power @ self.transition, self.steps + 1


def _endless_products(answers: _MatrixTransition, rho: float) -> tuple[Floats]:
    """`summed_products` of a sequence that ends where a further doubling adds nothing."""
    (w,) = answers.first_products()
    for _ in range(MOST_DOUBLINGS):
        (added,) = answers.applied((w,))
        w = w + added
        answers.double()
        if np.linalg.norm(added) <= ROUNDING * np.linalg.norm(w):
            break
    return (answers.products()[0] + (1 - rho) * (1 + rho) * w,)
