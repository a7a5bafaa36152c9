"""Completion by the protocols of bash, zsh and fish, though commands are imported when called."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from end_to_end.command import MEMCURSE, memcurse

from memcurse_cli.app import COMMANDS

SHELLS = ("bash", "zsh", "fish")


def run(folder: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run memcurse with a home of its own and no shell to detect."""
    given = {"HOME": str(folder), "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}
    return memcurse(*arguments, environment={**given, **environment}, folder=folder)


def complete(shell: str, line: str, folder: Path) -> set[str]:
    """The words that a shell is offered for the last word of a line."""
    if shell == "bash":
        words = line.split(" ")
        variables = {"COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1)}
    else:
        variables = {"_TYPER_COMPLETE_ARGS": line, "_TYPER_COMPLETE_FISH_ACTION": "get-args"}
    done = run(folder, _MEMCURSE_COMPLETE=f"complete_{shell}", **variables)
    assert (done.returncode, done.stderr) == (0, "")
    if shell == "zsh":
        return set(re.findall(r'"([^"]+)":"', done.stdout))
    return {line.split("\t")[0] for line in done.stdout.splitlines()}


@pytest.mark.parametrize("shell", SHELLS)
def test_commands_are_offered(shell: str, tmp_path: Path) -> None:
    assert complete(shell, "memcurse sch", tmp_path) == {"schema"}
    assert complete(shell, "memcurse ", tmp_path) == set(COMMANDS)


@pytest.mark.parametrize("shell", SHELLS)
def test_a_commands_own_options_are_offered(shell: str, tmp_path: Path) -> None:
    assert "--max-step-effect" in complete(shell, "memcurse check --max-st", tmp_path)
    assert "--verbose" in complete(shell, "memcurse inspect --verb", tmp_path)


def test_a_settings_file_that_is_wrong_does_not_stop_completion(tmp_path: Path) -> None:
    (tmp_path / "memcurse.toml").write_text("nonsense")
    assert complete("bash", "memcurse inspect --horiz", tmp_path) == {"--horizon"}


@pytest.mark.parametrize("shell", SHELLS)
def test_the_script_is_shown_and_installed(shell: str, tmp_path: Path) -> None:
    shown = run(tmp_path, "--show-completion", shell)
    assert (shown.returncode, shown.stderr) == (0, "")
    assert f"_MEMCURSE_COMPLETE=complete_{shell}" in shown.stdout
    installed = run(tmp_path, "--install-completion", shell)
    assert installed.returncode == 0
    scripts = [path for path in tmp_path.rglob("*") if path.is_file() and "memcurse" in path.name]
    assert len(scripts) == 1
    assert f"complete_{shell}" in scripts[0].read_text()


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
def test_bash_completes_with_the_script(tmp_path: Path) -> None:
    script = run(tmp_path, "--show-completion", "bash").stdout
    line = (
        "COMP_WORDS=(memcurse inspect --hor); COMP_CWORD=2; _memcurse_completion memcurse; "
        'echo "${COMPREPLY[@]}"'
    )
    done = subprocess.run(
        ["bash", "--norc", "-c", f"{script}\n{line}"],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=tmp_path,
        env={**os.environ, "PATH": f"{Path(MEMCURSE).parent}:{os.environ['PATH']}"},
        check=False,
    )
    assert done.stdout.strip() == "--horizon", done.stderr
