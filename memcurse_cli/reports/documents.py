"""Every JSON document that memcurse writes, by name, and the dataclass that has its fields.

Most documents are a dataclass of `diagnosis`; those whose layout differs from it are described in
`document_shapes`, field by field as they are written.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any

from memcurse_cli.checkpoints.names import shown_place
from memcurse_cli.errors import UsageError


@dataclass(frozen=True)
class Document:
    """One kind of document.

    Attributes:
        name: what `memcurse schema` calls it.
        identifier: what the field ``schema`` says.
        home: the module and class of its fields, imported only when it is asked for.
        command: what writes it.
        summary: what it is, in a line.
    """

    name: str
    identifier: str
    home: str
    command: str
    summary: str

    def load(self) -> Any:
        """The class of its fields."""
        module, _, name = self.home.partition(":")
        return getattr(importlib.import_module(module), name)


DOCUMENTS = (
    Document(
        "report",
        "memcurse.report/1",
        "memcurse_cli.diagnosis.report:Report",
        "memcurse inspect PATH --json",
        "A report on one checkpoint; several checkpoints are an array of these.",
    ),
    Document(
        "check",
        "memcurse.check/1",
        "memcurse_cli.diagnosis.check:Check",
        "memcurse check PATH --json",
        "Reports held to limits.",
    ),
    Document(
        "comparison",
        "memcurse.comparison/1",
        "memcurse_cli.diagnosis.comparison:Comparison",
        "memcurse compare BEFORE AFTER --json",
        "Two reports layer by layer.",
    ),
    Document(
        "tracking",
        "memcurse.track/1",
        "memcurse_cli.tracking.series:Tracking",
        "memcurse track PATH --json",
        "A training run, checkpoint by checkpoint.",
    ),
    Document(
        "prediction",
        "memcurse.prediction/1",
        "memcurse_cli.reports.document_shapes:PredictionDocument",
        "memcurse predict --json",
        "What the theory says of some eigenvalues.",
    ),
    Document(
        "landscape",
        "memcurse.landscape/1",
        "memcurse_cli.diagnosis.report_landscape:LandscapeReport",
        "memcurse landscape --json",
        "The loss around one eigenvalue under several parametrisations.",
    ),
    Document(
        "hessian",
        "memcurse.hessian/1",
        "memcurse_cli.diagnosis.hessian_report:HessianReport",
        "memcurse hessian PATH --json",
        "The curvature of the loss over every parameter of a recurrent layer.",
    ),
    Document(
        "autocorrelation",
        "memcurse.autocorrelation/1",
        "memcurse_cli.reports.document_shapes:AutocorrelationDocument",
        "memcurse autocorrelation DATA --json",
        "The statistics of an input, which --autocorrelation reads.",
    ),
    Document(
        "families",
        "memcurse.families/1",
        "memcurse_cli.reports.document_shapes:FamiliesDocument",
        "memcurse families --json",
        "The recurrent families that are recognised.",
    ),
    Document(
        "formats",
        "memcurse.formats/1",
        "memcurse_cli.reports.document_shapes:FormatsDocument",
        "memcurse formats --json",
        "The checkpoint formats that are read.",
    ),
    Document(
        "rules",
        "memcurse.rules/1",
        "memcurse_cli.reports.document_shapes:RulesDocument",
        "memcurse rule --json",
        "What the findings mean.",
    ),
    Document(
        "settings",
        "memcurse.settings/1",
        "memcurse_cli.reports.document_shapes:SettingsDocument",
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
        f"{shown_place(name)!r} is not a document",
        where="schema",
        remedy=f"known are {', '.join(document.name for document in DOCUMENTS)}",
    )
