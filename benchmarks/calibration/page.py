"""The numbers and the figure of docs/verdict.md."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from benchmarks.calibration.agreement import (
    OUTCOMES,
    VERDICTS,
    Comparison,
    Result,
    comparisons,
    contingency,
    share,
)
from benchmarks.calibration.sweep import RATES
from memcurse_cli.schema.report import FACTOR

DOCS = Path(__file__).parents[2] / "docs"
PAGE = DOCS / "verdict.md"
FIGURE = DOCS / "figures" / "usable_rate.svg"
MARKS = ("<!-- calibration -->\n", "<!-- /calibration -->")
MARKERS = {"dense": "o", "block diagonal": "s", "complex diagonal": "^", "LRU": "D", "S4D": "v"}


def write_page(results: Sequence[Result]) -> None:
    """Write the figure, and the tables between the marks of the page."""
    draw(results, FIGURE)
    text = PAGE.read_text(encoding="utf-8")
    start = text.index(MARKS[0]) + len(MARKS[0])
    end = text.index(MARKS[1])
    PAGE.write_text(text[:start] + "\n" + tables(results) + "\n" + text[end:], encoding="utf-8")


def tables(results: Sequence[Result]) -> str:
    """The tables as Markdown."""
    start, trained = comparisons(results), comparisons(results, "trained")
    held_out = [one for one in start if one.held_out]
    agreed, compared = share(held_out)
    hopeless = len(results) - len(start)
    summary = (
        f"Predicted from the weights before training and seen in training within a factor "
        f"{FACTOR:g}: **{agreed} of {compared} held-out setups** "
        f"({agreed / compared:.0%}). {hopeless} of all {len(results)} setups learnt at no rate "
        "and are not in the tables."
    )
    columns = (
        "students",
        "calibration",
        "held out",
        "held out, from the trained checkpoint",
        "seen / predicted, median (extremes), held out",
    )
    lines = [summary, "", f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
    for network in MARKERS:
        ours = [one for one in start if one.network == network]
        after = [one for one in trained if one.network == network and one.held_out]
        ratios = sorted(math.exp(one.log_ratio) for one in ours if one.held_out)
        lines.append(
            f"| {network} | {_of(share([one for one in ours if not one.held_out]))} "
            f"| {_of(share([one for one in ours if one.held_out]))} | {_of(share(after))} "
            f"| {_spread(ratios)} |"
        )
    lines += ["", f"The verdict before training, and what {len(RATES)} rates per setup came to:"]
    for kind, networks in (
        (
            "Students whose eigenvalues can leave the unit disk",
            ("dense", "block diagonal", "complex diagonal"),
        ),
        ("Students that are stable by construction", ("LRU", "S4D")),
    ):
        table = contingency([one for one in results if one["network"] in networks])
        lines += [
            "",
            f"| {kind.lower()}: verdict | {' | '.join(OUTCOMES)} |",
            "|---" * (len(OUTCOMES) + 1) + "|",
        ]
        for verdict in VERDICTS:
            row = table[verdict]
            if any(row.values()):
                lines.append(f"| {verdict} | {' | '.join(str(row[end]) for end in OUTCOMES)} |")
    return "\n".join(lines) + "\n"


def _of(counts: tuple[int, int]) -> str:
    return f"{counts[0]} of {counts[1]}"


def _spread(ratios: Sequence[float]) -> str:
    if not ratios:
        return "none learnt"
    middle = ratios[len(ratios) // 2]
    return f"{middle:.2g} ({ratios[0]:.2g} to {ratios[-1]:.2g})"


def draw(results: Sequence[Result], target: Path) -> None:
    """Seen against predicted rates on the band that counts as right; held-out setups are filled."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "memcurse"
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(5.2, 4.6), layout="constrained")
    ends = [1e-5, 1.5]
    axes.fill_between(
        ends,
        [end / FACTOR for end in ends],
        [end * FACTOR for end in ends],
        color="0.9",
        label=f"within a factor {FACTOR:g}",
    )
    axes.plot(ends, ends, color="0.5", linewidth=0.8)
    axes.axhline(RATES[-1], color="0.5", linewidth=0.8, linestyle=":")
    colours = pyplot.get_cmap("tab10").colors
    for colour, (network, marker) in zip(colours, MARKERS.items(), strict=False):
        ours = [one for one in comparisons(results) if one.network == network]
        for held_out in (False, True):
            _points(axes, [one for one in ours if one.held_out == held_out], marker, colour)
        axes.plot([], [], marker, color=colour, label=network, markersize=5)
    axes.set(
        xscale="log",
        yscale="log",
        xlim=ends,
        ylim=(2e-5, 0.2),
        xlabel="largest usable learning rate, predicted before training",
        ylabel="largest learning rate that converged",
    )
    axes.legend(frameon=False, fontsize="small", loc="lower right")
    target.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(target, metadata={"Date": None})
    pyplot.close(figure)


def _points(axes: object, ours: Sequence[Comparison], marker: str, colour: object) -> None:
    held_out = bool(ours) and ours[0].held_out
    axes.plot(  # type: ignore[attr-defined]  # matplotlib's Axes, which is imported only to draw
        [one.predicted for one in ours],
        [one.seen for one in ours],
        marker,
        color=colour,
        markersize=5,
        markerfacecolor=colour if held_out else "none",
        markeredgewidth=0.9,
    )
