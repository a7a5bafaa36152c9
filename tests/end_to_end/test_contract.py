"""What the command line promises, whatever the command."""

from __future__ import annotations

import io
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
from end_to_end.command import MEMCURSE, SAMPLES, memcurse

from memcurse_cli.__main__ import run
from memcurse_cli.app import COMMANDS, load

SAMPLE = SAMPLES / "lru.safetensors"
CURSED = SAMPLES / "dense_linear_rnn.safetensors"
NOISE = "noise.csv"
CALLS: dict[str, list[tuple[str | Path, ...]]] = {
    "inspect": [(SAMPLE,), (SAMPLE, "--json"), (SAMPLE, "--format", "html")],
    "predict": [("--rho", "0.5"), ("--plot",), ("--ring", "0.9:0.99")],
    "check": [
        (CURSED, "--exit-zero"),
        (CURSED, "--exit-zero", "--format", "github"),
        (CURSED, "--exit-zero", "--format", "sarif"),
        (CURSED, "--exit-zero", "--format", "junit"),
    ],
    "compare": [
        (SAMPLE, CURSED),
        (SAMPLE, SAMPLE, "--json"),
        (SAMPLE, CURSED, "--format", "html"),
    ],
    "track": [
        (SAMPLES / "run", "--no-cache", "--jobs", "1"),
        (SAMPLES / "run", "--no-cache", "--jobs", "1", "--format", "csv"),
        (SAMPLES / "run", "--no-cache", "--jobs", "1", "--json"),
        (SAMPLES / "run", "--no-cache", "--jobs", "1", "--format", "html"),
    ],
    "landscape": [(), ("--json",)],
    "rule": [(), ("MC204",)],
    "autocorrelation": [(NOISE,)],
    "hessian": [(SAMPLE,), (SAMPLE, "--json")],
    "families": [()],
    "formats": [()],
    "schema": [("check",)],
    "settings": [()],
}
"""Calls of every command but train, which says one line of its own and needs JAX."""

PRINTING = [(command, *arguments) for command, calls in CALLS.items() for arguments in calls]
PAGES = [
    call
    for call in PRINTING
    if not {"--json", "--format", "schema", "--plot"} & set(map(str, call))
]
each_call = pytest.mark.parametrize(
    "arguments",
    PRINTING,
    ids=lambda arguments: "-".join(Path(one).name for one in arguments),
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A working directory that holds a short series and no settings."""
    path = tmp_path_factory.mktemp("contract")
    (path / NOISE).write_text("\n".join(str((7 * k) % 11) for k in range(60)))
    return path


def test_every_command_is_held_to_the_contract() -> None:
    assert set(CALLS) == set(COMMANDS) - {"train"}


ESCAPE = re.compile(r"\x1b")


@pytest.mark.parametrize("command", COMMANDS)
def test_help_has_an_example_and_fits(command: str) -> None:
    result = memcurse(command, "--help", environment={"NO_COLOR": "1"})
    assert result.returncode == 0
    assert result.stderr == ""
    assert "Usage: memcurse" in result.stdout
    assert f"Example: memcurse {command}" in result.stdout or "| memcurse check" in result.stdout
    assert max(map(len, result.stdout.splitlines())) <= 80


@pytest.mark.parametrize(("command", "line"), COMMANDS.items())
def test_the_list_of_commands_says_what_the_commands_say(command: str, line: str) -> None:
    assert (load(command).__doc__ or "").splitlines()[0] == line


def test_module_and_command_are_the_same() -> None:
    by_module = subprocess.run(
        [sys.executable, "-m", "memcurse_cli", "--version"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert by_module.stdout == memcurse("--version").stdout
    assert by_module.stdout.startswith("memcurse 0.")


@each_call
def test_piped_output_has_no_control_codes_and_nothing_beside_it(
    arguments: tuple[str | Path, ...], folder: Path
) -> None:
    result = memcurse(*arguments, folder=folder)
    assert result.returncode == 0
    assert result.stderr == ""
    assert result.stdout.endswith("\n")
    assert not ESCAPE.search(result.stdout)


@pytest.mark.parametrize("command", CALLS)
def test_a_locale_without_unicode_gets_ascii(command: str, folder: Path) -> None:
    plain = {"PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0", "LC_ALL": "C"}
    result = memcurse(command, *CALLS[command][0], environment=plain, folder=folder)
    assert result.returncode == 0, result.stderr
    assert result.stdout.isascii()


@dataclass(frozen=True)
class Here:
    """Runs commands in this process, which saves the half second that starting one takes."""

    patch: pytest.MonkeyPatch

    def __call__(
        self, *arguments: str | Path, encoding: str = "utf-8", **environment: str
    ) -> tuple[int, str, str]:
        """The exit code and what went to standard output and error."""
        output = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
        errors = io.StringIO()
        with self.patch.context() as patch:
            for name, value in {"COLUMNS": "80", **environment}.items():
                patch.setenv(name, value)
            patch.setattr(sys, "stdout", output)
            patch.setattr(sys, "stderr", errors)
            code = run([*map(str, arguments)])
        output.flush()
        return code, output.buffer.getvalue().decode(encoding), errors.getvalue()  # type: ignore[attr-defined]  # a BytesIO


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch, folder: Path) -> Here:
    """Run a command in the folder, without the colours that the environment may ask for."""
    monkeypatch.chdir(folder)
    for name in ("FORCE_COLOR", "NO_COLOR", "TERM"):
        monkeypatch.delenv(name, raising=False)
    return Here(monkeypatch)


@each_call
def test_another_encoding_is_no_error(arguments: tuple[str | Path, ...], here: Here) -> None:
    for encoding in ("ascii", "iso8859-1", "cp1252", "utf-16"):
        code, printed, errors = here(*arguments, encoding=encoding)
        assert (code, errors) == (0, ""), encoding
        assert printed.endswith("\n")


@pytest.mark.parametrize("width", ["40", "60"])
def test_a_narrow_terminal_is_kept_to(width: str, here: Here) -> None:
    for arguments in PAGES:
        code, printed, _ = here(*arguments, COLUMNS=width)
        assert code == 0
        assert max(map(len, printed.splitlines())) <= int(width), arguments


def test_no_color_wins_over_a_forced_one(here: Here) -> None:
    for arguments in PAGES:
        assert ESCAPE.search(here(*arguments, FORCE_COLOR="1")[1]), arguments
        plain = here(*arguments, FORCE_COLOR="1", NO_COLOR="1")
        assert not ESCAPE.search(plain[1]), arguments
        assert plain == here(*arguments)


@each_call
def test_output_goes_whole_into_a_file(
    arguments: tuple[str | Path, ...], here: Here, tmp_path: Path
) -> None:
    target = tmp_path / "out"
    assert here(*arguments, "--output", target) == (0, "", "")
    assert target.read_text(encoding="utf-8").endswith("\n")
    assert list(tmp_path.iterdir()) == [target]


@each_call
def test_an_output_that_cannot_be_written_is_one_line(
    arguments: tuple[str | Path, ...], here: Here, tmp_path: Path
) -> None:
    file = tmp_path / "file"
    file.write_text("untouched")
    for target in (tmp_path / "absent" / "out", tmp_path, file / "out"):
        code, printed, errors = here(*arguments, "--output", target)
        assert (code, printed, errors.count("\n")) == (2, "", 1)
        assert errors.startswith(f"memcurse: error: {target}: cannot be written")
    assert list(tmp_path.iterdir()) == [file]
    assert file.read_text() == "untouched"


def test_a_directory_that_is_read_only_is_read_from_and_left_as_it_was(
    here: Here, folder: Path
) -> None:
    folder.chmod(0o500)
    try:
        for arguments in PRINTING:
            before = sorted(folder.iterdir())
            assert here(*arguments)[0] == 0
            assert sorted(folder.iterdir()) == before
    finally:
        folder.chmod(0o700)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full to fill")
def test_a_full_disk_is_one_line(folder: Path) -> None:
    for arguments in (("families",), ("check", CURSED), ("--version",)):
        done = shell(f"{command_line(*arguments)} > /dev/full", folder)
        assert done.returncode == 2
        assert done.stderr.splitlines() == [
            "memcurse: error: standard output: cannot be written: No space left on device"
        ]


def test_closed_streams_are_no_internal_error(folder: Path) -> None:
    closed = shell(f"{command_line('families')} >&-", folder)
    assert (closed.returncode, closed.stderr.count("\n")) == (2, 1)
    assert "standard output is closed" in closed.stderr
    for redirection in ("2>&-", "<&-"):
        assert shell(f"{command_line('inspect', SAMPLE)} {redirection}", folder).returncode == 0
    assert shell(f"{command_line('check', '-')} <&-", folder).returncode == 2


@pytest.mark.parametrize("command", CALLS)
def test_a_reader_that_leaves_early_is_no_error(command: str, folder: Path) -> None:
    done = shell(f"{command_line(command, *CALLS[command][-1])} | true", folder)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_reader_that_leaves_early_sees_the_start_and_learns_of_a_violation(folder: Path) -> None:
    done = shell(f"{command_line('inspect', SAMPLE, '--json', '--values')} | head -n 1", folder)
    assert (done.returncode, done.stdout, done.stderr) == (0, "{\n", "")
    failing = shell(f"{command_line('check', CURSED)} | true", folder)
    assert (failing.returncode, failing.stderr) == (1, "")
    for arguments in (("--help",), ("rule", "--help"), ("--version",)):
        assert shell(f"{command_line(*arguments)} | true", folder).returncode == 0


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


def test_an_interrupt_ends_with_130_and_one_line(tmp_path: Path) -> None:
    target = tmp_path / "network.safetensors"
    process = subprocess.Popen(
        [MEMCURSE, "train", "gru", "--output", str(target), "--quiet"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
    )
    time.sleep(3)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert errors.strip().splitlines()[-1] == "memcurse: interrupted"
    assert "Traceback" not in errors
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("command", COMMANDS)
def test_an_unknown_option_is_one_line_and_bad_usage(command: str, here: Here) -> None:
    code, printed, errors = here(command, "--nonsense")
    assert (code, printed, errors.count("\n")) == (2, "", 1)
    assert "--nonsense" in errors
    assert f"see 'memcurse {command} --help'" in errors


def test_no_arguments_show_the_help() -> None:
    result = memcurse()
    assert "Usage: memcurse" in result.stdout
    assert result.stderr == ""


def test_json_is_one_object_per_checkpoint(tmp_path: Path) -> None:
    one = json.loads(memcurse("inspect", SAMPLE, "--json").stdout)
    assert one["schema"] == "memcurse.report/1"
    two = json.loads(memcurse("inspect", SAMPLE, SAMPLE, "--json").stdout)
    assert two == [one, one]
    target = tmp_path / "report.json"
    written = memcurse("inspect", SAMPLE, "--json", "--output", target)
    assert (written.returncode, written.stdout) == (0, "")
    assert json.loads(target.read_text()) == one


def test_values_are_every_eigenvalue() -> None:
    layer = json.loads(memcurse("inspect", SAMPLE, "--json", "--values").stdout)["layers"][0]
    assert len(layer["eigenvalues"]["values"]) == layer["eigenvalues"]["count"] == 64
    assert "values" not in json.loads(memcurse("inspect", SAMPLE, "--json").stdout)["layers"][0]


def test_a_state_dict_and_its_file_by_any_name_are_read_by_content(tmp_path: Path) -> None:
    disguised = tmp_path / "model.pt"
    disguised.write_bytes(SAMPLE.read_bytes())
    report = json.loads(memcurse("inspect", disguised, "--json").stdout)
    assert report["checkpoint"]["format"] == "safetensors"
