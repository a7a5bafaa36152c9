"""What every figure shares: matplotlib when it is needed, its file formats, and its bytes.

matplotlib is an optional extra. Figures are made without pyplot, so that no window system and no
global state is touched, and the same figure always gives the same file.
"""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING, Any

from memcurse_cli.checkpoints.untrusted.names import shown_place
from memcurse_cli.errors import UsageError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FORMATS = ("png", "svg", "pdf")
DOTS_PER_INCH = 150
STYLE: dict[Any, Any] = {
    "font.size": 8.0,
    "axes.titlesize": 8.0,
    "axes.linewidth": 0.6,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "svg.fonttype": "none",  # text stays text
    "svg.hashsalt": "memcurse",  # ids that do not change from run to run
    "text.usetex": False,  # else a matplotlibrc in the working directory could run LaTeX
}


def check_figure(path: Path) -> str:
    """The format that a file's name asks for, before any work is done for it.

    Raises:
        UsageError: no format of that name is written, or matplotlib is not installed.
    """
    name = path.suffix.removeprefix(".").lower()
    if name not in FORMATS:
        raise UsageError(
            f"'{path.suffix}' is no format of a figure" if name else "the file has no suffix",
            where=f"--plot {shown_place(path)}",
            remedy="name a file that ends in .png, .svg or .pdf",
        )
    try:
        import matplotlib  # noqa: F401, only whether it is there
    except ImportError as error:
        raise UsageError(
            "matplotlib is not installed",
            where="--plot",
            remedy="pip install 'memcurse-cli[plot]'",
        ) from error
    return name


def new_figure(width: float, height: float) -> Figure:
    """An empty figure of so many inches, drawn in `STYLE` within `figure_bytes`."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def figure_bytes(figure: Figure, name: str) -> bytes:
    """The file that a figure makes, without the time of its making.

    Args:
        figure: what to draw.
        name: one of `FORMATS`.
    """
    import matplotlib

    dates = {"svg": {"Date": None}, "pdf": {"CreationDate": None}, "png": {}}
    stream = io.BytesIO()
    with matplotlib.rc_context(STYLE):
        figure.savefig(stream, format=name, dpi=DOTS_PER_INCH, metadata=dates[name])
    return stream.getvalue()
