"""docs/architecture.md: the walk through the code is the one that `memcurse inspect` takes."""

from __future__ import annotations

import re
import sys
from inspect import CO_OPTIMIZED
from pathlib import Path
from types import FrameType
from typing import Any

from memcurse_cli.__main__ import run

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "memcurse_cli"
STEPS = re.findall(r"`([\w/]+\.py)` \(`(\w+)`\)", (ROOT / "docs" / "architecture.md").read_text())


def test_inspect_walks_as_the_page_says(capsys: Any) -> None:
    walked: list[tuple[str, str]] = []

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            path = Path(frame.f_code.co_filename)
            if path.is_relative_to(PACKAGE) and frame.f_code.co_flags & CO_OPTIMIZED:  # no class
                walked.append((str(path.relative_to(PACKAGE)), frame.f_code.co_name))

    sys.setprofile(note)
    try:
        run(["inspect", str(ROOT / "sample_checkpoints" / "lru.safetensors")])
    finally:
        sys.setprofile(None)
    assert "lru" in capsys.readouterr().out
    assert len(STEPS) >= 10
    places = [walked.index(step) for step in STEPS]
    assert places == sorted(places)
