"""The site: what the program writes about itself is on its pages, and it builds."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import yaml
from end_to_end.command import ROOT, program

from memcurse_cli.diagnosis.rules import RULES
from memcurse_cli.families.registry import all_families
from memcurse_cli.schema.documents import DOCUMENTS, document_schema

DOCS = ROOT / "docs"
SPEC = spec_from_file_location("generate", DOCS / "generate.py")
generate: Any = module_from_spec(SPEC)
SPEC.loader.exec_module(generate)


def family_pages() -> dict[str, str]:
    return {
        package: generate.family_page(package, (DOCS / "families" / f"{package}.md").read_text())
        for package in generate.PACKAGES
    }


def test_every_family_is_told_once() -> None:
    told = [name for page in family_pages().values() for name in re.findall(r"\{#(\w+)\}", page)]
    assert sorted(told) == sorted(family.name for family in all_families())
    whole = "".join(family_pages().values())
    for family in all_families():
        assert family.equation in whole
        assert family.source in whole
        assert all(f"--assume {one.key}=" in whole for one in family.assumptions)


def test_every_finding_and_every_field_is_told() -> None:
    findings, fields = generate.findings_page(), generate.json_page()
    assert all(f"### {rule.code}: {rule.title}" in findings for rule in RULES.values())
    for document in DOCUMENTS:
        schema = document_schema(document)
        for definition in (schema, *schema["$defs"].values()):
            for name, field in definition["properties"].items():
                assert f"| `{name}`" in fields
                assert field["description"].replace("|", "\\|") in fields


def test_every_page_is_in_the_menu() -> None:
    def named(entries: list[Any]) -> Iterator[str]:
        for entry in entries:
            (value,) = entry.values()
            yield from [value] if isinstance(value, str) else named(value)

    menu = set(named(yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"]))
    written = {str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md")}
    assert menu == {*written, *generate.PAGES}


def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    building = ("mkdocs", "build", "--strict", "--quiet", "--site-dir", tmp_path)
    done = program(sys.executable, "-m", *building)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "--horizon" in (tmp_path / "commands" / "index.html").read_text()
    assert "gk_proj" in (tmp_path / "families" / "selective" / "index.html").read_text()
