"""`memcurse inspect`, `hessian` and `compare`: reports on checkpoints."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from msgspec.structs import replace

from memcurse_cli.commands.options import (
    EXECUTOR,
    JSON,
    OUTPUT,
    argument,
    check_figure,
    choose_format,
    emit,
    flag,
    option,
    show,
    write_file,
)
from memcurse_cli.commands.request import STDIN, Request, expanded, with_request
from memcurse_cli.errors import CheckpointError, UsageError
from memcurse_cli.reports.console import text_of
from memcurse_cli.schema.json_codec import to_text

if TYPE_CHECKING:
    from memcurse_cli.schema.report import Report

FORMATS = ("terminal", "json", "html")
FORMAT = option(
    "|".join(FORMATS), "What to print; html is one file with charts, for a browser.", "--format"
)


@with_request()
def inspect(
    request: Request,
    paths: list[str] = argument("PATH", "Checkpoints: files, directories, quoted globs, URLs."),
    values: bool = flag("--values", "Put every eigenvalue into the JSON."),
    gates: bool = flag(
        "--gates", "Read the weights of input-dependent gates: how far they move λ."
    ),
    input_scale: float | None = option(
        "S", "The RMS of each component of what the gates see, 1 by default; implies --gates."
    ),
    rewrite_as: list[str] | None = option(
        "NAME",
        "Show the same eigenvalues as lru, polar, real-imaginary, optimal or s4 too; repeatable.",
        "--as",
    ),
    normalize: str | None = option(
        "own|coupled", "Show them with γ = √(1-|λ|²) too: its own parameter, or computed from λ."
    ),
    learning_rates: bool = flag(
        "--learning-rates", "Derive rates for the recurrent groups, relative to --lr."
    ),
    optimizer: str | None = option(
        "FILE", "Read Adam's state from here, where the checkpoint does not hold it."
    ),
    full: bool = flag("--full", "Print every section of the report."),
    section: list[str] | None = option(
        "NAME", "Print this section alone, as layers, parameters, hessian; repeatable."
    ),
    explain: bool = flag("--explain", "Explain the columns of --full or of its sections."),
    show_all: bool = flag("--all", "Show every layer, with --full or in its sections."),
    html: Path | None = option("FILE", "Write the page for a browser into FILE too."),
    report_format: str | None = FORMAT,
    as_json: bool = JSON,
    plot: Path | None = option(
        "FILE", "Draw spectrum and sensitivities into a .svg, .png or .pdf too."
    ),
    output: Path | None = OUTPUT,
    jobs: int | None = option(
        "N", "Read several checkpoints in so many processes.", "--jobs", "-j", min=1
    ),
    executor: str | None = EXECUTOR,
) -> None:
    """Report on every recurrent layer of a checkpoint.

    Example: memcurse inspect model.safetensors --horizon 1024 --lr 3e-4
    """
    chosen = choose_format(report_format, FORMATS, as_json=as_json)
    figure_format = check_figure(plot)
    if section:
        from memcurse_cli.reports.terminal.report import check_sections

        check_sections(section)
    asked = {
        "gates": gates or input_scale is not None,
        "simulated": bool(request.simulate),
        "hidden": request.spectra,
        "operating-point": request.spectra,
        "what-if": bool(rewrite_as) or normalize is not None,
        "learning-rates": learning_rates,
        "adam": optimizer is not None,
    }
    wanted = {**asked, **dict.fromkeys(section or (), True)}
    if wanted["hidden"] or wanted["operating-point"]:
        request = replace(request, spectra=True)
    drawn = chosen == "html" or html is not None
    named = expanded(paths)
    how = {
        "values": values or plot is not None or drawn,
        "gates": wanted["gates"],
        "input_scale": input_scale,
        "rewrite_as": tuple(rewrite_as or ()),
        "normalize": normalize,
        "learning_rates": wanted["learning-rates"],
        "optimizer": optimizer,
        "pictures": drawn,
    }
    if jobs is None and executor is None:
        reports = [request.inspect(path, **how) for path in named]
    else:
        reports = _side_by_side(named, executor, jobs, {**request.arguments(), **how})
    if plot is not None:
        from memcurse_cli.reports.figures import spectrum_figure

        write_file(plot, spectrum_figure(reports, figure_format))
    if drawn:
        from memcurse_cli.reports.html.report import to_html

        browser_page = to_html(reports)
        if html is not None:
            write_file(html, browser_page.encode())
    if chosen == "json":
        emit(to_text(*reports, values=values), output)
    elif chosen == "html":
        emit(browser_page, output)
    else:
        from memcurse_cli.reports.terminal import page
        from memcurse_cli.reports.terminal.report import render

        sections = section or [name for name, given in asked.items() if given]
        whole = not section and (full or (not sections and (explain or show_all)))
        pages = []
        if not section and (len(reports) > 1 or not whole):
            pages.append(page.render(*reports))
        if whole or sections:
            pages += [
                render(
                    report,
                    sections=() if whole else sections,
                    titled=len(reports) > 1,
                    all_layers=show_all,
                    explain=explain,
                )
                for report in reports
            ]
        emit("\n".join(text_of(lines, output) for lines in pages), output)


def _side_by_side(
    paths: list[str], executor: str | None, jobs: int | None, options: dict[str, Any]
) -> list[Report]:
    """The reports of an executor, or of so many processes; the first error ends it."""
    from memcurse_cli.tracking.executors import Reading, open_executor

    reading = replace(Reading.of(**options), whole=True)
    found: dict[str, Report] = {}
    with open_executor(executor, jobs) as run:
        for path, outcome in run(paths, reading):
            if outcome.report is None:
                raise CheckpointError(str(outcome.error), remedy="")
            found[path] = outcome.report
    return [found[path] for path in paths]


@with_request("spectra", "simulate")
def simulate(
    request: Request,
    path: str = argument("PATH", "A checkpoint: a file, directory or URL."),
    inputs: str | None = option(
        "FILE", "Run it on these (batch, time, features): .npy, .npz or .safetensors."
    ),
    embeddings: str | None = option(
        "TENSOR", "Take --inputs as (batch, time) tokens, rows of this tensor."
    ),
    as_json: bool = JSON,
    output: Path | None = OUTPUT,
) -> None:
    """Run every layer: memory and step effects, beside theory.

    Inputs are drawn with the statistics that --autocorrelation and its like
    declare, unless --inputs gives them; the same call gives the same figures.

    Example: memcurse simulate model.safetensors --horizon 512
    """
    from memcurse_cli.checkpoints.series import read_series
    from memcurse_cli.reports.terminal.report import render

    given = None if inputs is None else read_series(inputs)
    report = request.inspect(path, simulate=True, inputs=given, embeddings=embeddings)
    if as_json:
        emit(to_text(report), output)
    else:
        emit(text_of(render(report, sections=["simulated"]), output), output)


@with_request("learning_rate", "step_limit", "state_error", "spectra", "simulate")
def hessian(
    request: Request,
    path: str = argument("PATH", "A checkpoint: a file, directory or URL."),
    correlation: bool = flag("--correlation", "Draw |H_ab|/√(H_aa H_bb) rather than |H_ab|."),
    plot: Path | None = option(
        "FILE.png|svg|pdf", "Draw heat map, eigenvectors and spectrum of every layer into FILE."
    ),
    as_json: bool = JSON,
    output: Path | None = OUTPUT,
) -> None:
    """Which parameters the loss couples, and what Adam can mend.

    Example: memcurse hessian model.safetensors --plot hessian.svg
    """
    from memcurse_cli.diagnosis.inspection import hessian as take_hessian

    figure_format = check_figure(plot)
    report = request.asked_of(take_hessian, path)
    if plot is not None:
        from memcurse_cli.reports.figures import hessian_figure

        write_file(plot, hessian_figure(report, figure_format, correlation=correlation))
    chosen = choose_format(as_json=as_json)
    show(report, "hessian", chosen, output, correlation=correlation)


@with_request("spectra")
def compare(
    context: typer.Context,
    request: Request,
    before: str = argument("A", "A checkpoint, a report's JSON, or - for stdin."),
    after: str = argument("B", "The same, to compare with."),
    values: bool = flag("--values", "Put every pair of eigenvalues into the JSON."),
    output_format: str | None = FORMAT,
    as_json: bool = JSON,
    output: Path | None = OUTPUT,
) -> None:
    """Compare two checkpoints layer by layer: what moved.

    Example: memcurse compare step_1000.safetensors step_2000.safetensors
    """
    from memcurse_cli.diagnosis.comparison import compare as compare_reports

    chosen = choose_format(output_format, FORMATS, as_json=as_json)
    if before == after == STDIN:
        raise UsageError(
            "only one of the two can come from standard input",
            where=STDIN,
            remedy="write the other to a file: memcurse inspect … --json --values --output FILE",
        )

    def read(path: str) -> Report:
        reports = request.reports(path, context, values=True)
        if len(reports) != 1:
            raise UsageError(
                f"holds {len(reports)} reports",
                where="standard input" if path == STDIN else path,
                remedy="give two files of one report each",
            )
        return reports[0]

    made = compare_reports(read(before), read(after), values=values or chosen == "html")
    show(made, "comparison", chosen, output)
