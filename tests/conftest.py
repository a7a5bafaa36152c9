"""Fixtures that every test may use, and how hypothesis draws."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
import shared
from hypothesis import settings

# Commands in processes of their own start twice as fast from bytecode that is kept, as a user's
# do, so it is kept whatever the environment says.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# The same examples in every run, so that what passes here passes for everyone;
# `pytest --hypothesis-profile=search` draws new ones. No test is timed.
settings.register_profile("repeatable", derandomize=True, deadline=None, print_blob=True)
settings.register_profile("search", deadline=None, print_blob=True)
settings.load_profile("repeatable")


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real checkpoints with oracles; skips where it is absent."""
    if not shared.available():
        pytest.skip(shared.REASON)
    return shared.SHARED_DATA


@pytest.fixture(scope="session")
def zoo(shared_data: Path) -> Path:
    """Small checkpoints that the real libraries wrote."""
    return shared_data / "zoo"


@pytest.fixture(scope="session")
def trained(shared_data: Path) -> Path:
    """Trained checkpoints from public repositories."""
    return shared_data / "trained"


@pytest.fixture(scope="session")
def paper(shared_data: Path) -> Path:
    """Numbers from the papers' own code."""
    return shared_data / "paper"
