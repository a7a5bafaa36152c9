"""What only a process of its own shows: streams, signals, imports, completion."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from end_to_end.calls import CURSED, FIRST, SAMPLE, words
from end_to_end.command import MEMCURSE, memcurse, process, program, shell


def test_module_and_command_are_the_same(tmp_path: Path) -> None:
    by_module = shell(f"'{sys.executable}' -m memcurse_cli --version", tmp_path)
    assert by_module.stdout == process("--version").stdout
    assert by_module.stdout.startswith("memcurse 0.")


@pytest.mark.parametrize("command", ["inspect", "track", "families"])
def test_a_locale_without_unicode_gets_ascii(command: str, folder: Path) -> None:
    plain = {"PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0", "LC_ALL": "C"}
    result = process(*words(FIRST[command]), environment=plain, folder=folder)
    assert result.returncode == 0, result.stderr
    assert result.stdout.isascii()


@pytest.mark.parametrize("unbuffered", ["", "PYTHONUNBUFFERED=1 "], ids=["buffered", "unbuffered"])
@pytest.mark.parametrize(
    "call", ["families", f"check '{SAMPLE}'", "--version", "--help", "--show-completion bash"]
)
def test_a_full_disk_is_one_line(call: str, unbuffered: str, folder: Path) -> None:
    command = f"_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION=1 {unbuffered}memcurse {call}"
    places = {
        f"{command} > /dev/full": "No space left on device",
        # With room for the first bytes a write that is cut short comes before one that fails.
        f"head -c 1000 /dev/zero > cut; ulimit -f 1; {command} >> cut": "File too large",
    }
    for script, reason in places.items():
        # Python itself would not notice that a bytecode file of its own is cut short.
        limited = f"export PYTHONDONTWRITEBYTECODE=1; unset PYTHONUNBUFFERED; {script}"
        done = shell(limited, folder)
        assert done.stderr == f"memcurse: error: standard output: cannot be written: {reason}\n"
        assert done.returncode == 2


@pytest.mark.parametrize(
    ("call", "code"), [("families", 0), (f"check '{CURSED}'", 1), ("inspect absent", 2)]
)
def test_standard_error_on_a_full_disk_changes_no_exit_code(
    call: str, code: int, folder: Path
) -> None:
    assert shell(f"memcurse {call} --verbose 2> /dev/full", folder).returncode == code


def test_a_pipe_that_does_not_block_gets_everything() -> None:
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    with subprocess.Popen([MEMCURSE, "schema"], stdout=writer) as running:
        os.close(writer)
        select.select([reader], [], [])
        time.sleep(0.1)  # the pipe is full, and the command would fail if it did not wait
        with open(reader) as pipe:
            printed = pipe.read()
    assert (running.returncode, printed) == (0, process("schema").stdout)


def test_closed_streams_are_no_internal_error(folder: Path) -> None:
    closed = shell("memcurse families >&-", folder)
    assert (closed.returncode, closed.stderr.count("\n")) == (2, 1)
    assert "standard output is closed" in closed.stderr
    for redirection in ("2>&-", "<&-"):
        assert shell(f"memcurse inspect '{SAMPLE}' {redirection}", folder).returncode == 0
    assert shell("memcurse check - <&-", folder).returncode == 2


def test_a_reader_that_leaves_early_sees_the_start_and_learns_of_a_violation(folder: Path) -> None:
    done = shell(f"memcurse inspect '{SAMPLE}' --json --values | head -n 1", folder)
    assert (done.returncode, done.stdout, done.stderr) == (0, "{\n", "")
    failing = shell(f"memcurse check '{CURSED}' | true", folder)
    assert (failing.returncode, failing.stderr) == (1, "")
    for arguments in ("--help", "rule --help", "--version"):
        assert shell(f"memcurse {arguments} | true", folder).returncode == 0


def test_an_interrupt_ends_with_130_and_one_line(tmp_path: Path) -> None:
    target = tmp_path / "network.safetensors"
    with subprocess.Popen(
        [MEMCURSE, "train", "gru", "--output", str(target), "--quiet"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
    ) as running:
        time.sleep(3)
        running.send_signal(signal.SIGINT)
        _, errors = running.communicate(timeout=60)
    assert running.returncode == 130
    assert errors.strip().splitlines()[-1] == "memcurse: interrupted"
    assert "Traceback" not in errors
    assert list(tmp_path.iterdir()) == []


INTERRUPT = "import os, signal; os.kill(os.getpid(), signal.SIGINT)"
SWALLOWED = f"""
try:
    {INTERRUPT}
except KeyboardInterrupt:  # as a compiled module does when what it imports fails
    raise ImportError("numpy failed to import")
"""


@pytest.mark.parametrize(
    ("module", "text"),
    [("typer", INTERRUPT), ("numpy", INTERRUPT), ("numpy", SWALLOWED)],
    ids=["typer", "numpy", "another error"],
)
def test_an_interrupt_while_a_library_is_imported_is_one(
    module: str, text: str, tmp_path: Path
) -> None:
    (tmp_path / f"{module}.py").write_text(text)
    path = f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    done = process("inspect", SAMPLE, environment={"PYTHONPATH": path})
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "memcurse: interrupted\n")


HEAVY = ("torch", "jax", "transformers", "optax")
PROGRAM = """
import contextlib, io, json, sys
from memcurse_cli.__main__ import run
with contextlib.redirect_stdout(io.StringIO()):
    code = run(sys.argv[1:])
print(json.dumps({"code": code, "modules": sorted(sys.modules)}))
"""


def modules(*arguments: str) -> set[str]:
    """The top-level packages that a command has imported when it ends."""
    result = json.loads(program(sys.executable, "-c", PROGRAM, *arguments).stdout)
    assert result["code"] == 0
    return {module.partition(".")[0] for module in result["modules"]}


@pytest.mark.parametrize(
    ("call", "heavy"),
    [
        ("--help", {*HEAVY, "numpy", "scipy"}),
        ("predict --rho 0.5", {*HEAVY, "scipy"}),
        ("families", {*HEAVY, "scipy"}),
        ("formats", {*HEAVY, "scipy"}),
        *((f"inspect {sample}", {*HEAVY}) for sample in ("LRU", "GRU", "CURSED")),
    ],
)
def test_light_commands_import_nothing_heavy(call: str, heavy: set[str]) -> None:
    assert modules(*words(call)).isdisjoint(heavy)


@pytest.mark.parametrize("kind", ["bash", "zsh", "fish"])
def test_the_script_is_shown_and_installed_and_completes(kind: str, tmp_path: Path) -> None:
    home = {"HOME": str(tmp_path), "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}
    shown, installed = (
        memcurse(f"--{action}-completion", kind, environment=home, folder=tmp_path)
        for action in ("show", "install")
    )
    assert (shown.returncode, shown.stderr, installed.returncode) == (0, "", 0)
    assert f"_MEMCURSE_COMPLETE=complete_{kind}" in shown.stdout
    scripts = [path for path in tmp_path.rglob("*memcurse*") if path.is_file()]
    assert len(scripts) == 1
    assert f"complete_{kind}" in scripts[0].read_text()
    if kind == "bash":
        typed = "COMP_WORDS=(memcurse inspect --hor); COMP_CWORD=2; _memcurse_completion memcurse"
        done = shell(f'{shown.stdout}\n{typed}; echo "${{COMPREPLY[@]}}"', tmp_path)
        assert done.stdout.strip() == "--horizon", done.stderr
