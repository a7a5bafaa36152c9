"""The page of a report, or of several."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from memcurse_cli.reports.html.charts import chart_data
from memcurse_cli.reports.html.page import render
from memcurse_cli.reports.html.tables import view
from memcurse_cli.schema.hessian import HessianPicture
from memcurse_cli.schema.json_codec import to_json
from memcurse_cli.schema.report import Report

Pictures = Mapping[str, HessianPicture]


def to_html(reports: Sequence[Report], pictures: Sequence[Pictures] = ()) -> str:
    """The page of some reports.

    Args:
        reports: made with every eigenvalue, if charts of them are to be drawn.
        pictures: for each report the Hessians to draw, by the name of their layer.
    """
    pictures = pictures or [{}] * len(reports)
    documents = [to_json(report, values=False) for report in reports]
    return render(
        "report.html",
        reports=[view(report) for report in reports],
        charts=[chart_data(report, heat) for report, heat in zip(reports, pictures, strict=True)],
        document=documents[0] if len(documents) == 1 else documents,
    )
