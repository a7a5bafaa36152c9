"""The registry of rules: every `Rule` that a module of findings defines."""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache

from memcurse_cli.checkpoints.untrusted.names import shown_place
from memcurse_cli.diagnosis import findings
from memcurse_cli.diagnosis.findings.facts import Rule
from memcurse_cli.errors import UsageError


@cache
def all_rules() -> tuple[Rule, ...]:
    """Every rule once, in the order of the codes."""
    rules = {
        rule
        for module in pkgutil.iter_modules(findings.__path__, f"{findings.__name__}.")
        for rule in vars(importlib.import_module(module.name)).values()
        if isinstance(rule, Rule)
    }
    return tuple(sorted(rules, key=lambda rule: rule.code))


def find_rules(prefix: str) -> tuple[Rule, ...]:
    """The rules whose code is, or begins with, a text in upper or lower case.

    Raises:
        UsageError: there is none.
    """
    found = tuple(rule for rule in all_rules() if rule.code.startswith(prefix.upper()))
    if found and prefix:
        return found
    near = [rule.code for rule in all_rules() if rule.code[:3] == prefix.upper()[:3]]
    raise UsageError(
        f"{shown_place(prefix)!r} is not the code of a finding",
        where="rule",
        remedy=f"known are {', '.join(near or [rule.code for rule in all_rules()])}",
    )


def require_codes(prefixes: tuple[str, ...], where: str) -> None:
    """Refuse a prefix that no code begins with, which would silently match nothing.

    Raises:
        UsageError: there is one.
    """
    for prefix in prefixes:
        if not any(rule.code.startswith(prefix) for rule in all_rules()):
            raise UsageError(
                f"no finding has a code that begins with {prefix}",
                where=where,
                remedy="see memcurse rule for the codes",
            )
