"""`python -m benchmarks`: measure everything, keep it as JSON and as README's table.

Each row runs `memcurse` and a named peer in turn as whole processes and gives medians.
"""

from __future__ import annotations

import json
import platform
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path

from benchmarks.measure import Figure, compare

BIN = Path(sys.executable).parent
MEMCURSE = str(BIN / "memcurse")
PYTHON = sys.executable
RESULTS = Path(__file__).parent / "results.json"
README = Path(__file__).parents[1] / "README.md"
MARKS = ("<!-- benchmarks -->\n", "<!-- /benchmarks -->")
VERSIONS = ("numpy", "scipy", "safetensors", "typer", "rich")


@dataclass(frozen=True)
class Case:
    """One row: our command, the peer's, and the limits that we hold ourselves to."""

    what: str
    ours: Sequence[str]
    peer_name: str
    peer: Sequence[str]
    limit: str
    pairs: int = 7


def cases(folder: Path) -> list[Case]:
    """Every row of the table."""
    # In a process of its own: a child's peak memory starts from that of its parent.
    subprocess.run([PYTHON, "-m", "benchmarks.checkpoints", str(folder)], check=True)
    lstm, dense, mamba = (
        str(folder / f"{name}.safetensors") for name in ("lstm", "dense", "mamba")
    )
    peers = [PYTHON, "-m", "benchmarks.peers"]
    inspect = [MEMCURSE, "inspect"]
    return [
        Case(
            "`memcurse --help`",
            [MEMCURSE, "--help"],
            "`hf --help`",
            [str(BIN / "hf"), "--help"],
            "0.15 s",
        ),
        Case(
            "`memcurse predict --rho 0.5`",
            [MEMCURSE, "predict", "--rho", "0.5"],
            "`import scipy.linalg`",
            [PYTHON, "-c", "import scipy.linalg"],
            "0.35 s",
        ),
        Case(
            "inspect the LRU sample",
            [*inspect, str(README.parent / "sample_checkpoints" / "lru.safetensors")],
            "an empty Typer command that imports NumPy and Rich",
            [*peers, "empty_command"],
            "1.5 × the peer",
        ),
        Case(
            "inspect LSTM(1024)",
            [*inspect, lstm],
            "NumPy: eigenvalues of its 4 gates",
            [*peers, "lstm_gates", lstm],
            "1.0 s, 150 MiB",
            5,
        ),
        Case(
            "inspect LSTM(1024) --spectra",
            [*inspect, lstm, "--spectra"],
            "NumPy: eigenvalues of its 4 gates",
            [*peers, "lstm_gates", lstm],
            "1.3 × the peer",
            5,
        ),
        *(
            Case(
                f"simulate LSTM(1024), 100 steps, against {named.partition(':')[0]}",
                [MEMCURSE, "simulate", lstm, "--horizon", "100"],
                named,
                [*peers, peer, lstm],
                "10 s",
                3,
            )
            for named, peer in (
                ("PyTorch: its forward pass, 16 sequences", "lstm_forward"),
                ("JAX: four tangents of 16 sequences", "lstm_tangents"),
            )
        ),
        Case(
            "inspect a dense 1024² layer",
            [*inspect, dense],
            "`numpy.linalg.eig`",
            [*peers, "dense_eig", dense],
            "1.8 × the peer",
            5,
        ),
        Case(
            "inspect a Mamba of 1.4 billion parameters",
            [*inspect, mamba],
            "safetensors: λ alone",
            [*peers, "mamba_spectrum", mamba],
            "3 s, 400 MiB",
            5,
        ),
    ]


def table(rows: Sequence[tuple[Case, Figure]]) -> str:
    """The figures as Markdown."""
    lines = [
        "| what | seconds | MiB | peer | its seconds | its MiB | ratio | limit |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for case, figure in rows:
        lines.append(
            f"| {case.what} | {figure.seconds:.2f} | {figure.mebibytes:.0f} | {case.peer_name} "
            f"| {figure.peer_seconds:.2f} | {figure.peer_mebibytes:.0f} | {figure.ratio:.2f} "
            f"| {case.limit} |"
        )
    return "\n".join(lines)


def keep_in_readme(rows: str) -> None:
    """Put the table between README's marks."""
    text = README.read_text()
    before, rest = text.split(MARKS[0])
    after = rest.split(MARKS[1])[1]
    README.write_text(f"{before}{MARKS[0]}{rows}\n{MARKS[1]}{after}")


def main() -> None:
    """Measure, print and keep."""
    with tempfile.TemporaryDirectory() as folder:
        rows = [(case, compare(case.ours, case.peer, case.pairs)) for case in cases(Path(folder))]
    print(table(rows))
    keep_in_readme(table(rows))
    environment = {
        "python": platform.python_version(),
        "machine": platform.machine(),
        "system": platform.system(),
        **{name: version(name) for name in VERSIONS},
    }
    figures = {case.what: {"peer": case.peer_name, **asdict(figure)} for case, figure in rows}
    RESULTS.write_text(
        json.dumps({"environment": environment, "figures": figures}, indent=2) + "\n"
    )


if __name__ == "__main__":
    if sys.argv[1:] == ["gpu"]:
        from benchmarks import gpu

        gpu.main()
    else:
        main()
