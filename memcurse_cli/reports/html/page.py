"""One self-contained HTML file from a template: text and tables first, charts drawn by a script.

Everything that comes from a checkpoint goes through Jinja's escaping or into JSON without ``<``,
so that no name can break out of where it stands. The file loads nothing: a content security
policy forbids it. It is ASCII, so that no locale can spoil it on its way through a pipe.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

import numpy as np
from markupsafe import Markup, escape
from msgspec import Struct
from numpy.typing import NDArray

from memcurse_cli.reports.answer import rate_words
from memcurse_cli.reports.console import capitalised, visible
from memcurse_cli.reports.numbers import ABSENT, DIVERGENT, number, setting
from memcurse_cli.schema.figures import ORDER, Verdict

if TYPE_CHECKING:
    from jinja2 import Environment


BEYOND = 1e308  # what sorts above every number; JSON and scripts have no infinity


class Cell(Struct, frozen=True):
    """A cell: what it shows, what its column is sorted by, and the class that it is drawn in.

    One that is sorted by a number is set to the right.
    """

    text: str
    key: float | str
    kind: str = ""


def verdict_cell(verdict: Verdict) -> Cell:
    """A verdict, the worst of them last."""
    return Cell(verdict, str(ORDER.index(verdict)))


def figure(
    value: float | None, write: Callable[[float], str] = number, *, divergent: object = False
) -> Cell:
    """A number; without one it diverges, above all others, or does not exist, below them."""
    if value is not None:
        return Cell(write(value), value)
    return Cell(DIVERGENT, BEYOND) if divergent else Cell(ABSENT, -1.0)


Table = Mapping[str, Callable[[Any], Cell | str]]
"""The heads of a table, and what an entry says below each: a text is sorted by itself."""


def row(table: Table, entry: Any, href: str = "", **others: Any) -> dict[str, Any]:
    """The cells of one entry, and what the first of them links to."""
    said = [value(entry) for value in table.values()]
    cells = [Cell(one, one) if isinstance(one, str) else one for one in said]
    return {"cells": cells, "href": href, **others}


POINTS_PER_LAYER, POINTS_IN_ALL = 512, 20_000


def sample(
    rows: Sequence[Sequence[float | None]], modulus: NDArray[np.float64], layers: int
) -> list[list[float | None]]:
    """What a chart marks of one of some layers: its rows, or an even sample of them by |λ|.

    Both ends are in it, with the digits that a chart can show.
    """
    most = max(16, min(POINTS_PER_LAYER, POINTS_IN_ALL // max(1, layers)))
    order = np.argsort(modulus, kind="stable")
    kept = np.linspace(0, len(order) - 1, min(len(order), most)).round().astype(int)
    return [
        [one if one is None else float(f"{one:.7g}") for one in rows[index]]
        for index in order[kept].tolist()
    ]


MEANINGS = {
    "memory": "The steps after which a layer has forgotten to 1/e: the longest that it holds.",
    "median memory": "-1/log |λ| in steps, of the median eigenvalue.",
    "never fade": "Eigenvalues with |λ| ≥ 1, whose memory does not end.",
    "step effect": "What one optimizer step at your rate changes the state by: of the most "
    "sensitive group, its p99 element, or all entries of a dense matrix with independent signs.",
    "sensitivity κ": "E|dh/dω|² / E|h|² of a parameter ω, its p99: the squared relative change of "
    "the state per unit of ω.",
    "usable rate": "The largest learning rate that training with Adam is expected to bear, within "
    "a range.",
    "your rate": "The largest rate that the checkpoint records, or that was given.",
    "verdict": "Your rate against the usable one: ok below its range, cursed above.",
    "a step is": "What it does to the eigenvalues: destabilising moves |λ| and can take it past 1, "
    "decorrelating turns their angle, scaling does neither.",
}
"""What the heads of tables say to a pointer that rests on them."""


def fragment(view: Any) -> str:
    """The box of a report for another page, with the style that it needs."""
    style = Markup(f"<style>{_asset('box.css')}</style>")
    made = _environment().get_template("macros.html").module.box(view)  # type: ignore[attr-defined]
    return _ascii(f'<div class="memcurse">{style}{made}</div>')


def render(template: str, *, charts: object, document: object, **values: Any) -> str:
    """The page of a template."""
    style = _escaped(_asset("box.css") + _asset("style.css"), "\\{:x} ")
    script = _escaped(_asset("script.js"), "\\u{{{:x}}}")
    page = _environment().get_template(template)
    return _ascii(
        page.render(
            style=style,
            script=script,
            style_hash=_hash(style),
            script_hash=_hash(script),
            charts=_json(charts),
            document=_json(document),
            **values,
        )
    )


def _ascii(page: str) -> str:
    return page.encode("ascii", "xmlcharrefreplace").decode()


def _escaped(text: str, form: str) -> str:
    """Every character beyond ASCII in the form of the language that the text is in."""
    return re.sub(r"[^\x00-\x7f]", lambda found: form.format(ord(found[0])), text)


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
    said = str(escape(visible(capitalised(text))))
    return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", said))


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
    environment.filters["verdict"] = lambda verdict: verdict.replace("_", " ")
    environment.filters["rate"] = rate_words
    environment.filters["setting"] = setting
    environment.globals["MEANINGS"] = MEANINGS
    return environment
