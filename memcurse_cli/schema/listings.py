"""What memcurse knows, listed: families, formats, rules, and the settings in force."""

from __future__ import annotations

from typing import Annotated, ClassVar

from memcurse_cli.schema.figures import Record
from memcurse_cli.schema.report import RuleDocument


class AssumptionDocument(Record, frozen=True):
    """Something that a checkpoint does not store and ``--assume`` says."""

    key: Annotated[str, "its name."]
    default: Annotated[str, "what is assumed without it."]
    choices: Annotated[tuple[str, ...], "its values; empty for any number."]
    meaning: Annotated[str, "what it decides."]


class FamilyDocument(Record, frozen=True):
    """One recurrent family."""

    name: Annotated[str, "its name in ``--family``."]
    title: Annotated[str, "its name in words."]
    recognised_by: Annotated[str, "the tensors that it is recognised by."]
    equation: Annotated[str, "the map from its tensors to λ and γ."]
    source: Annotated[str, "who published it."]
    assumptions: Annotated[tuple[AssumptionDocument, ...], "what its checkpoints do not store."]


class FamiliesDocument(Record, frozen=True):
    """The recurrent families that are recognised."""

    SCHEMA: ClassVar = "memcurse.families/1"

    families: Annotated[tuple[FamilyDocument, ...], "in the order in which they are looked for."]


class FormatDocument(Record, frozen=True):
    """One checkpoint format."""

    name: Annotated[str, "its name."]
    extensions: Annotated[tuple[str, ...], "those that its files usually have; content decides."]
    recognised_by: Annotated[str, "what in the content decides."]


class FormatsDocument(Record, frozen=True):
    """The checkpoint formats that are read."""

    SCHEMA: ClassVar = "memcurse.formats/1"

    formats: Annotated[tuple[FormatDocument, ...], "in the order in which they are tried."]


class RulesDocument(Record, frozen=True):
    """What the findings mean."""

    SCHEMA: ClassVar = "memcurse.rules/1"

    rules: Annotated[tuple[RuleDocument, ...], "in the order of their codes."]


# What a settings file can set an option to.
Value = float | str | bool | tuple[float | str, ...] | dict[str, float] | None


class SettingDocument(Record, frozen=True):
    """One default."""

    name: Annotated[str, "the option without its dashes; of a limit its path in the settings file."]
    value: Annotated[Value, "what it is; null where there is none."]
    origin: Annotated[str, "the variable or ``FILE:LINE`` that sets it, or ``default``."]
    variable: Annotated[str, "the environment variable that would set it; empty where none does."]
    commands: Annotated[tuple[str, ...], "those it holds for."]


class SettingsDocument(Record, frozen=True):
    """The defaults that are in force, and where they come from."""

    SCHEMA: ClassVar = "memcurse.settings/1"

    file: Annotated[str | None, "the settings file; null where there is none."]
    settings: Annotated[tuple[SettingDocument, ...], "the options by name, then the limits."]
