"""Pages of the site that the program writes about itself, made when the site is built.

mkdocs calls the hooks ``on_files`` and ``on_page_markdown``. A page of ``families/`` holds what
people have to say of a family, under its name as a heading; the rest comes from the registry.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterator, Mapping
from typing import Any

import typer
from mkdocs.structure.files import File, Files

from memcurse_cli.commands import COMMANDS, load
from memcurse_cli.diagnosis.rules import RULES
from memcurse_cli.families.family import Family
from memcurse_cli.families.registry import all_families, package_of
from memcurse_cli.schema.documents import DOCUMENTS, Document, document_schema
from memcurse_cli.schema.report import RuleDocument

PACKAGES = {
    "state_space": "State-space layers",
    "selective": "Selective layers",
    "cells": "Gated cells",
    "dense": "Dense recurrences",
}
FINDINGS = {
    "MC1": "Dynamics",
    "MC2": "Sensitivity",
    "MC3": "Hessian",
    "MC4": "Precision",
    "MC5": "Assumptions",
}


def families_page() -> str:
    """The list of families, from the registry."""
    lines = [
        "# Families",
        "",
        f"{len(all_families())} recurrent families are recognised by the names and shapes of their",
        "tensors; `memcurse families` says the same.",
        "",
        "A tensor in a layer's module that its family does not read, and that is not known to",
        "leave λ alone (as projections and counters do), is named among what the report assumes;",
        "where it is known to change λ, the layer is refused.",
        "",
        "| family | equation |",
        "|---|---|",
    ]
    for family in sorted(all_families(), key=lambda one: one.title.lower()):
        page = f"families/{package_of(family)}.md#{family.name}"
        lines.append(f"| [{family.title}]({page}) | {in_a_cell(family.equation)} |")
    return "\n".join(lines) + "\n"


def family_section(family: Family) -> str:
    """What the registry says of one family."""
    assumed = [
        f"- `--assume {one.key}={one.default}`: {one.meaning}"
        + (f" ({', '.join(one.choices)})" if one.choices else "")
        for one in family.assumptions
    ]
    return "\n".join(
        [
            f"## {family.title} {{#{family.name}}}",
            "",
            f"`{family.name}`, recognised by {family.recognised_by}.",
            "",
            f"    {family.equation}",
            "",
            *([*assumed, ""] if assumed else []),
            f"Source: {family.source}.",
        ]
    )


def family_page(package: str, notes: str) -> str:
    """Every family of a package, each with what people noted under its name."""
    told: dict[str, str] = {}
    for section in re.split(r"^## ", notes, flags=re.MULTILINE)[1:]:
        name, _, text = section.partition("\n")
        told[name.strip()] = text.strip()
    here = [family for family in all_families() if package_of(family) == package]
    strangers = told.keys() - {family.name for family in here}
    if strangers:
        raise ValueError(f"families/{package}.md: no family is named {sorted(strangers)}")
    parts = [f"# {PACKAGES[package]}"]
    for family in sorted(here, key=lambda one: one.title.lower()):
        parts += [family_section(family), *filter(None, [told.get(family.name)])]
    return "\n\n".join(parts) + "\n"


def findings_page() -> str:
    """What `memcurse rule` says of every finding."""
    parts = [
        "# Findings",
        (
            "Every finding has a code that never changes its meaning; `memcurse rule` with a code"
            " behind it says the same. Its severity is info, warning or error; errors fail the"
            " check command where no limits are set, and [check](check.md) says how to select,"
            " forbid and ignore codes."
        ),
    ]
    for prefix, title in FINDINGS.items():
        parts.append(f"## {prefix}xx: {title}")
        parts += [finding(rule) for rule in RULES.values() if rule.code.startswith(prefix)]
    return "\n\n".join(parts) + "\n"


def finding(rule: RuleDocument) -> str:
    """One rule."""
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


def commands_page() -> str:
    """The reference of every command, from the app itself."""
    lines = [
        "# Commands",
        "",
        "Made from the program's own help. Data goes to standard output, everything else to",
        "standard error. Exit codes: 0 done and passed, 1 a check found a violation, 2 bad usage",
        "or an input that cannot be read.",
    ]
    for name, summary in COMMANDS.items():
        app = typer.Typer(add_completion=False)
        app.command(name=name)(load(name))
        command: Any = typer.main.get_command(app)
        lines += ["", f"## memcurse {name}", "", summary]
        for paragraph in (command.help or "").split("\n\n")[1:]:
            said = " ".join(paragraph.split())
            example = re.fullmatch(r"Example: (memcurse .*)", said)
            lines += ["", f"    {example[1]}" if example else said]
        rows = list(parameters(command))
        if rows:
            lines += ["", "| option | what it does |", "|---|---|", *rows]
    return "\n".join(lines) + "\n"


def parameters(command: Any) -> Iterator[str]:
    """A row for each argument and option of a command."""
    for parameter in command.params:
        if parameter.name == "help":
            continue
        if parameter.param_type_name == "argument":
            names = parameter.metavar or parameter.name.upper()
        else:
            names = ", ".join([*parameter.opts, *parameter.secondary_opts])
            if parameter.metavar:
                names += f" {parameter.metavar}"
        text = " ".join((parameter.help or "").split())
        yield f"| <code>{in_a_cell(names)}</code> | {in_a_cell(text)} |"


def in_a_cell(text: str) -> str:
    """Text that stands in a cell of a Markdown table as it is."""
    return html.escape(text, quote=False).replace("|", "&#124;").replace("*", "&#42;")


def json_page() -> str:
    """Every field of every JSON document."""
    told: set[str] = set()
    head = (
        "Every command that prints figures prints them as JSON with `--json`. The field `schema`"
        " says what a document is and which version its fields have; within a version fields are"
        " added but never renamed. A number that does not exist, because it diverges or was not"
        " computed, is `null`; NaN and Infinity are never written. The schema command prints a"
        " document's JSON Schema (draft 2020-12), for example `memcurse schema report`."
    )
    foot = (
        "\\* may be missing: newer than the first documents of its schema, or only where asked for."
    )
    sections = [document_section(document, told) for document in DOCUMENTS]
    return "\n\n".join(["# JSON", head, foot, *sections]) + "\n"


def document_section(document: Document, told: set[str]) -> str:
    """One document, and the objects in it that no earlier one has told."""
    schema = document_schema(document)
    parts = [
        f"## {document.identifier}",
        f"{document.summary} Written by the command `{document.command}`.".replace("`", ""),
        fields(schema),
    ]
    for name, definition in schema["$defs"].items():
        if name not in told:
            told.add(name)
            parts += [f"### {name}", definition["description"], fields(definition)]
    return "\n\n".join(parts)


def fields(schema: Mapping[str, Any]) -> str:
    """The fields of one object; those that may be missing are marked."""
    rows = ["| field | type | meaning |", "|---|---|---|"]
    for name, field in schema["properties"].items():
        shown = f"`{name}`" + ("" if name in schema["required"] else " *")
        kind, meaning = (
            text.replace("|", "\\|") for text in (kind_of(field), field["description"])
        )
        rows.append(f"| {shown} | {kind} | {meaning} |")
    return "\n".join(rows)


def kind_of(schema: Mapping[str, Any]) -> str:
    """A field's type in a few words."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if "const" in schema:
        return f"`{schema['const']}`"
    if "enum" in schema:
        return ", ".join(f"`{one}`" for one in schema["enum"])
    if "anyOf" in schema:
        return " or ".join(map(kind_of, schema["anyOf"]))
    if "prefixItems" in schema:
        return f"[{', '.join(map(kind_of, schema['prefixItems']))}]"
    if schema["type"] == "array":
        return f"array of {kind_of(schema['items'])}"
    if "additionalProperties" in schema:
        return f"object of {kind_of(schema['additionalProperties'])} by name"
    return str(schema["type"])


PAGES = {
    "commands.md": commands_page,
    "families.md": families_page,
    "findings.md": findings_page,
    "json.md": json_page,
}


def on_files(files: Files, *, config: Any) -> Files:
    """Add the pages that are no files."""
    for name, generate in PAGES.items():
        files.append(File.generated(config, name, content=generate()))
    return files


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Put what the registry says before the notes on each family."""
    folder, _, name = page.file.src_uri.rpartition("/")
    return family_page(name.removesuffix(".md"), markdown) if folder == "families" else markdown
