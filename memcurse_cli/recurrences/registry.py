"""The families that are read, the more specific first. A new family is one line."""

from __future__ import annotations

from memcurse_cli.recurrences.family import Family
from memcurse_cli.recurrences.lstm import LSTM

FAMILIES: tuple[Family, ...] = (LSTM(),)
