"""docs/findings.md says of every rule what `memcurse rule` says.

`MEMCURSE_UPDATE_README=1 pytest tests/docs/test_findings_page.py` writes the page anew.
"""

from __future__ import annotations

import os
from pathlib import Path

from memcurse_cli.diagnosis.findings.facts import Rule
from memcurse_cli.diagnosis.findings.rules import all_rules

PAGE = Path(__file__).resolve().parents[2] / "docs" / "findings.md"
GROUPS = {
    "MC1": "Dynamics",
    "MC2": "Sensitivity",
    "MC3": "Hessian",
    "MC4": "Precision",
    "MC5": "Assumptions",
}
HEAD = """\
# Findings

Every finding has a code that never changes its meaning. `memcurse rule` lists them, and with a code
behind it explains one; this page says the same. Its severity is info, warning or error; errors fail
the check command where no limits are set, and [check.md](check.md) says how to select, forbid and
ignore codes.
"""


def section(rule: Rule) -> str:
    """What the page says of one rule."""
    return "\n\n".join(
        [
            f"### {rule.code}: {rule.title}",
            rule.what,
            rule.why,
            f"    {rule.equation}",
            rule.change,
            f"Source: {rule.source}.",
        ]
    )


def page() -> str:
    """The whole page."""
    parts = [HEAD.rstrip()]
    for prefix, title in GROUPS.items():
        parts.append(f"## {prefix}xx: {title}")
        parts += [section(rule) for rule in all_rules() if rule.code.startswith(prefix)]
    return "\n\n".join(parts) + "\n"


def test_the_page_says_what_the_rules_say() -> None:
    if os.environ.get("MEMCURSE_UPDATE_README"):
        PAGE.write_text(page(), encoding="utf-8")
    assert PAGE.read_text(encoding="utf-8") == page()
