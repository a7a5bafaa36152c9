"""`python -m benchmarks`: measure everything, keep it as JSON and as README's table.

Each row runs `memcurse` and a named peer in turn as whole processes and gives medians.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.measure import compare, environment

BIN = Path(sys.executable).parent
MEMCURSE = str(BIN / "memcurse")
PYTHON = sys.executable
RESULTS = Path(__file__).parent / "results.json"
README = Path(__file__).parents[1] / "README.md"
MARKS = ("<!-- benchmarks -->\n", "<!-- /benchmarks -->")
VERSIONS = ("numpy", "scipy", "safetensors", "typer", "rich", "torch", "jax")
VERSIONS += ("control", "weightwatcher", "PyHessian")


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
    lstm, dense, system, diagonal, hessian, mamba = (
        str(folder / f"{name}.safetensors")
        for name in ("lstm", "dense", "system", "diagonal", "hessian", "mamba")
    )
    peers = [PYTHON, "-m", "benchmarks.peers"]
    inspect, empty = [MEMCURSE, "inspect"], "an empty Typer command that imports NumPy and Rich"
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
            empty,
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
            "inspect LSTM(1024), against WeightWatcher",
            [*inspect, lstm],
            "WeightWatcher: `analyze`, which skips the LSTM and reads a readout as wide",
            [*peers, "lstm_weightwatcher", lstm],
            "the peer",
            3,
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
            "inspect a dense linear system of 512 states",
            [*inspect, system],
            "python-control: poles and squared H2 norm",
            [*peers, "dense_control", system],
            "the peer",
            5,
        ),
        Case(
            "inspect a diagonal layer of 4096 λ, 1024 steps",
            [*inspect, diagonal, "--horizon", "1024"],
            "JAX: dh/dλ of 16 sequences by `jax.jvp`",
            [*peers, "diagonal_tangents", diagonal],
            "the peer",
            5,
        ),
        Case(
            "inspect an LRU of 512 λ with B and C, 300 steps",
            [*inspect, hessian, "--horizon", "300"],
            "PyHessian: sharpness and trace from 16 sequences",
            [*peers, "hessian_autodiff", hessian],
            "the peer",
            3,
        ),
        Case(
            "inspect a Mamba of 2.8 billion parameters",
            [*inspect, mamba],
            empty,
            [*peers, "empty_command"],
            "3 × the peer, 150 MiB",
            5,
        ),
    ]


def table(figures: Mapping[str, Any]) -> str:
    """The figures as results.json has them, as Markdown."""
    lines = [
        "| what | seconds | MiB | peer | its seconds | its MiB | ratio | limit |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for what, of in figures.items():
        lines.append(
            f"| {what} | {of['seconds']:.2f} | {of['mebibytes']:.0f} | {of['peer']} "
            f"| {of['peer_seconds']:.2f} | {of['peer_mebibytes']:.0f} | {of['ratio']:.2f} "
            f"| {of['limit']} |"
        )
    return "\n".join(lines)


def keep_in_readme(rows: str) -> None:
    """Put the table between README's marks."""
    text = README.read_text()
    before, rest = text.split(MARKS[0])
    after = rest.split(MARKS[1])[1]
    README.write_text(f"{before}{MARKS[0]}{rows}\n{MARKS[1]}{after}")


def keep(part: Mapping[str, Any]) -> None:
    """Put a part into results.json, with what it was measured on."""
    before = json.loads(RESULTS.read_text())
    document = {**before, "environment": environment(VERSIONS), **part}
    RESULTS.write_text(json.dumps(document, indent=2) + "\n")


def main() -> None:
    """Measure, print and keep."""
    figures = {}
    with tempfile.TemporaryDirectory() as folder:
        for case in cases(Path(folder)):
            figure = compare(case.ours, case.peer, case.pairs)
            figures[case.what] = {"peer": case.peer_name, "limit": case.limit, **asdict(figure)}
    print(table(figures))
    keep_in_readme(table(figures))
    keep({"figures": figures})


if __name__ == "__main__":
    if sys.argv[1:] == ["gpu"]:
        from benchmarks import gpu

        gpu.main()
    else:
        main()
