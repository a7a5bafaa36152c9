"""The site: pages that are generated are today's, every page is in the menu, and it builds.

`MEMCURSE_UPDATE_README=1 pytest tests/docs/test_site.py` writes the generated pages anew.
"""

from __future__ import annotations

import html
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from memcurse_cli.app import COMMANDS, load
from memcurse_cli.families.registry import all_families

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


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
        yield f"| <code>{escape(names)}</code> | {escape(text)} |"


def escape(text: str) -> str:
    """Text that can stand in a cell of a Markdown table."""
    return html.escape(text, quote=False).replace("|", "&#124;").replace("*", "&#42;")


def families_page() -> str:
    """The list of families, from the registry."""
    lines = [
        "# Families",
        "",
        f"{len(all_families())} recurrent families are recognised by the names and shapes of their",
        "tensors; `memcurse families` says more.",
        "",
        "A tensor in a layer's module that its family does not read, and that is not known to",
        "leave λ alone (as projections and counters do), is named among what the report assumes;",
        "where it is known to change λ, the layer is refused.",
        "",
        "| family | equation |",
        "|---|---|",
    ]
    for family in sorted(all_families(), key=lambda one: one.title.lower()):
        page = DOCS / "families" / f"{family.name}.md"
        if not page.exists():
            page = DOCS / "families" / f"{family.name.partition('_')[0]}.md"
        lines.append(f"| [{family.title}](families/{page.name}) | {escape(family.equation)} |")
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize(
    ("name", "generate"), [("commands.md", commands_page), ("families.md", families_page)]
)
def test_a_generated_page_is_todays(name: str, generate: Callable[[], str]) -> None:
    page = DOCS / name
    if os.environ.get("MEMCURSE_UPDATE_README"):
        page.write_text(generate(), encoding="utf-8")
    assert page.read_text(encoding="utf-8") == generate()


def test_every_page_is_in_the_menu() -> None:
    def named(entries: list[Any]) -> Iterator[str]:
        for entry in entries:
            (value,) = entry.values()
            yield from [value] if isinstance(value, str) else named(value)

    menu = set(named(yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"]))
    assert menu == {page.name for page in DOCS.glob("*.md")}


def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", tmp_path],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "verdict" / "index.html").exists()
