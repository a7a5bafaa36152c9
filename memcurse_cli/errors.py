"""The one error that a user sees: what is wrong, where, and what to do about it."""

from __future__ import annotations

COPY = "copy or download it again"


class MemcurseError(Exception):
    """Bad usage or an input that cannot be read: one line on stderr, exit code 2.

    ``what`` is wrong is a clause without a final full stop, ``where`` the file, tensor or option
    that it was found in, ``remedy`` what the user can do about it.
    """

    def __init__(self, what: str, *, where: str = "", remedy: str = "") -> None:
        self.what = what
        self.where = where
        self.remedy = remedy
        super().__init__(str(self))

    def __str__(self) -> str:
        where = f"{self.where}: " if self.where else ""
        remedy = f"; {self.remedy}" if self.remedy else ""
        return f"{where}{self.what}{remedy}"


class CheckpointError(MemcurseError):
    """A file that is missing, damaged, unsafe to open, or not a checkpoint."""

    def __init__(self, what: str, *, where: str = "", remedy: str = COPY) -> None:
        super().__init__(what, where=where, remedy=remedy)


class TensorError(MemcurseError):
    """A tensor that cannot be used (NaN, inf, shape): the other layers are still reported."""


class NoRecurrenceError(MemcurseError):
    """A checkpoint in which no family recognises a recurrent layer."""


class UsageError(MemcurseError):
    """An option or argument outside its domain."""
