"""What a training run is made of, and how a checkpoint remembers it; it needs no JAX."""

from __future__ import annotations

from enum import StrEnum
from math import isfinite

from msgspec import Struct

from memcurse_cli.errors import UsageError

TASK = "linear teacher-student"
PREFIX = "memcurse."


class NetworkName(StrEnum):
    """The networks that can be trained."""

    DENSE_LINEAR_RNN = "dense-linear-rnn"
    COMPLEX_DIAGONAL_RNN = "complex-diagonal-rnn"
    LRU = "lru"
    GRU = "gru"


class Precision(StrEnum):
    """The floating-point type of parameters, inputs and optimizer state."""

    FLOAT32 = "float32"
    FLOAT64 = "float64"


class Recipe(Struct, frozen=True):
    """The learning rate, steps and batch that the sample of a network was trained with."""

    learning_rate: float
    steps: int
    batch: int


RECIPES = {
    NetworkName.DENSE_LINEAR_RNN: Recipe(5e-5, 10_000, 128),
    NetworkName.COMPLEX_DIAGONAL_RNN: Recipe(3e-3, 10_000, 128),
    NetworkName.LRU: Recipe(3e-2, 10_000, 128),
    NetworkName.GRU: Recipe(2e-3, 15_000, 32),
}


class TrainingSettings(Struct, frozen=True):
    """Everything that determines a training run.

    Raises UsageError: a modulus outside [0, 1) or a learning rate that is not a positive number.
    """

    network: NetworkName  # the student
    units: int  # hidden units of the student
    teacher_units: int  # hidden units of the teacher
    modulus: float  # ν, the smallest |λ| of the teacher, in [0, 1)
    initial_modulus: float  # the smallest |λ| of the student before training; a GRU does not use it
    horizon: int  # steps T of every sequence
    steps: int  # optimizer steps
    batch: int  # sequences per optimizer step
    learning_rate: float  # Adam's rate at the first step; a cosine takes it to zero at the last
    seed: int  # of the teacher, the initial parameters and the inputs
    dtype: Precision  # the type that the student is trained and stored in

    def __post_init__(self) -> None:
        for option, modulus in (
            ("--modulus", self.modulus),
            ("--initial-modulus", self.initial_modulus),
        ):
            if not 0 <= modulus < 1:
                what = f"{modulus:g} is not a smallest modulus of stable eigenvalues"
                remedy = "take a number from 0 up to, but without, 1"
                raise UsageError(what, where=option, remedy=remedy)
        if not (self.learning_rate > 0 and isfinite(self.learning_rate)):
            what = f"{self.learning_rate:g} is not a learning rate"
            remedy = "take a positive number"
            raise UsageError(what, where="--learning-rate", remedy=remedy)

    def metadata(self) -> dict[str, str]:
        """The settings as strings, for a checkpoint's metadata; floats keep every digit."""
        values = {PREFIX + name: str(getattr(self, name)) for name in self.__struct_fields__}
        return {PREFIX + "task": TASK, **values}
