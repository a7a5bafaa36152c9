"""`memcurse families`: the recurrent families that are read, and how each is recognised."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memcurse_cli.commands.options import JsonOption, OutputOption, emit, emit_json

if TYPE_CHECKING:
    from memcurse_cli.families.family import Assumption, Family
    from memcurse_cli.schema.listings import FamilyDocument


def families(as_json: JsonOption = False, output: OutputOption = None) -> None:
    """List the recurrent families that are recognised, and by what.

    Names and shapes of tensors decide; the first family that recognises a
    layer has it, unless --family of memcurse inspect names another.

    Example: memcurse families --json
    """
    from memcurse_cli.families.registry import FAMILIES

    if as_json:
        from memcurse_cli.schema.listings import FamiliesDocument

        emit_json(FamiliesDocument(tuple(map(_document, FAMILIES))), output)
        return
    from memcurse_cli.reports.terminal.families import FamilyEntry, to_text

    entries = [FamilyEntry(family.name, family.title, _facts(family)) for family in FAMILIES]
    emit(to_text(entries, file=output), output)


def _document(family: Family) -> FamilyDocument:
    from memcurse_cli.schema.listings import AssumptionDocument, FamilyDocument

    return FamilyDocument(
        family.name,
        family.title,
        family.recognised_by,
        family.equation,
        family.source,
        tuple(
            AssumptionDocument(one.key, one.default, one.choices, one.meaning)
            for one in family.assumptions
        ),
    )


def _facts(family: Family) -> list[tuple[str, str]]:
    return [
        ("recognised by", family.recognised_by),
        ("equation", family.equation),
        ("source", family.source),
        *(("--assume", _describe(assumption)) for assumption in family.assumptions),
    ]


def _describe(assumption: Assumption) -> str:
    """``activation=tanh|relu|linear (tanh): what it means``."""
    values = "|".join(assumption.choices) or "NUMBER"
    return f"{assumption.key}={values} ({assumption.default}): {assumption.meaning}"
