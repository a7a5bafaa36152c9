"""The numbers and the figure of docs/verdict.md."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from benchmarks.calibration.agreement import (
    CONSTANTS,
    FACTOR,
    FAILURES,
    Result,
    contingency,
    learnt,
    share,
)
from benchmarks.calibration.rules import (
    QUESTIONS,
    Comparison,
    Question,
    Range,
    assess,
    assessments,
    by_family,
    comparisons,
    moved,
    seen,
)
from benchmarks.calibration.sweep import RATES
from memcurse_cli.schema.report import WITHIN

DOCS = Path(__file__).parents[2] / "docs"
PAGE = DOCS / "verdict.md"
FIGURE = DOCS / "figures" / "usable_rate.svg"
MARKS = ("<!-- calibration -->\n", "<!-- /calibration -->")
LIMIT_MARKS = ("<!-- limits -->\n", "<!-- /limits -->")
NETWORK_MARKS = ("<!-- networks -->\n", "<!-- /networks -->")
STACK_MARKS = ("<!-- stacks -->\n", "<!-- /stacks -->")
OPTIMIZER_MARKS = ("<!-- optimizers -->\n", "<!-- /optimizers -->")
ASKED: Mapping[Question, str] = {"initial": "from the start", "trained": "once trained"}
VARIANTS = {
    "decay 0.01": "AdamW, weight decay 0.01",
    "decay 0.1": "AdamW, weight decay 0.1",
    "schedule": "warm-up and cosine to zero",
    "clip": "gradients clipped at norm 1",
    "coloured": "inputs with ρ = 0.9",
}
ENOUGH = 0.9
"""The share of runs called cursed that has to fail."""
MARKERS = {"dense": "o", "block diagonal": "s", "complex diagonal": "^", "LRU": "D", "S4D": "v"}


def write_page(results: Sequence[Result], networks: Sequence[Result]) -> None:
    """Write the figure, and the tables between the marks of the page."""
    draw(linear(networks, "initial"), FIGURE)
    put(written(results, networks), PAGE)


def put(tables: Mapping[tuple[str, str], str], page: Path) -> None:
    """Write tables between their marks."""
    text = page.read_text(encoding="utf-8")
    for (start, end), table in tables.items():
        before, after = text.index(start) + len(start), text.index(end)
        text = f"{text[:before]}\n{table}\n{text[after:]}"
    page.write_text(text, encoding="utf-8")


def written(results: Sequence[Result], networks: Sequence[Result]) -> dict[tuple[str, str], str]:
    """The tables of the page as Markdown, by the marks that they stand between."""
    return {
        MARKS: tables(results, networks),
        LIMIT_MARKS: limit_table(networks),
        NETWORK_MARKS: network_table(networks),
        STACK_MARKS: stack_table(networks),
        OPTIMIZER_MARKS: optimizer_table(networks),
    }


def linear(networks: Sequence[Result], question: Question) -> list[Comparison]:
    """The comparisons of single linear layers."""
    return [one for one in comparisons(networks, question) if one.limited_by]


def tables(results: Sequence[Result], networks: Sequence[Result]) -> str:
    """The tables of linear layers."""
    start = linear(networks, "initial")
    held_out = [one for one in start if one.held_out]
    agreed, compared = share(held_out)
    hopeless = [one for one in results if not learnt(one)]
    untaught = contingency(hopeless)["ok"]
    summary = (
        f"Predicted from the weights before training and seen in training within a factor "
        f"{FACTOR:g}: **{agreed} of {compared} held-out setups** "
        f"({100 * agreed / compared:.0f} %). {len(hopeless)} of all {len(results)} setups learnt "
        f"at no rate and are not in the tables; of their {sum(untaught.values())} runs called ok "
        f"{untaught['diverges']} diverged."
    )
    columns = (
        "students",
        "calibration",
        "held out",
        "seen / predicted, median (extremes), held out",
    )
    rows = []
    for family in MARKERS:
        ours = [one for one in start if one.family == family]
        ratios = sorted(one.ratio for one in ours if one.held_out)
        parts = ([one for one in ours if one.held_out == held_out] for held_out in (False, True))
        rows.append((family, *(_of(share(part)) for part in parts), _spread(ratios)))
    return "\n\n".join((_verdict_table(results), summary, markdown_table(columns, rows))) + "\n"


def limit_table(networks: Sequence[Result]) -> str:
    """Where linear layers lay for both questions, beside the range that is printed."""
    columns = (
        "limited by",
        "rate",
        "calibration, held out",
        "seen / told: median (10 to 90 %)",
        "width",
        "width of a guess",
        "printed",
        "held out within it",
    )
    rows = []
    for limit, (low, high) in WITHIN.items():
        for asked in QUESTIONS:
            found = assess([one for one in linear(networks, asked) if one.limited_by == limit])
            held = [low <= one.ratio <= high for one in found.held_out]
            cells = (
                limit,
                ASKED[asked],
                f"{found.calibrated}, {len(held)}",
                _range(found.rule),
                f"{found.rule.width:.2g}",
                f"{found.guess.width:.2g}",
                f"{low:.2g} to {high:.2g}",
                _of((sum(held), len(held))),
            )
            rows.append(cells)
    return markdown_table(columns, rows) + "\n"


def network_table(networks: Sequence[Result]) -> str:
    """What the rule of each family was worth beside a guess, for both questions."""
    columns = (
        "networks",
        "rate",
        "calibration, held out",
        "seen / told: median (10 to 90 %)",
        "width",
        "width by the step's effect",
        "seen: median (10 to 90 %)",
        "width",
        "held out within the rule's range",
        "within the guess's",
    )
    rows = []
    for asked in QUESTIONS:
        for family, found in assessments(networks, asked).items():
            rule, guess = found.within
            held_out = len(found.held_out)
            cells = (
                family,
                ASKED[asked],
                f"{found.calibrated}, {held_out}",
                _range(found.rule),
                f"**{found.rule.width:.2g}**" if found.tells else f"{found.rule.width:.2g}",
                f"{found.effect.width:.2g}",
                _range(found.guess),
                f"{found.guess.width:.2g}",
                _of((rule, held_out)),
                _of((guess, held_out)),
            )
            rows.append(cells)
    return f"{markdown_table(columns, rows)}\n\n{_left_out(networks)}\n"


def stack_table(networks: Sequence[Result]) -> str:
    """What trained stacks bore over the smallest of their layers' rates."""
    columns = (
        "stacks",
        "networks",
        "all at one rate: seen / told, median (extremes)",
        "the recurrent tensors alone",
        "one layer by itself",
    )
    rows = []
    found = by_family(networks, "trained")
    for family, ours in found.items():
        if not family.endswith("stack"):
            continue
        single = found[family.removesuffix(" stack")]
        cells = (
            family,
            str(len(ours)),
            _spread(sorted(one.ratio for one in ours)),
            _spread(sorted(one.apart / one.told for one in ours if one.apart)),
            _spread(sorted(one.ratio for one in single)),
        )
        rows.append(cells)
    return markdown_table(columns, rows) + "\n"


def markdown_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table."""
    head, *body = (f"| {' | '.join(cells)} |" for cells in (columns, *rows))
    return "\n".join((head, "|---" * len(columns) + "|", *body))


def _left_out(networks: Sequence[Result]) -> str:
    plain = [one for one in networks if not one["setup"]["variant"]]
    untaught = sum(seen(one, "trained") is None for one in plain)
    return (
        f"Not in the table: {untaught} of {len(plain)} setups, which learnt at no rate or kept "
        "their loss at none."
    )


def optimizer_table(networks: Sequence[Result]) -> str:
    """By how much the seen rate moves with what stands around Adam, and with coloured inputs."""
    columns = ("with", *(f"{ASKED[asked]}: factor (extremes)" for asked in QUESTIONS), "networks")
    rows = []
    for variant, said in VARIANTS.items():
        factors = [moved(networks, variant, asked) for asked in QUESTIONS]
        cells = (said, *map(_spread, factors), f"{len(factors[1])}")
        rows.append(cells)
    return markdown_table(columns, rows) + "\n"


def _range(found: Range) -> str:
    return f"{found.middle:.2g} ({found.low:.2g} to {found.high:.2g})"


def _verdict_table(results: Sequence[Result]) -> str:
    """What became of the runs of each verdict; a share of failures below `ENOUGH` is said."""
    columns = ("limited by", "setups", "ok: diverge", "ok: stall", "watch: fail", "cursed: fail")
    rows = []
    for limited_by in CONSTANTS:
        for held_out in (False, True):
            ours = [one for one in results if learnt(one) and one["held_out"] == held_out]
            table = contingency(one for one in ours if one["at_start"]["limited_by"] == limited_by)
            runs = {verdict: sum(row.values()) for verdict, row in table.items()}
            failed = {
                verdict: sum(row[end] for end in FAILURES) / runs[verdict]
                for verdict, row in table.items()
            }
            missed = "" if failed["cursed"] >= ENOUGH else f", **below {100 * ENOUGH:.0f} %**"
            cells = (
                limited_by,
                "held out" if held_out else "calibration",
                f"{table['ok']['diverges']} of {runs['ok']}",
                f"{table['ok']['stalls']} of {runs['ok']}",
                f"{100 * failed['watch']:.0f} % of {runs['watch']}",
                f"{100 * failed['cursed']:.0f} % of {runs['cursed']}{missed}",
            )
            rows.append(cells)
    return markdown_table(columns, rows)


def _of(counts: tuple[int, int]) -> str:
    return f"{counts[0]} of {counts[1]}"


def _spread(ratios: Sequence[float]) -> str:
    if not ratios:
        return "none learnt"
    middle = ratios[len(ratios) // 2]
    return f"{middle:.2g} ({ratios[0]:.2g} to {ratios[-1]:.2g})"


def draw(compared: Sequence[Comparison], target: Path) -> None:
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
    for colour, (family, marker) in zip(colours, MARKERS.items(), strict=False):
        ours = [one for one in compared if one.family == family]
        for held_out in (False, True):
            _points(axes, [one for one in ours if one.held_out == held_out], marker, colour)
        axes.plot([], [], marker, color=colour, label=family, markersize=5)
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
        [one.told for one in ours],
        [one.seen for one in ours],
        marker,
        color=colour,
        markersize=5,
        markerfacecolor=colour if held_out else "none",
        markeredgewidth=0.9,
    )
