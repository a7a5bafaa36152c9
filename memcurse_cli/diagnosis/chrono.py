"""The biases that start sigmoid gates at the memories of a prediction."""

from __future__ import annotations

from dataclasses import dataclass

from memcurse_cli.diagnosis.prediction import Prediction
from memcurse_cli.theory.chrono import chrono_bias, chrono_steps, printed_chrono_bias

LEAST = 1.5
"""The shortest memory in steps that a gate is started at."""


@dataclass(frozen=True)
class ChronoBiases:
    """The ends of a range of memories, and of the biases that Chrono initialisation gives them.

    Attributes:
        time_constants: τ of the shortest and of the longest.
        steps: their T = 1/(1 - λ).
        biases: ``log(T - 1)`` of both, for λ = 1 - 1/T.
        printed: ``log T`` of both, for λ = T/(1+T).
    """

    time_constants: tuple[float, float]
    steps: tuple[float, float]
    biases: tuple[float, float]
    printed: tuple[float, float]


def chrono_biases(prediction: Prediction) -> ChronoBiases | None:
    """Those of a sigmoid gate's prediction, or None for others and where nothing is remembered."""
    memories = [
        row.time_constant
        for row in prediction.rows
        if row.time_constant and row.time_constant > LEAST
    ]
    if prediction.parametrization != "sigmoid-gate" or not memories:
        return None
    memory = (min(memories), max(memories))
    ends = (chrono_steps(memory[0]), chrono_steps(memory[1]))
    exact = (chrono_bias(ends[0]), chrono_bias(ends[1]))
    printed = (printed_chrono_bias(ends[0]), printed_chrono_bias(ends[1]))
    return ChronoBiases(memory, ends, exact, printed)
