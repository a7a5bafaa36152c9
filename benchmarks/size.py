"""`python -m benchmarks.size`: how much there is to hold, as the project's own tables count it."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[1]
SAMPLE = ROOT / "sample_checkpoints" / "lru.safetensors"
IMPORTED = (
    "import sys; from memcurse_cli.__main__ import run; run(['inspect', sys.argv[1], '--quiet']); "
    "print(sum(name.partition('.')[0] == 'memcurse_cli' for name in sys.modules))"
)


def lines(folder: str) -> tuple[int, int]:
    """All lines of a folder's modules; and those without blanks, comments, texts and imports."""
    whole = code = 0
    for path in sorted((ROOT / folder).rglob("*.py")):
        text = path.read_text()
        tree = ast.parse(text)
        other = {
            line
            for node in ast.walk(tree)
            if isinstance(node, ast.Import | ast.ImportFrom)
            or (
                isinstance(node, ast.Expr)
                and isinstance(node.value, ast.Constant)
                and isinstance(node.value.value, str)
            )
            for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
        }
        rows = text.splitlines()
        whole += len(rows)
        code += sum(
            bool(row.strip()) and not row.lstrip().startswith("#") and number not in other
            for number, row in enumerate(rows, 1)
        )
    return whole, code


def mutual_imports() -> int:
    """How many pairs of modules import each other."""
    import grimp

    graph = grimp.build_graph("memcurse_cli")
    pairs = {
        frozenset((module, other))
        for module in graph.modules
        for other in graph.find_modules_directly_imported_by(module)
        if module in graph.find_modules_directly_imported_by(other)
    }
    return len(pairs)


def main() -> None:
    """Print the table."""
    files = list((ROOT / "memcurse_cli").rglob("*.py"))
    folder, largest = Counter(path.parent for path in files).most_common(1)[0]
    product, tests = lines("memcurse_cli"), lines("tests")
    imported = subprocess.run(
        [sys.executable, "-c", IMPORTED, str(SAMPLE)], capture_output=True, text=True, check=True
    ).stdout.split()[-1]
    for what, figure in (
        ("product, lines (of code)", f"{product[0]} ({product[1]})"),
        ("product, files", str(len(files))),
        ("largest folder", f"{folder.relative_to(ROOT)}, {largest} files"),
        ("pairs of modules that import each other", str(mutual_imports())),
        ("tests, lines (of code)", f"{tests[0]} ({tests[1]})"),
        ("our modules that inspect of a small file imports", imported),
    ):
        print(f"{what:50}{figure}")


if __name__ == "__main__":
    main()
