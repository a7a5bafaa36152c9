"""What memcurse knows, listed: families, formats, rules, and the settings in force."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True)
class AssumptionDocument:
    """Something that a checkpoint does not store and ``--assume`` says.

    Attributes:
        key: its name.
        default: what is assumed without it.
        choices: its values; empty for any number.
        meaning: what it decides.
    """

    key: str
    default: str
    choices: tuple[str, ...]
    meaning: str


@dataclass(frozen=True)
class FamilyDocument:
    """One recurrent family.

    Attributes:
        name: its name in ``--family``.
        title: its name in words.
        recognised_by: the tensors that it is recognised by.
        equation: the map from its tensors to λ and γ.
        source: who published it.
        assumptions: what its checkpoints do not store.
    """

    name: str
    title: str
    recognised_by: str
    equation: str
    source: str
    assumptions: tuple[AssumptionDocument, ...]


@dataclass(frozen=True)
class FamiliesDocument:
    """The recurrent families that are recognised.

    Attributes:
        families: in the order in which they are looked for.
    """

    SCHEMA: ClassVar = "memcurse.families/1"

    families: tuple[FamilyDocument, ...]


@dataclass(frozen=True)
class FormatDocument:
    """One checkpoint format.

    Attributes:
        name: its name.
        extensions: those that its files usually have; content decides, not they.
        recognised_by: what in the content decides.
    """

    name: str
    extensions: tuple[str, ...]
    recognised_by: str


@dataclass(frozen=True)
class FormatsDocument:
    """The checkpoint formats that are read.

    Attributes:
        formats: in the order in which they are tried.
    """

    SCHEMA: ClassVar = "memcurse.formats/1"

    formats: tuple[FormatDocument, ...]


@dataclass(frozen=True)
class RuleDocument:
    """What one finding means.

    Attributes:
        code: as in a report; never reused for something else.
        title: a few words.
        source: the equations that it rests on.
        what: what was found.
        why: why it matters to training.
        equation: the figure that decides, as a formula.
        change: what to do about it.
    """

    code: str
    title: str
    source: str
    what: str
    why: str
    equation: str
    change: str


@dataclass(frozen=True)
class RulesDocument:
    """What the findings mean.

    Attributes:
        rules: in the order of their codes.
    """

    SCHEMA: ClassVar = "memcurse.rules/1"

    rules: tuple[RuleDocument, ...]


Value = float | str | bool | tuple[str, ...] | tuple[float, ...] | dict[str, float] | None
"""What a settings file can set an option to."""


@dataclass(frozen=True)
class SettingDocument:
    """One default.

    Attributes:
        name: the option without its dashes; of a limit its path in the settings file.
        value: what it is; null where there is none.
        origin: the variable or ``FILE:LINE`` that sets it, or ``default``.
        variable: the environment variable that would set it; empty where none does.
        commands: those it holds for.
    """

    name: str
    value: Value
    origin: str
    variable: str
    commands: tuple[str, ...]


@dataclass(frozen=True)
class SettingsDocument:
    """The defaults that are in force.

    Attributes:
        file: the settings file; null where there is none.
        settings: the options by name, then the limits.
    """

    SCHEMA: ClassVar = "memcurse.settings/1"

    file: str | None
    settings: tuple[SettingDocument, ...]
