"""Commands that read no checkpoint: the theory alone, and what memcurse knows."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from msgspec import convert
from msgspec.structs import replace

from memcurse_cli.checkpoints.untrusted.names import shown_place
from memcurse_cli.commands.defaults import (
    FORMAT,
    OWN_TABLE,
    entries,
    everything,
    settings_of,
    shown,
    variable_set,
    variables,
)
from memcurse_cli.commands.options import (
    AUTOCORRELATION,
    HORIZON,
    JSON,
    ONE_RHO,
    OUTPUT,
    READOUT,
    argument,
    check_figure,
    choose_format,
    emit,
    emit_page,
    flag,
    option,
    show,
    write_file,
)
from memcurse_cli.diagnosis.settings import SettingsFile
from memcurse_cli.schema.json_codec import to_text

if TYPE_CHECKING:
    from memcurse_cli.schema.listings import SettingDocument


STEP_SIZE = option("Δ", "The step size of s4.", default=0.01)


def _asked(context: typer.Context) -> dict[str, Any]:
    """What the options of the theory were given, each of which is an argument of its function."""
    about_the_page = ("plot", "as_json", "output")
    given = {name: one for name, one in context.params.items() if name not in about_the_page}
    return {name: one for name, one in given.items() if one not in (None, (), [])}


def predict(
    context: typer.Context,
    rho: list[float] | None = option(
        "RHO", "Input autocorrelation R(Δ) = ρ^|Δ|, ρ in [0, 1]; 0 is white noise."
    ),
    autocorrelation: str | None = AUTOCORRELATION,
    modulus: list[float] | None = option(
        "|λ|", "An eigenvalue's modulus; repeatable. From 0 to 1 - 1e-6 by default."
    ),
    time_constant: list[float] | None = option(
        "τ", "Its time constant -1/log|λ| in steps instead, exact up to 1e15; repeatable."
    ),
    angle: list[float] | None = option("θ", "Its angle in radians; repeatable; 0 by default."),
    parametrization: str = option(
        "NAME",
        "How λ depends on its parameters: real-imaginary, polar, lru, optimal, s4 or sigmoid-gate.",
        default="real-imaginary",
    ),
    normalization: str = option(
        "NAME",
        "The gain γ of the input: none, lru, coupled, gru or zoh (which needs s4).",
        default="none",
    ),
    step_size: float = STEP_SIZE,
    ring: str | None = option(
        "MIN:MAX", "Average over |λ| from MIN to MAX, uniform by area, as an LRU is initialised."
    ),
    horizon: int | None = HORIZON,
    readout: str | None = READOUT,
    plot: bool = flag("--plot", "Draw the sensitivities against the modulus."),
    as_json: bool = JSON,
    output: Path | None = OUTPUT,
) -> None:
    """What memory costs at one eigenvalue; no checkpoint needed.

    Example: memcurse predict --rho 0.5 --parametrization lru --normalization lru
    """
    from memcurse_cli.diagnosis.prediction import predict as predict_moments

    prediction = predict_moments(**_asked(context))
    show(prediction, "prediction", choose_format(as_json=as_json), output, with_plot=plot)


def landscape(
    context: typer.Context,
    modulus: float | None = option("|λ|", "The target's modulus; 0.99 by default."),
    time_constant: float | None = option("τ", "Its time constant -1/log|λ| in steps instead."),
    angle: float = option("θ", "Its angle in radians, in [0, π].", default=0.0),
    start_modulus: float | None = option(
        "|λ|", "A modulus where training starts: the way from there too.", "--from"
    ),
    start_angle: float | None = option(
        "θ", "Its angle; that of the target by default.", "--from-angle"
    ),
    rho: float | None = ONE_RHO,
    autocorrelation: str | None = AUTOCORRELATION,
    horizon: int | None = HORIZON,
    readout: str | None = READOUT,
    parametrizations: list[str] | None = option(
        "NAME",
        "real-imaginary, polar, lru, optimal or s4; repeatable, all of them by default.",
        "--parametrization",
    ),
    normalization: str | None = option(
        "none|own|coupled",
        "γ = 1, or γ = √(1-|λ|²) as its own parameter or computed from λ; by default what is "
        "usual for each parametrisation.",
    ),
    step_size: float = STEP_SIZE,
    learning_rate: float = option("RATE", "The optimizer's learning rate.", "--lr", default=1e-3),
    level: float = option(
        "SHARE", "The loss at which a basin ends; 1 is that of silence.", default=0.1
    ),
    plot: Path | None = option("FILE", "Draw the losses into a .svg, .png or .pdf too."),
    as_json: bool = JSON,
    output: Path | None = OUTPUT,
) -> None:
    """How narrow the loss is around one eigenvalue.

    Example: memcurse landscape --modulus 0.999 --angle 0.3
    """
    from memcurse_cli.diagnosis.prediction import landscape as take_landscape

    figure_format = check_figure(plot)
    report = take_landscape(**_asked(context))
    if plot is not None:
        from memcurse_cli.reports.figures import landscape_figure

        write_file(plot, landscape_figure(report, figure_format))
    show(report, "landscape", choose_format(as_json=as_json), output)


def autocorrelation(
    data: str = argument(
        "DATA",
        "Samples of shape (steps), (steps, features) or (sequences, steps, features): "
        ".npy, .csv, .txt, or one array of any checkpoint format.",
    ),
    array: str | None = option(
        "NAME", "Which array, where a file holds several.", "--array", "--tensor"
    ),
    lags: int | None = option("K", "The largest lag; half the steps, at most 4096, by default."),
    centred: bool = flag("--centred", "Subtract each feature's mean, which is else a part ρ = 1."),
    padding: float | None = option(
        "VALUE",
        "Leave out steps at either end of a sequence whose features all have this value; nan "
        "leaves out every NaN.",
    ),
    estimator: str = option(
        "unbiased|biased",
        "Divide by the number of products, or by that of samples.",
        default="unbiased",
    ),
    as_json: bool = JSON,
    output: Path | None = OUTPUT,
) -> None:
    """Fit the autocorrelation of an input, for --autocorrelation.

    Example: memcurse autocorrelation embeddings.npy --json --output input.json
    then: memcurse inspect model.safetensors --autocorrelation input.json
    """
    from memcurse_cli.checkpoints.series import read_series
    from memcurse_cli.diagnosis.autocorrelation import check_estimator, estimate_autocorrelation

    estimate = estimate_autocorrelation(
        read_series(data, array),
        lags=lags,
        centred=centred,
        padding=padding,
        estimator=check_estimator(estimator),
        source=shown_place(data),
    )
    show(estimate, "autocorrelation", choose_format(as_json=as_json), output)


def families(as_json: bool = JSON, output: Path | None = OUTPUT) -> None:
    """List the recurrent families that are recognised.

    Names and shapes of tensors decide; the first family that recognises a
    layer has it, unless --family of memcurse inspect names another.

    Example: memcurse families --json
    """
    from memcurse_cli.families.registry import all_families
    from memcurse_cli.schema.listings import FamiliesDocument, FamilyDocument

    listed = convert(all_families(), tuple[FamilyDocument, ...], from_attributes=True)
    _list(FamiliesDocument(listed), as_json, output, "family_lines", listed)


def formats(as_json: bool = JSON, output: Path | None = OUTPUT) -> None:
    """List the checkpoint formats that are read.

    A file's content decides, never its extension. A directory is read through
    a conventional name such as model.safetensors, its index of shards, or the
    only checkpoint in it.

    Example: memcurse formats --json
    """
    from memcurse_cli.checkpoints.registry import FORMATS
    from memcurse_cli.schema.listings import FormatDocument, FormatsDocument

    listed = convert(FORMATS, tuple[FormatDocument, ...], from_attributes=True)
    rows = [(one.name, " ".join(one.extensions), one.recognised_by) for one in listed]
    heads = "format", "extensions", "recognised by"
    _list(FormatsDocument(listed), as_json, output, "listing", heads, rows)


def _list(document: Any, as_json: bool, output: Path | None, drawn_by: str, *told: Any) -> None:
    """Print or write the JSON of a document, or what a function of `listing` draws."""
    if as_json:
        emit(to_text(document), output)
    else:
        from memcurse_cli.reports.terminal import listing

        emit_page(partial(getattr(listing, drawn_by), *told), output)


def rule(
    code: str | None = argument(
        "CODE", "A finding's code, as MC204, or its beginning.", default=None
    ),
    as_json: bool = JSON,
    output: Path | None = OUTPUT,
) -> None:
    """Explain a finding by its code, and what to change.

    Without a code, list every one. Example: memcurse rule MC204
    """
    from memcurse_cli.diagnosis.rules import RULES, find_rules
    from memcurse_cli.schema.listings import RulesDocument

    rules = tuple(RULES.values()) if code is None else find_rules(code)
    if len(rules) == 1:
        _list(RulesDocument(rules), as_json, output, "rule_lines", *rules)
    else:
        rows = [(one.code, one.title) for one in rules]
        _list(RulesDocument(rules), as_json, output, "listing", ("code", "finding"), rows)


def schema(
    name: str = argument(
        "NAME",
        "report, check, prediction, hessian, autocorrelation, families, formats or rules.",
        default="report",
    ),
    output: Path | None = OUTPUT,
) -> None:
    """Print the JSON Schema of what memcurse writes with --json.

    Within a version of a schema, fields are added but never renamed.

    Example: memcurse schema report --output report.schema.json
    """
    from memcurse_cli.schema.documents import document_schema, find_document

    emit(json.dumps(document_schema(find_document(name)), indent=2), output)


def settings(context: typer.Context, as_json: bool = JSON, output: Path | None = OUTPUT) -> None:
    """Show every default in force, and where it comes from.

    The command line comes first, then a variable such as MEMCURSE_LR, then
    memcurse.toml or the table tool.memcurse of pyproject.toml.

    Example: memcurse settings
    """
    from memcurse_cli.schema.listings import SettingsDocument

    file = settings_of(context) or SettingsFile("", {}, "")
    document = SettingsDocument(file.path or None, (*_options(file), *_limits(file)))
    rows = [(one.name, shown(one.value), one.origin) for one in document.settings]
    _list(document, as_json, output, "listing", ("setting", "value", "from"), rows)


def _options(file: SettingsFile) -> Iterator[SettingDocument]:
    """Every option but the limits: one row for all commands in which it is the same."""
    from memcurse_cli.diagnosis.policy import KEYS
    from memcurse_cli.schema.listings import SettingDocument

    rows: dict[tuple[str, str, str], SettingDocument] = {}
    for command, options in everything().items():
        found = entries(file, command, options)
        said = {name: (value, file.place(*keys)) for name, keys, value in found}
        for name, known in options.items():
            value, origin = said.get(name, (known.default, ""))
            if variable := variable_set(command, name):
                value, origin = os.environ[variable], variable
            if command == OWN_TABLE and name in KEYS and not origin:
                continue  # a limit that no variable sets: the file says what it is
            row = SettingDocument(
                name=f"{command}.{name}" if name == FORMAT else name,
                value=shown_place(value) if isinstance(value, str) else value,
                origin=origin or "default",
                variable=variables(command, name)[-1],
                commands=(),
            )
            key = row.name, repr(value), origin
            row = rows.get(key, row)
            rows[key] = replace(row, commands=(*row.commands, command))
    yield from (row for _, row in sorted(rows.items()))


def _limits(file: SettingsFile) -> Iterator[SettingDocument]:
    """What the table of `memcurse check` and its overrides say, key by key."""
    from memcurse_cli.diagnosis.policy import CHECK, OVERRIDES, rule_sets, table
    from memcurse_cli.schema.listings import SettingDocument

    rule_sets(file)  # refuses what is wrong
    found = table(file).found
    tables: list[tuple[tuple[str | int, ...], Mapping[str, Any]]] = [((CHECK,), found)]
    overrides = enumerate(found.get(OVERRIDES, ()))
    tables += [((CHECK, OVERRIDES, index), override) for index, override in overrides]
    for place, values in tables:
        for key, value in values.items():
            if key != OVERRIDES:
                path = (*place, key)  # said as ``check.overrides[0].layers``
                name = "".join(f"[{one}]" if isinstance(one, int) else f".{one}" for one in path)
                yield SettingDocument(name[1:], value, file.place(*path), "", (CHECK,))
