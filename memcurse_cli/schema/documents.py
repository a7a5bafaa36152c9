"""Every JSON document that memcurse writes, by name, and the dataclass that has its fields."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any

from memcurse_cli.errors import UsageError


@dataclass(frozen=True)
class Document:
    """One kind of document.

    Attributes:
        name: what `memcurse schema` calls it.
        home: the module of `schema` and the class of its fields, imported only when asked for.
        command: what writes it.
        summary: what it is, in a line.
    """

    name: str
    home: str
    command: str
    summary: str

    def load(self) -> Any:
        """The class of its fields."""
        module, _, name = self.home.partition(":")
        return getattr(importlib.import_module(f"memcurse_cli.schema.{module}"), name)

    @property
    def identifier(self) -> str:
        """What the field ``schema`` says, with the version."""
        identifier: str = self.load().SCHEMA
        return identifier


DOCUMENTS = (
    Document(
        "report",
        "report:Report",
        "memcurse inspect PATH --json",
        "A report on one checkpoint; several checkpoints are an array of these.",
    ),
    Document(
        "check",
        "check:Check",
        "memcurse check PATH --json",
        "Reports held to limits.",
    ),
    Document(
        "comparison",
        "comparison:Comparison",
        "memcurse compare BEFORE AFTER --json",
        "Two reports layer by layer.",
    ),
    Document(
        "tracking",
        "track:Tracking",
        "memcurse track PATH --json",
        "A training run, checkpoint by checkpoint.",
    ),
    Document(
        "prediction",
        "prediction:PredictionDocument",
        "memcurse predict --json",
        "What the theory says of some eigenvalues.",
    ),
    Document(
        "landscape",
        "landscape:LandscapeReport",
        "memcurse landscape --json",
        "The loss around one eigenvalue under several parametrisations.",
    ),
    Document(
        "hessian",
        "hessian:HessianReport",
        "memcurse hessian PATH --json",
        "The curvature of the loss over every parameter of a recurrent layer.",
    ),
    Document(
        "autocorrelation",
        "autocorrelation:AutocorrelationDocument",
        "memcurse autocorrelation DATA --json",
        "The statistics of an input, which --autocorrelation reads.",
    ),
    Document(
        "families",
        "listings:FamiliesDocument",
        "memcurse families --json",
        "The recurrent families that are recognised.",
    ),
    Document(
        "formats",
        "listings:FormatsDocument",
        "memcurse formats --json",
        "The checkpoint formats that are read.",
    ),
    Document(
        "rules",
        "listings:RulesDocument",
        "memcurse rule --json",
        "What the findings mean.",
    ),
    Document(
        "settings",
        "listings:SettingsDocument",
        "memcurse settings --json",
        "The defaults that are in force, and where they come from.",
    ),
)


def find_document(name: str) -> Document:
    """The document of a name.

    Raises:
        UsageError: there is none.
    """
    for document in DOCUMENTS:
        if document.name == name:
            return document
    raise UsageError(
        f"{name[:200]!r} is not a document",
        where="schema",
        remedy=f"known are {', '.join(document.name for document in DOCUMENTS)}",
    )
