"""Settings files: where they are found, what they may say, and the line of what they may not."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from memcurse_cli.diagnosis import settings as configuration
from memcurse_cli.diagnosis.policy import policy_of
from memcurse_cli.diagnosis.settings import find_settings, read_settings
from memcurse_cli.errors import UsageError

PROJECT = """\
[project]
name = "mine"

[tool.memcurse.check]
max-unstable = 0  # none
forbid = ["MC101", "MC3"]
allow-missing = true
tolerance = 0.1
max-rounding-error = { bfloat16 = 0.2 }

[[tool.memcurse.check.overrides]]
layers = ["encoder.*"]
max-step-effect = 0.5

[[tool.memcurse.check.overrides]]
families = ["lru"]
max-verdict = "ok"
ignore = ["MC1"]
"""


def write(folder: Path, text: str, name: str = "memcurse.toml") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def test_a_project_says_what_the_rule_sets_are(tmp_path: Path) -> None:
    write(tmp_path, PROJECT, "pyproject.toml")
    below = tmp_path / "runs" / "one"
    below.mkdir(parents=True)
    file = find_settings(below)
    policy = policy_of(file, {})
    base, encoder, lru, _ = policy.rule_sets
    name = str(tmp_path / "pyproject.toml")
    assert [(limit.name, limit.bound, limit.origin) for limit in base.limits] == [
        ("max-unstable", 0.0, f"{name}:5"),
        ("max-rounding-error.bfloat16", 0.2, f"{name}:9"),
    ]
    assert (base.forbid, base.origin) == (("MC101", "MC3"), f"{name}:4")
    assert (encoder.layers, encoder.limits[0].origin) == (("encoder.*",), f"{name}:13")
    assert (lru.families, lru.ignore, lru.limits[0].bound) == (("lru",), ("MC1",), 0.0)
    assert (policy.allow_missing, policy.tolerance) == (True, 0.1)


def test_the_nearest_file_wins_and_memcurse_toml_comes_first(tmp_path: Path) -> None:
    below = tmp_path / "below"
    below.mkdir()

    def found() -> tuple[str, int]:
        file = find_settings(below)
        return Path(file.path).name, file.values["check"]["max-unstable"]

    write(tmp_path, "[check]\nmax-unstable = 1\n")
    write(below, "[project]\nname = 'silent'\n", "pyproject.toml")
    assert found() == ("memcurse.toml", 1)
    write(below, "[tool.memcurse.check]\nmax-unstable = 2\n", "pyproject.toml")
    assert found() == ("pyproject.toml", 2)
    write(below, "[check]\nmax-unstable = 3\n")
    assert found() == ("memcurse.toml", 3)


def test_the_search_ends_at_the_root_of_the_repository(tmp_path: Path) -> None:
    below = tmp_path / "clone" / "runs"
    below.mkdir(parents=True)
    write(tmp_path, "horizon = 1\n")
    assert find_settings(below) is not None
    (tmp_path / "clone" / ".git").write_text("gitdir: elsewhere")
    assert find_settings(below) is None
    write(tmp_path / "clone", "horizon = 2\n")
    found = find_settings(below)
    assert (found.values, found.found) == ({"horizon": 2}, True)


def test_the_search_enters_no_folder_of_another_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    below = tmp_path / "mine" / "runs"
    below.mkdir(parents=True)
    write(tmp_path, "horizon = 1\n")
    others = {tmp_path: 4001}
    mine = configuration.owner(below)
    monkeypatch.setattr(configuration, "owner", lambda folder: others.get(folder, mine))
    assert find_settings(below) is None
    # A checkout of another user's, as a container's root has it, is that user's all the way.
    assert find_settings(tmp_path) is not None
    others |= {below: 4001, below.parent: 4001}
    assert find_settings(below) is not None


@pytest.mark.parametrize("name", ["memcurse.toml", "pyproject.toml"])
def test_a_found_link_is_not_followed_out_of_its_folder(name: str, tmp_path: Path) -> None:
    (tmp_path / "secrets.toml").write_text("[tool.memcurse]\nhunter2 = 1\n")
    clone = tmp_path / "clone"
    clone.mkdir()
    (clone / name).symlink_to("../secrets.toml")
    with pytest.raises(UsageError, match="leads out of its folder") as caught:
        find_settings(clone)
    assert "hunter2" not in str(caught.value)
    assert read_settings(clone / name) is not None
    (clone / "own.toml").write_text("[tool.memcurse]\n")
    (clone / name).unlink()
    (clone / name).symlink_to("own.toml")
    assert find_settings(clone) is not None


def test_a_found_fifo_is_passed_by_and_a_file_that_is_none_refused(tmp_path: Path) -> None:
    fifo = tmp_path / "memcurse.toml"
    os.mkfifo(fifo)
    assert find_settings(tmp_path) is None
    huge = "# memcurse\n" + "#" * configuration.MAX_BYTES
    write(tmp_path, huge, "pyproject.toml")
    with pytest.raises(UsageError, match="more than 1048576 bytes"):
        find_settings(tmp_path)
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe")
    for path, words in (
        (fifo, "no file"),
        (tmp_path / "binary.toml", "UTF-8"),
        (tmp_path / "absent.toml", "cannot be read"),
        (write(tmp_path, f"horizon = {'9' * 5000}", "a.toml"), "does not fit into 64 bits"),
        (write(tmp_path, "[project]\n", "pyproject.toml"), r"no table \[tool.memcurse\]"),
    ):
        with pytest.raises(UsageError, match=words):
            read_settings(path)


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("[check]\nmax-unstable = \n", 2, ["not TOML"]),
        ("[check]\nmax-unstable = 0\nmax-unstabel = 1\n", 3, ["max-unstabel", "max-unstable?"]),
        ('[project] # a comment\n[check]\n"max-unstable" = true\n', 3, ["not a number"]),
        ("a = 1\ncheck . max-unstable = true\n", 2, ["not a number"]),
        ("[check]\nmax-rounding-error = { float17 = 1 }\n", 2, ["float17"]),
        ("[check]\nmax-step-effect = -1\n", 2, ["0 or more"]),
        (f"[check]\nmax-step-effect = {10**400}\n", 2, ["max-step-effect", "64 bits"]),
        (f"\nhorizon = 0x{10**5000:x}\n", 2, ["horizon", "64 bits"]),
        ("[check]\n\nmax-verdict = 'cursed'\n", 3, ["ok or watch"]),
        ("[check]\nmax-rounding-error = 0.1\n", 2, ["bfloat16 = 0.1"]),
        ("[check]\nforbid = 'MC101'\n", 2, ['["MC101"]']),
        ("[check]\nforbid = ['E501']\n", 2, ["E501", "memcurse rule"]),
        ("[check]\nallow-missing = 1\n", 2, ["true or false"]),
        ("[check]\nfail-on = true\n", 2, ["fail-on = 'not-judged'"]),
        ("[[check.overrides]]\nlayers = ['a']\nmin-memory = 1\n", 3, ["below [check]"]),
        ("check = 1\n", 1, ["not a table"]),
        ("[check]\noverrides = 1\n", 2, ["[[check.overrides]]"]),
        ("[[check.overrides]]\nlayers = ['a']\n[[check.overrides]]\nignore=[]\n", 3, ["no layers"]),
        ("[[check.overrides]]\nlayers = 'a'\n", 2, ["list"]),
        ("[[check.overrides]]\nlayers = ['a']\ntolerance = 1\n", 3, ["tolerance"]),
    ],
)
def test_an_error_has_the_file_and_the_line(
    text: str, line: int, words: list[str], tmp_path: Path
) -> None:
    path = write(tmp_path, text)

    with pytest.raises(UsageError) as caught:
        policy_of(read_settings(path), {})
    assert caught.value.where == f"{path}:{line}"
    assert all(word in str(caught.value) for word in words), str(caught.value)
