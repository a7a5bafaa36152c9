"""What only a process of its own shows: streams, signals, imports, completion."""

from __future__ import annotations

import json
import os
import select
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from end_to_end.calls import CALLS, CURSED, SAMPLE
from end_to_end.command import MEMCURSE, SAMPLES, memcurse, process

LIMITED = "export PYTHONDONTWRITEBYTECODE=1"  # Python itself would not notice a truncated one


def command_line(*arguments: str | Path) -> str:
    """A call as a shell reads it."""
    return shlex.join([MEMCURSE, *map(str, arguments)])


def shell(script: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a line in bash; a pipe fails where any part of it does."""
    return subprocess.run(
        ["bash", "-o", "pipefail", "-c", script],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=folder,
        check=False,
    )


def test_module_and_command_are_the_same() -> None:
    by_module = subprocess.run(
        [sys.executable, "-m", "memcurse_cli", "--version"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert by_module.stdout == process("--version").stdout
    assert by_module.stdout.startswith("memcurse 0.")


@pytest.mark.parametrize("command", ["inspect", "track", "families"])
def test_a_locale_without_unicode_gets_ascii(command: str, folder: Path) -> None:
    plain = {"PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0", "LC_ALL": "C"}
    result = process(command, *CALLS[command][0], environment=plain, folder=folder)
    assert result.returncode == 0, result.stderr
    assert result.stdout.isascii()


@pytest.mark.parametrize("unbuffered", ["", "PYTHONUNBUFFERED=1 "], ids=["buffered", "unbuffered"])
@pytest.mark.parametrize(
    "arguments",
    [("families",), ("check", SAMPLE), ("--version",), ("--help",), ("--show-completion", "bash")],
    ids=lambda arguments: arguments[0],
)
def test_a_full_disk_is_one_line(
    arguments: tuple[str | Path, ...], unbuffered: str, folder: Path
) -> None:
    command = f"_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION=1 {command_line(*arguments)}"
    places = {
        f"{unbuffered}{command} > /dev/full": "No space left on device",
        # Room for the first bytes: a write that is cut short comes before one that fails.
        f"head -c 1000 /dev/zero > cut; ulimit -f 1; {unbuffered}{command} >> cut": (
            "File too large"
        ),
    }
    for script, reason in places.items():
        done = shell(f"{LIMITED}; unset PYTHONUNBUFFERED; {script}", folder)
        assert done.stderr == f"memcurse: error: standard output: cannot be written: {reason}\n"
        assert done.returncode == 2


@pytest.mark.parametrize(
    ("arguments", "code"), [(("families",), 0), (("check", CURSED), 1), (("inspect", "absent"), 2)]
)
def test_standard_error_on_a_full_disk_changes_no_exit_code(
    arguments: tuple[str | Path, ...], code: int, folder: Path
) -> None:
    assert shell(f"{command_line(*arguments)} --verbose 2> /dev/full", folder).returncode == code


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
    closed = shell(f"{command_line('families')} >&-", folder)
    assert (closed.returncode, closed.stderr.count("\n")) == (2, 1)
    assert "standard output is closed" in closed.stderr
    for redirection in ("2>&-", "<&-"):
        assert shell(f"{command_line('inspect', SAMPLE)} {redirection}", folder).returncode == 0
    assert shell(f"{command_line('check', '-')} <&-", folder).returncode == 2


def test_a_reader_that_leaves_early_sees_the_start_and_learns_of_a_violation(folder: Path) -> None:
    done = shell(f"{command_line('inspect', SAMPLE, '--json', '--values')} | head -n 1", folder)
    assert (done.returncode, done.stdout, done.stderr) == (0, "{\n", "")
    failing = shell(f"{command_line('check', CURSED)} | true", folder)
    assert (failing.returncode, failing.stderr) == (1, "")
    for arguments in (("--help",), ("rule", "--help"), ("--version",)):
        assert shell(f"{command_line(*arguments)} | true", folder).returncode == 0


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
    [
        ("typer", INTERRUPT),
        ("numpy", INTERRUPT),
        ("numpy", SWALLOWED),
    ],
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
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *arguments], capture_output=True, text=True, check=True
    )
    result = json.loads(done.stdout)
    assert result["code"] == 0
    return {module.partition(".")[0] for module in result["modules"]}


def test_help_imports_no_array_library() -> None:
    assert modules("--help").isdisjoint({*HEAVY, "numpy", "scipy"})


@pytest.mark.parametrize(
    "arguments",
    [
        ("predict", "--rho", "0.5"),
        ("families",),
        ("formats",),
    ],
    ids=lambda arguments: arguments[0],
)
def test_light_commands_import_nothing_heavy(arguments: tuple[str, ...]) -> None:
    assert modules(*arguments).isdisjoint({*HEAVY, "scipy"})


@pytest.mark.parametrize("sample", ["lru", "gru", "dense_linear_rnn"])
def test_inspect_of_a_small_safetensors_file_imports_nothing_heavy(sample: str) -> None:
    assert modules("inspect", str(SAMPLES / f"{sample}.safetensors")).isdisjoint(HEAVY)


SHELLS = ("bash", "zsh", "fish")


def run(folder: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run memcurse with a home of its own and no shell to detect."""
    given = {"HOME": str(folder), "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}
    return memcurse(*arguments, environment={**given, **environment}, folder=folder)


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
