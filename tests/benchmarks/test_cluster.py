"""What a run costs on a cluster: the page says what was measured, of which nothing was lost."""

from __future__ import annotations

import json

from benchmarks.cluster import CHECKPOINTS, PAGE, RESULTS, table


def test_the_page_has_what_was_measured_and_nothing_was_lost() -> None:
    result = json.loads(RESULTS.read_text(encoding="utf-8"))
    assert result["checkpoints"] == CHECKPOINTS
    assert result["a worker killed, nothing lost"]
    assert result["repeated, nothing lost"]
    assert table(result) in PAGE.read_text(encoding="utf-8")
