"""Every family has its page, and the page says what the registry says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from memcurse_cli.families.detect import characteristic_names
from memcurse_cli.families.family import Family
from memcurse_cli.families.registry import all_families

PAGES = Path(__file__).parents[2] / "docs" / "families"
SECTIONS = ("**Recognised by**", "**Equation", "**Source.**")


def page_of(family: Family) -> Path:
    """The page of its name; a library's cells may share the library's."""
    shared = PAGES / f"{family.name.partition('_')[0]}.md"
    page = PAGES / f"{family.name}.md"
    return page if page.exists() or not shared.exists() else shared


@pytest.mark.parametrize("family", all_families(), ids=lambda family: family.name)
def test_a_family_has_its_page(family: Family) -> None:
    page = page_of(family).read_text(encoding="utf-8")
    title, blank, names, *_ = page.splitlines()
    assert title.startswith("# ")
    assert not blank
    # What reports and --family call it.
    assert names.startswith(("**Family** ", "**Families** "))
    assert f"`{family.name}`" in names
    places = [page.index(section) for section in SECTIONS]
    assert places == sorted(places)
    recognised, equation, source = (
        page[start:end] for start, end in zip(places, [*places[1:], None], strict=True)
    )
    for name in characteristic_names(family)[:1]:
        assert name in recognised
    # Every letter and every tensor of the equation, whatever the order of its terms.
    for letter in re.findall(r"[Α-ω]", family.equation):
        assert letter in equation, letter
    for tensor in re.findall(r"[A-Za-z]+(?:_[A-Za-z]+)+", family.equation):
        assert tensor in page, tensor
    for identifier in re.findall(r"arXiv [\d.]+", family.source):
        assert identifier in source
    for assumption in family.assumptions:
        assert assumption.key in page


def test_every_page_is_that_of_a_family() -> None:
    assert set(PAGES.glob("*.md")) == {page_of(family) for family in all_families()}


def test_a_page_names_no_other_family() -> None:
    for page in PAGES.glob("*.md"):
        names = re.findall(r"`(\w+)`", page.read_text(encoding="utf-8").splitlines()[2])
        assert names == [family.name for family in all_families() if page_of(family) == page]
