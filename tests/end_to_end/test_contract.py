"""What the command line promises, whatever the command."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
from end_to_end.calls import FIRST, SAMPLE, each_call, words
from end_to_end.command import assert_refused, exit_code, memcurse

from memcurse_cli.__main__ import _Stream
from memcurse_cli.commands import COMMANDS, PANELS, load

WRITING = {"train", "init", "diagonalize", "reparametrize"}  # a checkpoint, with --output
Here = Callable[..., tuple[int, str, str]]


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch, folder: Path) -> Here:
    """Run a command in the folder, without the colours that the environment may ask for."""
    for name in ("FORCE_COLOR", "NO_COLOR", "TERM"):
        monkeypatch.delenv(name, raising=False)

    def run(*arguments: str | Path) -> tuple[int, str, str]:
        done = memcurse(*arguments, folder=folder)
        return done.returncode, done.stdout, done.stderr

    return run


def test_every_command_is_held_to_the_contract() -> None:
    assert set(FIRST) == set(COMMANDS) - WRITING


@pytest.mark.parametrize(("command", "line"), COMMANDS.items())
def test_help_has_an_example_and_an_unknown_option_leads_to_it(command: str, line: str) -> None:
    result = memcurse(command, "--help", environment={"NO_COLOR": "1"})
    assert (result.returncode, result.stderr) == (0, "")
    assert "Usage: memcurse" in result.stdout
    assert f"Example: memcurse {command}" in result.stdout or "| memcurse check" in result.stdout
    assert max(map(len, result.stdout.splitlines())) <= 80
    assert (load(command).__doc__ or "").splitlines()[0] == line
    assert_refused(memcurse(command, "--nonsense"), "--nonsense", f"'memcurse {command} --help'")


def test_the_commands_stand_in_panels_a_line_each_within_80_columns() -> None:
    shown = memcurse("--help", environment={"NO_COLOR": "1"}).stdout.splitlines()
    assert max(map(len, shown)) <= 80
    told = [line.strip("│ ") for line in shown]
    for panel, commands in PANELS.items():
        start = next(at for at, line in enumerate(shown) if line.startswith(f"╭─ {panel} ─"))
        found = [line.split(maxsplit=1) for line in told[start + 1 : start + 1 + len(commands)]]
        assert found == [[name, line] for name, line in commands.items()]


def test_a_report_given_for_a_command_is_checked(tmp_path: Path) -> None:
    report = tmp_path / "report"
    memcurse("inspect", SAMPLE, "--json", "--output", report)
    assert_refused(memcurse(report), f"did you mean: memcurse check {report}")


def test_a_pattern_stands_for_the_files_that_match_in_order(tmp_path: Path) -> None:
    for name in ("b.safetensors", "a/c.safetensors", "a/notes.txt", "[b].safetensors"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(Path(SAMPLE).read_bytes())

    def checked(*paths: str) -> list[str]:
        done = memcurse("check", *paths, "--json", folder=tmp_path)
        return [report["path"] for report in json.loads(done.stdout)["reports"]]

    every = ["[b].safetensors", "a/c.safetensors", "b.safetensors"]
    assert checked("**/*.safetensors") == every
    assert checked("b.safetensors", "*.safetensors") == ["b.safetensors", "[b].safetensors"]
    assert checked("**") == sorted([*every, "a/notes.txt"])  # no folder that it only crosses
    assert checked("[b].safetensors") == ["[b].safetensors"]
    assert checked("[[]b*") == ["[b].safetensors"]
    assert checked("?") == ["a"]
    done = memcurse("inspect", "[!x].*rs", "--json", folder=tmp_path)
    assert json.loads(done.stdout)["checkpoint"]["path"] == "b.safetensors"


@each_call
def test_piped_output_has_no_control_codes_and_nothing_beside_it(call: str, folder: Path) -> None:
    before = sorted(folder.iterdir())
    folder.chmod(0o500)
    try:
        result = memcurse(*words(call), folder=folder)
    finally:
        folder.chmod(0o700)
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.endswith("\n")
    assert "\x1b" not in result.stdout
    assert sorted(folder.iterdir()) == before


@each_call
def test_output_goes_whole_into_a_file(call: str, here: Here, tmp_path: Path) -> None:
    target = tmp_path / "out"
    assert here(*words(call), "--output", target) == (0, "", "")
    assert target.read_text(encoding="utf-8").endswith("\n")
    assert list(tmp_path.iterdir()) == [target]


@each_call
def test_an_output_that_cannot_be_written_is_one_line(
    call: str, here: Here, tmp_path: Path
) -> None:
    file = tmp_path / "file"
    file.write_text("untouched")
    targets = (tmp_path / "absent" / "out", tmp_path, file / "out")
    for target in targets if call in FIRST.values() else targets[:1]:
        code, printed, errors = here(*words(call), "--output", target)
        assert (code, printed, errors.count("\n")) == (2, "", 1)
        assert errors.startswith(f"memcurse: error: {target}: cannot be written")
    assert list(tmp_path.iterdir()) == [file]
    assert file.read_text() == "untouched"


@each_call
def test_a_reader_that_leaves_early_is_no_error(
    call: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Python flushes standard output once more at its end; here that is when the pipe is closed."""
    monkeypatch.chdir(folder)
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w", encoding="utf-8") as pipe:
        monkeypatch.setattr(sys, "stdout", _Stream(pipe, vital=True))
        assert exit_code(words(call)) == 0
    assert capfd.readouterr() == ("", "")


HOSTILE = (
    *("::error::a", "##[error]b", "x ##vso[task.setvariable variable=a]c", "d\n::warning::d"),
    *("\x1b[31me", "\x9b31mf", "[bold]g[/]", "h\u202e", "i\r::error::i", "##teamcity[j]"),
)
STEERING = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]|^\s*::|##\w*\[", re.MULTILINE)


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Checkpoints whose layers' names steer a terminal or a CI; bad.safetensors is NaN."""
    lru = safetensors.numpy.load_file(SAMPLE)
    folder = tmp_path_factory.mktemp("hostile")
    for name, worth in (("step_1", 1.0), ("step_2", 1.1), ("bad", np.nan)):
        state = {f"{name}.{key}": worth * lru[key] for name in HOSTILE for key in lru}
        safetensors.numpy.save_file(state, folder / f"{name}.safetensors")
    return folder


@pytest.mark.parametrize(
    "call",
    [
        "inspect step_1.safetensors",
        "inspect step_1.safetensors --all --lr 0.1 --learning-rates --as lru",
        "inspect step_1.safetensors step_2.safetensors",
        "hessian step_1.safetensors",
        "compare step_1.safetensors step_2.safetensors",
        "check step_1.safetensors --max-step-effect 1e-9",
        "track step_1.safetensors step_2.safetensors --no-cache",
        "inspect bad.safetensors",
        "inspect bad.safetensors --debug",
        "inspect step_1.safetensors --debug --layer ##[error]\x1b[31mz",
        "inspect step_1.safetensors --verbose --config settings.toml",
        "check step_1.safetensors --config settings.toml",
    ],
)
@pytest.mark.parametrize("coloured", [False, True])
def test_no_name_and_no_setting_steers_a_terminal_or_a_ci(
    hostile: Path, call: str, coloured: bool
) -> None:
    hostile.joinpath("settings.toml").write_text(
        'device = "\\u001b[31m##[error]"\n[[check.overrides]]\nlayers = ["\\u009b31m##vso[x]"]\n'
    )
    environment = {"FORCE_COLOR": "1"} if coloured else {"NO_COLOR": "1"}
    result = memcurse(*call.split(" "), folder=hostile, environment=environment)
    assert result.returncode in (0, 1, 2)
    assert "internal error" not in result.stderr
    ours = re.compile(r"\x1b\[[\d;]*m") if coloured else re.compile("(?!)")
    assert not STEERING.findall(ours.sub("", result.stdout))
    assert not STEERING.findall(result.stderr)
    assert result.stdout + result.stderr
