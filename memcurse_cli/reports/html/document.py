"""The report as one self-contained HTML file: text and tables first, charts drawn by its script.

Everything that comes from a checkpoint goes through Jinja's escaping or into JSON without ``<``,
so that no name can break out of where it stands. The file loads nothing: a content security
policy forbids it.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING

from markupsafe import Markup, escape

from memcurse_cli.diagnosis.hessian_report import HessianPicture
from memcurse_cli.diagnosis.report import Report
from memcurse_cli.reports.console import visible
from memcurse_cli.reports.html.charts import chart_data
from memcurse_cli.reports.html.tables import ReportView, view
from memcurse_cli.reports.json_report import to_json

if TYPE_CHECKING:
    from jinja2 import Environment

Pictures = Mapping[str, HessianPicture]


def to_html(reports: Sequence[Report], pictures: Sequence[Pictures] = ()) -> str:
    """The page of some reports.

    Args:
        reports: made with every eigenvalue, if charts of them are to be drawn.
        pictures: for each report the Hessians to draw, by the name of their layer.
    """
    pictures = pictures or [{}] * len(reports)
    views: list[ReportView] = [view(report) for report in reports]
    style, script = _asset("style.css"), _asset("script.js")
    charts = [chart_data(report, heat) for report, heat in zip(reports, pictures, strict=True)]
    documents = [to_json(report, values=False) for report in reports]
    return (
        _environment()
        .get_template("report.html")
        .render(
            reports=views,
            style=style,
            script=script,
            style_hash=_hash(style),
            script_hash=_hash(script),
            charts=_json(charts),
            document=_json(documents[0] if len(documents) == 1 else documents),
        )
    )


def _json(value: object) -> str:
    """JSON that can stand inside a script element: no ``<`` ends it early."""
    text = json.dumps(value, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c")


def _hash(text: str) -> str:
    """What the content security policy calls an inline style or script by."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _asset(name: str) -> str:
    return (files(__package__) / "assets" / name).read_text(encoding="utf-8")


def _sentence(text: str) -> Markup:
    """A sentence of the diagnosis: escaped, its first letter large, `code` set off."""
    large = text[:1].upper() + text[1:]
    return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(visible(large)))))


@cache
def _environment() -> Environment:
    from jinja2 import Environment, FunctionLoader, StrictUndefined

    environment = Environment(
        loader=FunctionLoader(_asset),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["clean"] = visible
    environment.filters["sentence"] = _sentence
    return environment
