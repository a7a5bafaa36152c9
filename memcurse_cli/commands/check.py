"""`memcurse check`: hold checkpoints or reports to limits, for continuous integration."""

from __future__ import annotations

import os
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from memcurse_cli.checkpoints.untrusted.names import MAX_JSON_BYTES, shown_place
from memcurse_cli.checkpoints.untrusted.source import read_bounded
from memcurse_cli.commands.defaults import settings_of
from memcurse_cli.commands.options import JSON, OUTPUT, argument, choose_format, emit, flag, option
from memcurse_cli.commands.request import Request, expanded, load_reports, with_request
from memcurse_cli.reports.console import say

if TYPE_CHECKING:
    from memcurse_cli.schema.derived import Check

FORMATS = ("terminal", "json", "github", "markdown", "sarif", "junit")
VIOLATION = 1
SUMMARY = "GITHUB_STEP_SUMMARY"

_limit = partial(option, rich_help_panel="Limits")


@with_request()
def check(
    context: typer.Context,
    paths: list[str] = argument(
        "PATH", "Checkpoints, reports of memcurse inspect --json, quoted globs of either, or -."
    ),
    max_verdict: str | None = _limit("ok|watch", "The worst verdict."),
    min_memory: float | None = _limit("STEPS", "The longest of the layers'."),
    max_time_constant: float | None = _limit("STEPS", "The memory of a layer."),
    max_step_effect: float | None = _limit("X", "Of a group; 0.5 is 50 %."),
    max_relative_sensitivity: float | None = _limit("κ", "E|dh/dω|² / E|h|²."),
    max_unstable: int | None = _limit("N", "Eigenvalues with |λ| ≥ 1."),
    min_diagonality: float | None = _limit("X", "Of the Hessian, in [1/N, 1]."),
    max_adam_residual: float | None = _limit("X", "What Adam leaves, in [1, N]."),
    max_rounding_error: list[str] | None = _limit(
        "DTYPE=X", "Of the state, its parameters stored so, as bfloat16=0.1; repeatable."
    ),
    max_state_error: list[str] | None = _limit(
        "DTYPE=X", "Of the state kept so from step to step, as float16=0.01; repeatable."
    ),
    select: list[str] | None = _limit("CODE,…", "Findings that fail."),
    forbid: list[str] | None = _limit("CODE,…", "More findings that fail."),
    ignore: list[str] | None = _limit("CODE,…", "Findings that do not."),
    fail_on: str | None = _limit("not-judged", "Fail what was not judged."),
    allow_missing: bool | None = typer.Option(
        None, help="Let a figure pass that a limit needs and the report lacks."
    ),
    baseline: Path | None = option("REPORT.json", "Fail only on what is worse than in this one."),
    tolerance: float | None = option(
        "X", "By how much a figure may be worse.", show_default="0.05"
    ),
    output_format: str | None = option("NAME", f"One of {', '.join(FORMATS)}.", "--format"),
    as_json: bool = JSON,
    output: Path | None = OUTPUT,
    exit_zero: bool = flag("--exit-zero", "End with 0 also where something fails."),
    *,
    request: Request,
) -> None:
    """Hold checkpoints to limits; exit with 1 if one is broken.

    Without a limit, cursed layers and findings of severity error fail. Limits
    also stand in memcurse.toml, or in pyproject.toml under tool.memcurse.check.

    Example: memcurse inspect model.safetensors --json | memcurse check -
    """
    from memcurse_cli.diagnosis.check import check as hold
    from memcurse_cli.diagnosis.policy import policy_of

    chosen = choose_format(output_format, FORMATS, as_json=as_json)
    # Every limit is an option under its key in a settings file.
    options = {name.replace("_", "-"): given for name, given in context.params.items()}
    policy = policy_of(settings_of(context), options)
    earlier = None
    if baseline is not None:
        text = read_bounded(baseline, MAX_JSON_BYTES)
        earlier = load_reports(text, shown_place(baseline))
    reports = [report for path in expanded(paths) for report in request.reports(path, context)]
    for rules in () if request.quiet else policy.unmatched(reports):
        say(f"memcurse: warning: {rules.origin}: matches no layer ({rules.scope})")
    outcome = hold(reports, policy, baseline=earlier)
    with suppress(BrokenPipeError):  # whoever has read enough wants to know whether it passed
        emit(_text(outcome, chosen, output), output)
    if chosen == "github":
        _add_summary(outcome)
    if not outcome.passed and not exit_zero:
        raise typer.Exit(VIOLATION)


def _add_summary(outcome: Check) -> None:
    """Add the Markdown to the file that a GitHub runner shows as the summary of the job."""
    path = os.environ.get(SUMMARY)
    if path:
        from memcurse_cli.reports.check import to_markdown

        try:
            with open(path, "a", encoding="utf-8") as file:
                file.write(to_markdown(outcome, file=Path(path)) + "\n")
        except OSError as error:
            say(f"memcurse: warning: {SUMMARY}: cannot be written: {error.strerror or error}")


def _text(outcome: Check, chosen: str, output: Path | None) -> str:
    """The outcome in one of the formats."""
    from memcurse_cli.reports import check as formats
    from memcurse_cli.schema import json_codec

    if chosen == "json":
        return json_codec.to_text(outcome)
    alone = {"sarif": formats.to_sarif, "junit": formats.to_junit}
    if chosen in alone:
        return alone[chosen](outcome)
    write = {"github": formats.to_github, "markdown": formats.to_markdown}
    return write.get(chosen, formats.to_text)(outcome, file=output)
