"""The page of a report, or of several."""

from __future__ import annotations

from collections.abc import Sequence

from memcurse_cli.reports.html.charts import chart_data
from memcurse_cli.reports.html.page import render
from memcurse_cli.reports.html.tables import view
from memcurse_cli.schema.json_codec import to_json
from memcurse_cli.schema.report import Report


def to_html(reports: Sequence[Report]) -> str:
    """The page of some reports.

    Args:
        reports: made with every eigenvalue and with pictures of their Hessians, if charts of
            them are to be drawn.
    """
    documents = [to_json(report, values=False) for report in reports]
    return render(
        "report.html",
        reports=[view(report) for report in reports],
        charts=list(map(chart_data, reports)),
        document=documents[0] if len(documents) == 1 else documents,
    )
