"""Oscillators, LinOSS and UnICORNN, and the IndRNN: a vector where others have a matrix."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from memcurse_cli.checkpoints.store import TensorSpec
from memcurse_cli.families.cells.torch import KEY, Lookalikes
from memcurse_cli.families.dense.dense_layer import ACTIVATION
from memcurse_cli.families.family import Assumption, Family, Layer, Layout, Match
from memcurse_cli.families.reading import log_of_eigenvalues, misfit, sigmoid, split_name
from memcurse_cli.families.recurrence import Complexes, Recurrence

SCHEME = Assumption(
    key="oscillator-scheme",
    default="imex",
    choices=("imex", "imex2", "im", "ex"),
    meaning="how LinOSS steps its oscillators: implicit in the velocity (imex; imex2 damps what"
    " was), implicit in all (im), explicit (ex)",
)

_STEPS = ("steps", "dt")
# The two eigenvalues of an oscillator at the edge of its oscillating meet: kept this far apart.
_SMALLEST_DISCRIMINANT = 1e-14
_TINY = 1e-30
_BY_DESIGN = (
    "without damping every |λ| is 1 by design while Δ²A < 4: the state of an endless sequence grows"
)

# Real arrays, or complex ones whose imaginary part carries a derivative.
_Values = NDArray[Any]


class _Pair(Struct, frozen=True):
    """One oscillator's characteristic polynomial ``λ² - trace λ + e^log_determinant``."""

    trace: _Values
    log_determinant: _Values
    discriminant: _Values  # ``trace² - 4 determinant``, free of cancellation
    drive: _Values  # what one unit of input adds to the position, now or (ex) one step later


def _step(scheme: str, a: _Values, g: _Values, step: _Values) -> _Pair:
    """One step of an oscillator with stiffness a and damping g."""
    square, damped = step**2, step * g
    if scheme == "imex":
        scale = 1 + damped
        discriminant = square * ((g - step * a) ** 2 - 4 * a) / scale**2
        trace = (2 + damped - square * a) / scale
        return _Pair(trace, -np.log1p(damped), discriminant, square / scale)
    if scheme == "imex2":
        discriminant = square * ((g + step * a) ** 2 - 4 * a)
        return _Pair(2 - damped - square * a, np.log1p(-damped), discriminant, square)
    discriminant = square * (g**2 - 4 * a)
    if scheme == "ex":
        return _Pair(2 - damped, np.log1p(square * a - damped), discriminant, square)
    scale = 1 + damped + square * a
    log_determinant = -np.log1p(damped + square * a)
    return _Pair((2 + damped) / scale, log_determinant, discriminant / scale**2, square / scale)


class LinOSS(Family):
    """``λ± = (t ± √(t² - 4d))/2`` of each oscillator's 2×2 step, position read out.

    With A ≥ 0 the stiffness, G ≥ 0 the damping and ``Δ = σ(steps)``: imex has
    ``t = (2 + ΔG - Δ²A)/S``, ``d = 1/S``, ``S = 1 + ΔG``; im has ``t = (2 + ΔG)/S``, ``d = 1/S``,
    ``S = 1 + ΔG + Δ²A``. The position is the sum of two states that share B and C, with
    ``γ± = (Δ²/S) λ±/(λ± - λ∓)``. `LinOSSLayer` (models/LinOSS.py) in tk-rusch/linoss has no G;
    `DampedIMEX1Layer` and its kin (src/damped_linoss/models/LinOSS.py) in jaredbmit/damped-linoss
    project A and G.
    """

    name = "linoss"
    title = "LinOSS and D-LinOSS (oscillatory state space)"
    recognised_by = "A_diag and steps (or dt) beside B (P, H, 2) and C (H, P, 2), perhaps G_diag"
    equation = "λ = (t ± √(t² - 4d))/2, t and d the trace and determinant of A_diag's oscillator"
    source = "tk-rusch/linoss, jaredbmit/damped-linoss, linax; Rusch & Rus 2024, arXiv 2410.03943"
    assumptions = (SCHEME,)

    layouts = (
        Layout(
            ("A_diag", _STEPS, "B", "C"),
            ("G_diag",),
            fits=lambda shapes: [len(shapes[role]) for role in ("A_diag", "B", "C")] == [1, 3, 3],
        ),
    )

    def _recurrence(self, layer: Layer) -> Recurrence:
        names = layer.names
        scheme = layer.choose(SCHEME)
        (size,) = layer.shape("A_diag")
        damped = "G_diag" in names
        step = next(role for role in _STEPS if role in names)
        roles = ("A_diag", step, "G_diag")[: 2 + damped]
        stored = {role: layer.real(role, (size,)) for role in roles}
        pair = _oscillator(scheme, *stored.values())
        gap, log_eigenvalues = _solve(pair)
        eigenvalues = np.exp(log_eigenvalues)
        log_gain = np.log(pair.drive) - np.log(gap)
        if scheme != "ex":
            log_gain = log_gain + log_eigenvalues
        groups = []
        for role in stored:
            moved = (values + 1j * _TINY * (name == role) for name, values in stored.items())
            other = _oscillator(scheme, *moved)
            # One scalar moves both eigenvalues of its oscillator.
            slopes = _slopes(pair, other, gap, eigenvalues, delayed=scheme == "ex")
            groups.append(layer.group(role, stored[role], *slopes))

        # Both states of an oscillator share the rows of B and the columns of C.
        readin = np.concatenate([layer.pairs("B", (size, None))] * 2)
        readout = np.concatenate([layer.pairs("C", (None, size))] * 2, axis=1)
        inputs, outputs = readin.shape[1], len(readout)
        rows = np.tile(np.arange(size * inputs), 2)
        columns = np.tile(np.arange(outputs * size).reshape(outputs, size), 2).ravel()
        return layer.recurrence(
            log_eigenvalues,
            groups,
            log_gain=log_gain,
            readin=readin,
            readout=readout,
            also=(_BY_DESIGN,) if not damped and scheme.startswith("imex") else (),
            projections=(
                *layer.parts("B", "B", readin.shape, pairs=True, scalar=rows),
                *layer.parts("C", "C", readout.shape, pairs=True, scalar=columns),
                *layer.direct(layer.beside("B", "D"), outputs, inputs),
            ),
        )


def _oscillator(scheme: str, a: _Values, parameter: _Values, g: _Values | None = None) -> _Pair:
    """The oscillator with A and G where the layer's projection takes them.

    Where an argument has an imaginary part of 1e-30, the results' are the derivatives along it.
    """
    step = 1 / (1 + np.exp(-parameter))
    if g is None:
        return _step(scheme, _at_least(a, 0.0), np.zeros(a.shape), step)
    if scheme in ("im", "ex"):
        g = _at_least(g, step * a * (1 if scheme == "ex" else -1))
        a = _at_least(a, g**2 / 4)
        return _step(scheme, a, g, step)
    g = _at_least(g, 0.0)
    sign = 1 if scheme == "imex" else -1
    root = 2 * np.sqrt(1 + sign * step * g)
    square = _at_least(step**2, 1e-6)
    low, high = (2 + sign * step * g - root) / square, (2 + sign * step * g + root) / square
    return _step(scheme, -_at_least(-_at_least(a, low), -high), g, step)


def _at_least(values: _Values, bound: _Values | float) -> _Values:
    """The larger by its real part."""
    return np.where(np.real(values) > np.real(bound), values, bound)


def _solve(pair: _Pair) -> tuple[Complexes, Complexes]:
    """(2, P) λ± - λ∓ and log λ±."""
    discriminant = np.where(
        np.abs(pair.discriminant) < _SMALLEST_DISCRIMINANT,
        -_SMALLEST_DISCRIMINANT,
        pair.discriminant,
    )
    root = np.sqrt(discriminant.astype(np.complex128))
    gap = np.stack([root, -root])
    # A pair of conjugates: |λ|² is the determinant, whose logarithm is exact.
    angle = np.arctan2(gap.imag, pair.trace)
    turning = pair.log_determinant / 2 + 1j * angle
    return gap, np.where(discriminant < 0, turning, log_of_eigenvalues((pair.trace + gap) / 2))


def _slopes(
    pair: _Pair, moved: _Pair, gap: Complexes, eigenvalues: Complexes, *, delayed: bool
) -> tuple[Complexes, Complexes]:
    """(2, P) dλ±/dω and d log γ±/dω from the imaginary parts of the moved oscillator."""
    trace, discriminant, drive = (
        np.imag(each) / _TINY for each in (moved.trace, moved.discriminant, moved.drive)
    )
    along_gap = discriminant / (2 * gap)
    along = (trace + along_gap) / 2
    log_gain = drive / pair.drive - along_gap / gap
    if not delayed:
        smallest = np.finfo(np.float64).tiny
        log_gain = log_gain + along / np.where(np.abs(eigenvalues) < smallest, 1.0, eigenvalues)
    return along, log_gain


STEP = Assumption(
    "dt", "0.19", (), "the largest time step of an oscillator network", tensors=("dt",)
)
CONTROL = Assumption(
    key="stiffness",
    default="30.65",
    meaning="α of UnICORNN, the stiffness that every oscillator has beside its own weight",
    tensors=("alpha",),
)
_RECURRENT, _TIME = "weight_hh", "c_"
_LINEARISED = "the tanh is taken with slope 1; where it is flatter the oscillation is slower"


class UnICORNN(Family):
    """``z' = z - Δ (tanh(w y + V x) + α y)``, ``y' = y + Δ z'``, Δ = dt σ(c), tanh with slope 1.

    A unit's step on (y, z) has determinant 1 and trace 2 - s with ``s = Δ² (w + α)``, so that
    ``log λ = ± 2i arcsin(√s / 2)``: a pair on the unit circle for 0 < s < 4, and otherwise a pair
    λ, 1/λ of reals. dλ/ds = λ² / (1 - λ²), ds/dw = Δ² and ds/dc = 2 s (1 - σ(c)).
    """

    name = "unicornn"
    title = "UnICORNN (undamped oscillators)"
    recognised_by = "weight_hh (H) beside c_ (H)"
    equation = "log λ = ± 2i arcsin(√s / 2), s = (dt σ(c_))² (weight_hh + α)"
    source = "tk-rusch/unicornn; Rusch & Mishra 2021, arXiv 2103.05487"
    assumptions = (STEP, CONTROL)
    layouts = (
        Layout(
            (_RECURRENT, _TIME),
            (*STEP.roles, *CONTROL.roles),
            fits=lambda shapes: shapes[_RECURRENT] == shapes[_TIME] and len(shapes[_TIME]) == 1,
        ),
    )

    def _recurrence(self, layer: Layer) -> Recurrence:
        weight, time = (layer.real(role, (None,)) for role in (_RECURRENT, _TIME))
        step, stiffness = (float(layer.choose(each)) for each in (STEP, CONTROL))
        squared = (step * sigmoid(time)) ** 2
        turn = squared * (weight + stiffness)
        if not np.all(turn * (4 - turn)):  # λ is a double 1 or -1
            what = "a unit does not oscillate: its two eigenvalues coincide"
            remedy = "give the values it was trained with: --assume dt=, --assume stiffness="
            raise misfit(what, layer.names[_RECURRENT], remedy)
        logs = 2j * np.arcsin(np.sqrt(turn.astype(np.complex128)) / 2)
        log_eigenvalues = np.stack([logs, -logs], axis=1)
        eigenvalues = np.exp(log_eigenvalues)
        slope = eigenvalues**2 / (1 - eigenvalues**2)
        unit = np.arange(weight.size)[:, None]  # each scalar moves both eigenvalues of its unit
        along_time = (2 * turn * sigmoid(-time))[:, None]
        return layer.recurrence(
            log_eigenvalues,
            (
                layer.group(_RECURRENT, weight, slope * squared[:, None], scalar=unit),
                layer.group(_TIME, time, slope * along_time, scalar=unit),
            ),
            also=(_LINEARISED,),
            activation="tanh",
            unitary=bool(np.all((turn > 0) & (turn < 4))),
        )


_VECTOR = re.compile(
    r"weight_hh(?P<suffix>(?:_l\d+)?(?:_reverse)?)|vector_u|recurrent_scale|recurrent_kernel"
)
# The names of the input weight beside it, (inputs, H) but for weight_ih.
_READINS = {"recurrent_scale": ("kernel",), "recurrent_kernel": ("input_kernel", "kernel")}
_BENT = ("recurrent_scale", "vector_u")  # haste's and torchrecurrent's, by default with a tanh
CELLS = Lookalikes("ind_rnn", "an IndRNN")


class IndRNN(Family):
    """``h[t+1] = φ(u ∘ h[t] + W x[t+1] + b)``: λ = u, one real number per unit, dλ/du = 1.

    φ is taken with slope 1, which is exact for a ReLU while the unit is positive. Nothing in the
    parametrisation keeps |u| below 1; libraries that clip it do so by a bound that is not stored.
    """

    name = "ind_rnn"
    title = "IndRNN (independently recurrent)"
    recognised_by = (
        "weight_hh, vector_u or recurrent_scale of shape (H); or recurrent_kernel (H) by a kernel"
    )
    equation = "λ = weight_hh"
    source = (
        "indrnn-pytorch, IndRNN_pytorch, haste, torchrecurrent; Li et al. 2018, arXiv 1803.04831"
    )
    assumptions = (ACTIVATION, CELLS.assumption)

    def find(self, tensors: Mapping[str, TensorSpec]) -> list[Match]:
        """As `Family.find`."""
        matches = []
        for name, spec in tensors.items():
            if len(spec.shape) != 1 or not spec.shape[0]:
                continue
            module, last = split_name(name)
            before, parts = name.removesuffix(last), _VECTOR.fullmatch(last)
            if parts is None or f"{before}{_TIME}" in tensors:
                continue
            suffix, roles = parts["suffix"] or "", {"weight_hh": name}
            for weight in _READINS.get(last, ("weight_ih",)):
                readin = f"{before}{weight}{suffix}"
                shape = tensors[readin].shape if readin in tensors else ()
                units = 0 if weight == "weight_ih" else 1
                if len(shape) == 2 and shape[units] == spec.shape[0]:
                    roles.setdefault("weight_ih", readin)
            # A vector under this name alone could be anything's.
            if len(roles) == 2 or last not in ("recurrent_kernel", "vector_u"):
                layer = ".".join(filter(None, (module, suffix.lstrip("_"))))
                matches.append(Match(layer or self.name, roles))
        return matches

    def _recurrence(self, layer: Layer) -> Recurrence:
        values = layer.real("weight_hh", (None,))
        last = split_name(layer.names["weight_hh"])[1]
        activation = layer.choose(ACTIVATION, default="tanh" if last in _BENT else "relu")
        readin: Complexes | None = None
        if "weight_ih" in layer.names:
            weight = layer.real("weight_ih", (None, None))
            from_right = "weight_ih" not in split_name(layer.names["weight_ih"])[1]
            readin = (weight.T if from_right else weight).astype(np.complex128)
        return layer.recurrence(
            log_of_eigenvalues(values),
            (layer.group("weight_hh", values, np.ones(values.size), name=last),),
            readin=readin,
            also=_cell(layer) if last.startswith(_RECURRENT) else (),
            activation=activation,
        )


def _cell(layer: Layer) -> tuple[str, ...]:
    """What is assumed of a cell in torch's names; an error if a tensor beside is another cell's."""
    store, tensor = layer.store, layer.names["weight_hh"]
    inputs = tensor.replace("weight_hh", "weight_ih")
    if inputs in store.tensors and layer.options.assume.get(KEY) != CELLS.own:
        rows, width = (store.tensors[name].shape[:1] for name in (inputs, tensor))
        if rows and 2 * rows[0] == 3 * width[0]:  # two gates and a candidate, as a bistable cell's
            raise CELLS.misfit(store, tensor, inputs)
    return CELLS.choose(layer).sentences
