"""`memcurse check`: hold checkpoints or reports to limits, for continuous integration."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from memcurse_cli.commands.defaults import discard_output, settings_of
from memcurse_cli.commands.options import (
    JsonOption,
    OutputOption,
    choose_format,
    emit,
)
from memcurse_cli.commands.request import Request, expanded, load_baseline, with_request
from memcurse_cli.reports.console import say

if TYPE_CHECKING:
    from memcurse_cli.diagnosis.policy import Policy, RuleSet
    from memcurse_cli.diagnosis.settings import SettingsFile
    from memcurse_cli.schema.derived import Check

FORMATS = ("terminal", "json", "github", "sarif", "junit")
VIOLATION = 1


def _limit(metavar: str, meaning: str) -> Any:
    return typer.Option(metavar=metavar, help=meaning, rich_help_panel="Limits")


@with_request()
def check(
    context: typer.Context,
    paths: Annotated[
        list[str],
        typer.Argument(
            metavar="PATH",
            help="Checkpoints, reports of memcurse inspect --json, quoted globs of either, or -.",
        ),
    ],
    max_verdict: Annotated[str | None, _limit("ok|watch", "The worst verdict.")] = None,
    max_step_effect: Annotated[
        float | None, _limit("X", "Of a parameter group; 0.5 is 50 %.")
    ] = None,
    max_relative_sensitivity: Annotated[
        float | None, _limit("κ", "E|dh/dω|² / E|h|² of a group.")
    ] = None,
    max_unstable: Annotated[int | None, _limit("N", "Eigenvalues with |λ| ≥ 1.")] = None,
    max_time_constant: Annotated[float | None, _limit("STEPS", "The longest -1/log|λ|.")] = None,
    min_diagonality: Annotated[float | None, _limit("X", "Of the Hessian, in [1/N, 1].")] = None,
    max_adam_residual: Annotated[
        float | None, _limit("X", "Curvature Adam leaves, in [1, N].")
    ] = None,
    max_rounding_error: Annotated[
        list[str] | None, _limit("DTYPE=X", "Of the state, as bfloat16=0.1; repeatable.")
    ] = None,
    select: Annotated[
        list[str] | None, _limit("CODE,…", "Findings that fail, by code or its beginning.")
    ] = None,
    forbid: Annotated[list[str] | None, _limit("CODE,…", "More findings that fail.")] = None,
    ignore: Annotated[list[str] | None, _limit("CODE,…", "Findings that do not.")] = None,
    allow_missing: Annotated[
        bool | None,
        typer.Option(
            "--allow-missing/--no-allow-missing",
            help="Let a figure pass that a limit needs and the report lacks.",
        ),
    ] = None,
    baseline: Annotated[
        Path | None,
        typer.Option(
            metavar="REPORT.json",
            help="Fail only on what is worse than in this earlier report.",
        ),
    ] = None,
    tolerance: Annotated[
        float | None,
        typer.Option(metavar="X", help="By how much a figure may be worse.", show_default="0.05"),
    ] = None,
    output_format: Annotated[
        str | None, typer.Option("--format", metavar="NAME", help=f"One of {', '.join(FORMATS)}.")
    ] = None,
    as_json: JsonOption = False,
    output: OutputOption = None,
    exit_zero: Annotated[
        bool, typer.Option("--exit-zero", help="End with 0 also where something fails.")
    ] = False,
    *,
    request: Request,
) -> None:
    """Hold checkpoints to limits; exit with 1 if one is broken.

    Without a limit, cursed layers and findings of severity error fail. Limits
    also stand in memcurse.toml, or in pyproject.toml under tool.memcurse.check.

    Example: memcurse inspect model.safetensors --json | memcurse check -
    """
    from memcurse_cli.diagnosis.check import TOLERANCE
    from memcurse_cli.diagnosis.check import check as hold
    from memcurse_cli.diagnosis.policy import TOLERANCE as TOLERANCE_KEY
    from memcurse_cli.diagnosis.policy import from_options, positive

    chosen = choose_format(output_format, FORMATS, as_json=as_json)
    file = settings_of(context)
    options = from_options(
        {
            "max-step-effect": max_step_effect,
            "max-relative-sensitivity": max_relative_sensitivity,
            "max-unstable": max_unstable,
            "max-time-constant": max_time_constant,
            "min-diagonality": min_diagonality,
            "max-adam-residual": max_adam_residual,
        },
        verdict=max_verdict,
        rounding=max_rounding_error or (),
        select=select,
        forbid=forbid,
        ignore=ignore,
    )
    policy = _policy(file, options, allow_missing)
    if tolerance is None and file is not None:
        tolerance = positive(file, TOLERANCE_KEY)

    earlier = None if baseline is None else load_baseline(baseline)
    reports = [report for path in expanded(paths) for report in request.reports(path, context)]
    if not request.quiet:
        _warn(policy.unmatched(reports))
    outcome = hold(
        reports,
        policy,
        baseline=earlier,
        tolerance=TOLERANCE if tolerance is None else tolerance,
    )
    try:
        emit(_text(outcome, chosen, output), output)
    except BrokenPipeError:  # whoever has read enough still wants to know whether it passed
        discard_output()
    if not outcome.passed and not exit_zero:
        raise typer.Exit(VIOLATION)


def _policy(file: SettingsFile | None, options: RuleSet, allow_missing: bool | None) -> Policy:
    from memcurse_cli.diagnosis.policy import ALLOW_MISSING, Policy, boolean, rule_sets

    configured = () if file is None else rule_sets(file)
    for rules in (*configured, options):
        codes = (*(rules.select or ()), *rules.forbid, *rules.ignore)
        if codes:
            from memcurse_cli.diagnosis.rules import require_codes

            require_codes(codes, rules.origin)
    if allow_missing is None and file is not None:
        allow_missing = boolean(file, ALLOW_MISSING)
    return Policy((*configured, options), allow_missing=bool(allow_missing))


def _warn(unmatched: Iterable[RuleSet]) -> None:
    for rules in unmatched:
        wanted = [f"layers {', '.join(rules.layers)}"] if rules.layers else []
        wanted += [f"families {', '.join(rules.families)}"] if rules.families else []
        say(f"memcurse: warning: {rules.origin}: matches no layer ({'; '.join(wanted)})")


def _text(outcome: Check, chosen: str, output: Path | None) -> str:
    """The outcome in one of the formats."""
    if chosen == "json":
        from memcurse_cli.schema.json_codec import to_text as json_text

        return json_text(outcome)
    if chosen == "sarif":
        from memcurse_cli.diagnosis.rules import RULES
        from memcurse_cli.reports.check import to_sarif

        return to_sarif(outcome, RULES.values())
    if chosen == "junit":
        from memcurse_cli.reports.check import to_junit

        return to_junit(outcome)
    if chosen == "github":
        from memcurse_cli.reports.check import to_github

        return to_github(outcome, file=output)
    from memcurse_cli.reports.check import to_text

    return to_text(outcome, file=output)
