"""What the command line promises, whatever the command."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from end_to_end.command import MEMCURSE, SAMPLES, memcurse

from memcurse_cli.app import COMMANDS, load

SAMPLE = SAMPLES / "lru.safetensors"
PRINTING = [
    ("inspect", SAMPLE),
    ("inspect", SAMPLE, "--json"),
    ("predict", "--rho", "0.5"),
    ("predict", "--plot"),
    ("hessian", SAMPLE),
    ("hessian", SAMPLE, "--json"),
    ("families",),
    ("formats",),
]
ESCAPE = re.compile(r"\x1b")


@pytest.mark.parametrize("command", COMMANDS)
def test_help_has_an_example_or_a_purpose_and_fits(command: str) -> None:
    result = memcurse(command, "--help", environment={"NO_COLOR": "1"})
    assert result.returncode == 0
    assert result.stderr == ""
    assert "Usage: memcurse" in result.stdout
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


@pytest.mark.parametrize("arguments", PRINTING, ids=lambda arguments: "-".join(map(str, arguments)))
def test_piped_output_has_no_control_codes_and_nothing_beside_it(
    arguments: tuple[str | Path, ...],
) -> None:
    result = memcurse(*arguments)
    assert result.returncode == 0
    assert result.stderr == ""
    assert result.stdout.endswith("\n")
    assert not ESCAPE.search(result.stdout)


@pytest.mark.parametrize("arguments", PRINTING, ids=lambda arguments: "-".join(map(str, arguments)))
def test_a_locale_without_unicode_gets_ascii(arguments: tuple[str | Path, ...]) -> None:
    plain = {"PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0", "LC_ALL": "C"}
    result = memcurse(*arguments, environment=plain)
    assert result.returncode == 0, result.stderr
    assert result.stdout.isascii()


@pytest.mark.parametrize("width", ["40", "60"])
def test_a_narrow_terminal_is_kept_to(width: str) -> None:
    for arguments in (
        ("inspect", SAMPLE),
        ("predict", "--rho", "0.5"),
        ("hessian", SAMPLE),
        ("formats",),
    ):
        result = memcurse(*arguments, environment={"COLUMNS": width})
        assert result.returncode == 0
        assert max(map(len, result.stdout.splitlines())) <= int(width)


def test_a_reader_that_leaves_early_is_no_error() -> None:
    command = f"{MEMCURSE} inspect {SAMPLE} --json --values | head -n 1"
    done = subprocess.run(
        ["bash", "-c", command], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout == "{\n"
    assert done.stderr == ""


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
