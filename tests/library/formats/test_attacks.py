"""The attack files that a library writes: each is met live, and the small ones are committed."""

from __future__ import annotations

import importlib.util
import json
import lzma
import tarfile
import tempfile
from pathlib import Path

import pytest
from attacks.build import ATTACKS, Builder
from attacks.test_attacks import check

HERE = Path(__file__).parent
COMMITTED = HERE.parents[1] / "attacks" / "files"
# Of a file after compression; what is larger is met here alone.
LARGEST = 6000


def live() -> dict[str, tuple[Builder, str]]:
    """The attacks of the modules beside this one."""
    others = dict(ATTACKS)
    ATTACKS.clear()
    for path in sorted(HERE.glob("*_attacks.py")):
        spec = importlib.util.spec_from_file_location(path.stem, path)
        assert spec is not None
        assert spec.loader is not None
        if path.name != Path(__file__).name:
            spec.loader.exec_module(importlib.util.module_from_spec(spec))
    found = dict(ATTACKS)
    ATTACKS.clear()
    ATTACKS.update(others)
    return found


LIVE = live()


@pytest.mark.parametrize("name", LIVE)
def test_attack(name: str, tmp_path: Path) -> None:
    check(*LIVE[name], tmp_path)


def write() -> None:
    """Write the files that `make test` meets: ``python -m library.formats.test_attacks``."""
    outcomes = {}
    with tarfile.open(COMMITTED / "library.tar.xz", "w:xz") as archive:
        for name, (build, outcome) in LIVE.items():
            folder = Path(tempfile.mkdtemp())
            path = build(folder)
            files = sorted(folder.iterdir())
            regular = [file for file in files if file.is_file() and not file.is_symlink()]
            if sum(len(lzma.compress(file.read_bytes())) for file in regular) > LARGEST:
                continue
            outcomes[name] = outcome, path.name
            for file in files:
                archive.add(file, f"{name}/{file.name}", filter=_anonymous)
    lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(it)}" for name, it in outcomes.items())
    (COMMITTED / "library.json").write_text(f"{{\n{lines}\n}}\n")


def _anonymous(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = member.mtime = 0
    member.uname = member.gname = ""
    return member


if __name__ == "__main__":
    write()
