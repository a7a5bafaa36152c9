"""Diagonal layers of every shape that the Hessian tells apart."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from theory.impulse_hessian import Layer, group, projection

from memcurse_cli.theory.sensitivity import ParameterJacobian, ProjectionJacobian


def _random(seed: int, size: int, radius: tuple[float, float]) -> tuple[np.random.Generator, tuple]:
    generator = np.random.default_rng(seed)
    logs = np.log(generator.uniform(*radius, size)) + 1j * generator.uniform(-np.pi, np.pi, size)
    gain = generator.normal(size=size) * 0.3 + 1j * generator.normal(size=size)
    return generator, (logs, gain)


def _complex(generator: np.random.Generator, *shape: int) -> np.ndarray:
    return generator.normal(size=shape) + 1j * generator.normal(size=shape)


def polar(radius: tuple[float, float] = (0.3, 0.9)) -> Layer:
    """Modulus and angle, several inputs and outputs."""
    generator, (logs, _) = _random(0, 5, radius)
    eigenvalues = np.exp(logs)
    groups = (group(np.exp(1j * logs.imag)), group(1j * eigenvalues))
    readin, readout = _complex(generator, 5, 3), _complex(generator, 2, 5)
    return Layer(logs, np.zeros(5, complex), groups, readin, readout)


def conjugate_pairs(radius: tuple[float, float] = (0.3, 0.9)) -> Layer:
    """One of each pair is stored, and y = 2 Re[C h]."""
    generator, (logs, _) = _random(1, 4, radius)
    ones = np.ones(4)
    readin, readout = _complex(generator, 4, 2), _complex(generator, 3, 4)
    groups = (group(ones), group(1j * ones))
    return Layer(logs, np.zeros(4, complex), groups, readin, readout, conjugate_pairs=True)


def coupled(radius: tuple[float, float] = (0.3, 0.9)) -> Layer:
    """Scalars that move λ and γ, one that moves γ alone, and one that moves every eigenvalue."""
    generator, (logs, gain) = _random(2, 4, radius)
    every = np.arange(4)
    tied = ParameterJacobian(
        1, np.zeros(4, np.intp), every, np.exp(logs) * logs, _complex(generator, 4)
    )
    groups = (
        group(_complex(generator, 4), _complex(generator, 4)),
        group(np.zeros(4), np.ones(4)),
        tied,
    )
    return Layer(logs, gain, groups, _complex(generator, 4, 1), _complex(generator, 1, 4))


def channels(radius: tuple[float, float] = (0.3, 0.9)) -> Layer:
    """Three single-input channels of 2, 3 and 2 states, each with a step size of its own."""
    generator, (logs, gain) = _random(3, 7, radius)
    channel = np.array([0, 0, 1, 1, 1, 2, 2])
    step = ParameterJacobian(3, channel, np.arange(7), np.exp(logs) * logs, np.ones(7, complex))
    groups = (step, group(_complex(generator, 7)))
    readin, readout = _complex(generator, 7, 1), _complex(generator, 1, 7)
    return Layer(logs, gain, groups, readin, readout, channel, conjugate_pairs=True)


def shared_between_channels(radius: tuple[float, float] = (0.3, 0.9)) -> Layer:
    """Channels 0 and 2 have one A between them; channel 1 stands alone."""
    generator, (logs, gain) = _random(4, 6, radius)
    channel = np.array([0, 0, 1, 1, 2, 2])
    shared = ParameterJacobian(
        4, np.array([0, 1, 2, 3, 0, 1]), np.arange(6), _complex(generator, 6), None
    )
    readin, readout = _complex(generator, 6, 1), _complex(generator, 1, 6)
    return Layer(logs, gain, (shared,), readin, readout, channel)


def real_axis(radius: tuple[float, float] = (0.3, 0.9)) -> Layer:
    """λ = 0, negative and repeated real eigenvalues."""
    generator = np.random.default_rng(5)
    with np.errstate(divide="ignore"):
        logs = np.log(np.array([0, -radius[1], radius[0], radius[1], radius[1]], complex))
    groups = (group(np.ones(5)),)
    readin, readout = _complex(generator, 5, 2), _complex(generator, 2, 5)
    return Layer(logs, np.zeros(5, complex), groups, readin, readout)


def tied_readin(radius: tuple[float, float] = (0.3, 0.9)) -> Layer:
    """Three channels that share one real B of two elements; channel 1 has no C."""
    layer = shared_between_channels(radius)
    row, column = np.indices(layer.readin.shape).reshape(2, -1)
    shared = ProjectionJacobian(2, np.arange(6) % 2, "B", row, column, np.ones(6, complex))
    at = np.array([0, 1, 4, 5])
    readout = ProjectionJacobian(4, np.arange(4), "C", np.zeros(4, int), at, np.full(4, 1j))
    return replace(layer, projections=(shared, readout))


def with_projections(make: Callable[..., Layer]) -> Callable[..., Layer]:
    """The same layer with every element of B, C and D, real and imaginary, on its own."""

    def every(radius: tuple[float, float] = (0.3, 0.9)) -> Layer:
        layer = make(radius)
        outputs, inputs = len(layer.readout), layer.readin.shape[1]
        columns = inputs if layer.channel is None else int(layer.channel.max()) + 1
        parts = (
            projection("B", layer.readin.shape, 1j),
            projection("B", layer.readin.shape),
            projection("C", layer.readout.shape),
            projection("C", layer.readout.shape, 2j),
            projection("D", (outputs, columns)),
        )
        return replace(layer, projections=parts)

    every.__name__ = make.__name__
    return every


LAYERS = (
    *map(with_projections, (polar, conjugate_pairs, coupled, channels)),
    with_projections(shared_between_channels),
    with_projections(real_axis),
    shared_between_channels,
    tied_readin,
)
