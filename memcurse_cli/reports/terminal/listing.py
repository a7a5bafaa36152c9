"""What the commands print that list what memcurse knows: a plain table, or a block for each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.table import Table
from rich.text import Text

from memcurse_cli.reports.console import CODE, LABEL, NAME, TITLE, Screen
from memcurse_cli.reports.grid import facts, paragraph, parted
from memcurse_cli.schema.listings import FamilyDocument
from memcurse_cli.schema.report import RuleDocument


def listing(
    headings: Sequence[str], rows: Sequence[Sequence[str]], screen: Screen
) -> Iterator[Table]:
    """Rows of texts under headings; the last column wraps, the first is set off."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style=LABEL, pad_edge=False)
    for index, heading in enumerate(headings):
        table.add_column(screen.clean(heading), style=NAME if index == 0 else "")
    for row in rows:
        table.add_row(*(Text(screen.clean(text)) for text in row))
    yield table


def family_lines(families: Sequence[FamilyDocument], screen: Screen) -> Iterator[Text]:
    """The families, one block each, since six texts do not fit beside each other."""
    for index, family in enumerate(families):
        if index:
            yield Text()
        head = Text.assemble((screen.clean(family.name), NAME), f"  {screen.clean(family.title)}")
        yield from paragraph(screen, head, margin=0)
        said = [(label, getattr(family, label.replace(" ", "_"))) for label in FAMILY_LABELS]
        for one in family.assumptions:
            values = "|".join(one.choices) or "NUMBER"
            said.append(("--assume", f"{one.key}={values} ({one.default}): {one.meaning}"))
        for label, words in said:
            # No word is cut, however many choices it lists.
            text = Text(screen.clean(words))
            yield from paragraph(screen, text, gutter=[(f"  {label}", LABEL)], margin=17)


FAMILY_LABELS = ("recognised by", "equation", "source")
RULE_LABELS = ("what", "why", "equation", "change", "source")


def rule_lines(rule: RuleDocument, screen: Screen) -> Iterator[Text]:
    """The page of one rule."""
    title = screen.sentence(rule.title, TITLE)
    return parted(
        paragraph(screen, title, gutter=[(screen.clean(rule.code), CODE)]),
        *(facts(screen, {label: getattr(rule, label)}) for label in RULE_LABELS),
    )
