"""Where defaults come from: the environment, settings files, and what `memcurse settings` tells."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from end_to_end.command import SAMPLES, assert_refused, memcurse

from memcurse_cli.commands import COMMANDS, build
from memcurse_cli.commands.defaults import FOUND_MAY_SET, entries, everything, option_name
from memcurse_cli.diagnosis.policy import KEYS, rule_sets
from memcurse_cli.diagnosis.settings import SettingsFile, find_settings, read_settings
from memcurse_cli.errors import UsageError

LRU = SAMPLES / "lru.safetensors"


def report(
    folder: Path, *arguments: str, environment: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """What an inspection in a folder assumed."""
    result = memcurse("inspect", LRU, "--json", *arguments, folder=folder, environment=environment)
    assert (result.returncode, result.stderr) == (0, "")
    return json.loads(result.stdout)["input"]


def test_the_command_line_the_environment_the_file_and_the_default_in_this_order(
    tmp_path: Path,
) -> None:
    assert report(tmp_path)["learning_rate"] == 1e-3
    (tmp_path / "pyproject.toml").write_text("[tool.memcurse]\nlr = 2e-3\n")
    assert report(tmp_path)["learning_rate"] == 2e-3
    (tmp_path / "memcurse.toml").write_text("lr = 3e-3\n")
    assert report(tmp_path)["learning_rate"] == 3e-3
    (tmp_path / "memcurse.toml").write_text("lr = 3e-3\n[inspect]\nlr = 4e-3\n")
    assert report(tmp_path)["learning_rate"] == 4e-3
    variables = {"MEMCURSE_LR": "5e-3"}
    assert report(tmp_path, environment=variables)["learning_rate"] == 5e-3
    variables["MEMCURSE_INSPECT_LR"] = "6e-3"
    assert report(tmp_path, environment=variables)["learning_rate"] == 6e-3
    assert report(tmp_path, "--lr", "7e-3", environment=variables)["learning_rate"] == 7e-3
    (tmp_path / "memcurse.toml").write_text("horizon = inf\n")
    assert report(tmp_path)["horizon"] is None


def test_of_two_that_exclude_each_other_the_one_from_the_higher_place_counts(
    tmp_path: Path,
) -> None:
    (tmp_path / "memcurse.toml").write_text('autocorrelation = "1:0.1"\n')
    named = {"MEMCURSE_CONFIG": "memcurse.toml"}
    rho = {"MEMCURSE_RHO": "0.2", **named}
    assert report(tmp_path, environment=named)["autocorrelation"][0]["rho"] == 0.1
    assert report(tmp_path, environment=rho)["autocorrelation"][0]["rho"] == 0.2
    given = report(tmp_path, "--autocorrelation", "1:0.3", environment=rho)
    assert given["autocorrelation"][0]["rho"] == 0.3
    (tmp_path / "memcurse.toml").write_text('autocorrelation = "1:0.1"\nrho = 0.5\n')
    assert_refused(memcurse("inspect", LRU, folder=tmp_path, environment=named), "both")


def test_json_on_the_command_line_wins_over_a_format_from_elsewhere(tmp_path: Path) -> None:
    (tmp_path / "memcurse.toml").write_text('[inspect]\nformat = "html"\n')
    assert memcurse("inspect", LRU, folder=tmp_path).stdout.startswith("<!")
    assert report(tmp_path)["horizon"] == 300
    variables = {"MEMCURSE_INSPECT_FORMAT": "html", "MEMCURSE_CHECK_FORMAT": "junit"}
    assert report(tmp_path, environment=variables)["horizon"] == 300
    assert memcurse("check", LRU, environment=variables).stdout.startswith("<?xml")
    assert_refused(memcurse("inspect", LRU, "--json", "--format", "html"), "contradict")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("lr = \n", ["memcurse.toml:1", "not TOML"]),
        ("\nhorizn = 3\n", ["memcurse.toml:2", "did you mean horizon?"]),
        ("lr = true\n", ["memcurse.toml:1", "not a number"]),
        ("horizon = 1.5\n", ["memcurse.toml:1", "not whole"]),
        ("layer = [1]\n", ["memcurse.toml:1", "not a text"]),
        ("# none\nlr = -1\n", ["memcurse.toml:2", "--lr"]),
        ("max-unstable = 0\n", ["memcurse.toml:1", "[check]"]),
        ("[inspekt]\nlr = 1\n", ["memcurse.toml:1", "did you mean inspect?"]),
        ("output = 'x'\n", ["memcurse.toml:1", "output"]),
        ("[inspect]\njson = true\n", ["memcurse.toml:2", "json"]),
    ],
)
def test_an_error_of_a_file_has_its_line(text: str, words: list[str], tmp_path: Path) -> None:
    (tmp_path / "memcurse.toml").write_text(text)
    assert_refused(memcurse("inspect", LRU, folder=tmp_path), *words)


def test_an_error_of_the_environment_names_the_variable_and_a_report_is_not_read_by_settings(
    tmp_path: Path,
) -> None:
    for value in ("x", "-1"):
        refused = memcurse("inspect", LRU, environment={"MEMCURSE_LR": value})
        assert_refused(refused, "MEMCURSE_LR")
    (tmp_path / "memcurse.toml").write_text("lr = 3e-4\nhorizon = 7\n")
    document = memcurse("inspect", LRU, "--json").stdout
    result = memcurse("check", "-", stdin=document, folder=tmp_path)
    assert (result.returncode, result.stderr) == (0, "")


def test_settings_say_what_is_in_force_and_why(tmp_path: Path) -> None:
    (tmp_path / "memcurse.toml").write_text(
        "lr = 3e-4\n[predict]\nstep-size = 0.5\n[check]\nmax-unstable = 0\n"
        '[[check.overrides]]\nlayers = ["a.*"]\nmax-verdict = "ok"\n'
    )
    result = memcurse("settings", "--json", folder=tmp_path, environment={"MEMCURSE_RHO": "0.5"})
    assert (result.returncode, result.stderr) == (0, "")
    document = json.loads(result.stdout)
    assert document["file"] == "memcurse.toml"
    said = {one["name"]: (one["value"], one["origin"]) for one in document["settings"]}
    assert said["lr"] == (3e-4, "memcurse.toml:1")
    assert said["step-size"] == (0.5, "memcurse.toml:3")
    assert said["rho"] == ("0.5", "MEMCURSE_RHO")
    assert said["horizon"] == (None, "default")
    assert said["check.max-unstable"] == (0, "memcurse.toml:5")
    assert said["check.overrides[0].max-verdict"] == ("ok", "memcurse.toml:8")
    (rate,) = (one for one in document["settings"] if one["name"] == "lr")
    assert rate["variable"] == "MEMCURSE_LR"
    assert {"inspect", "check"} <= set(rate["commands"])
    page = memcurse("settings", folder=tmp_path).stdout
    assert any(line.split() == ["lr", "0.0003", "memcurse.toml:1"] for line in page.splitlines())


def outcome(file: SettingsFile | None, command: str) -> Any:
    """The keys that a command takes from a file, or why it takes none."""
    assert file is not None
    try:
        rule_sets(file)
        found = entries(file, command, everything().get(command, {}))
        return [name for name, _, _ in found]
    except UsageError as error:
        return str(error)


@pytest.mark.parametrize("command", COMMANDS)
def test_a_file_that_is_found_sets_only_what_is_listed(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    file = Path("memcurse.toml")
    for name in filter(None, map(option_name, build(command).params)):
        for table in ("", f"[{command}]"):
            file.write_text(f"{table}\n{name} = 1\n")
            found = outcome(find_settings(), command)
            named = outcome(read_settings(file), command)
            if name in FOUND_MAY_SET or name in KEYS or isinstance(named, str):
                assert found == named, name
                continue
            variable = f"MEMCURSE_{name}".upper().replace("-", "_")
            for words in ("memcurse.toml:2: ", f"--{name}", variable, "--config memcurse.toml"):
                assert words in found, name


def test_every_option_is_listed_for_a_found_file_or_left_out_for_a_reason() -> None:
    options = {name: option for found in everything().values() for name, option in found.items()}
    network, files = {"executor"}, {"autocorrelation", "optimizer", "cache", "inputs", "embeddings"}
    busy, passing = {"jobs", "step-pattern"}, {"exit-zero"}
    limits = {*KEYS} - {"overrides"}  # which stand in the table `check`, of any file
    assert options.keys() - FOUND_MAY_SET == network | files | busy | passing | limits
    assert options.keys() > FOUND_MAY_SET
    for name in FOUND_MAY_SET:
        assert not re.search(r"FILE|DIR|PATH|://", options[name].metavar or ""), name


@pytest.mark.parametrize(
    ("command", "key"),
    [
        (("track", "run"), "executor"),
        (("track", "run"), "cache"),
        (("inspect", LRU), "optimizer"),
        (("inspect", LRU), "autocorrelation"),
        (("predict",), "autocorrelation"),
        (("settings",), "executor"),
    ],
)
def test_a_cloned_file_reaches_neither_the_network_nor_a_file(
    command: tuple[str | Path, ...], key: str, tmp_path: Path
) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "step_1.safetensors").write_bytes(LRU.read_bytes())
    (tmp_path / "secret").write_text("hidden")
    with socket.create_server(("127.0.0.1", 0)) as scheduler:
        scheduler.settimeout(0)
        place = f"dask://127.0.0.1:{scheduler.getsockname()[1]}" if key == "executor" else "secret"
        for name, text in (
            ("pyproject.toml", f"[tool.memcurse]\n{key} = '{place}/x'\n"),
            ("memcurse.toml", f"\n{key} = '{place}'\n"),
        ):
            (tmp_path / name).write_text(text)
            result = memcurse(*command, folder=tmp_path)
            assert_refused(result, f"{name}:2: {key} ", f"--{key}", f"--config {name}")
            assert "hidden" not in result.stderr
        with pytest.raises(BlockingIOError):
            scheduler.accept()


def test_verbose_tells_where_options_come_from_on_standard_error(tmp_path: Path) -> None:
    (tmp_path / "memcurse.toml").write_text("horizon = 9\n")
    given = {"folder": tmp_path, "environment": {"MEMCURSE_LR": "1e-4"}}
    quiet, told = (memcurse("inspect", LRU, *more, **given) for more in ((), ("--verbose",)))
    assert told.stdout == quiet.stdout
    lines = told.stderr.splitlines()
    assert lines[0] == "memcurse: settings are read from memcurse.toml"
    assert "memcurse: horizon = 9 (memcurse.toml:1)" in lines
    assert "memcurse: lr = 0.0001 (MEMCURSE_LR)" in lines
    assert lines[-1].endswith("MB of memory at most")


def test_debug_shows_the_traceback_and_ends_with_2() -> None:
    for asked, environment in ((["--debug"], {}), ([], {"MEMCURSE_DEBUG": "1"})):
        result = memcurse("inspect", "absent.pt", *asked, environment=environment)
        assert result.returncode == 2
        assert result.stderr.startswith("Traceback")
        assert result.stderr.splitlines()[-1].startswith("memcurse: error: ")
    assert "Traceback" not in memcurse("inspect", "absent.pt").stderr


def test_the_version_names_the_libraries() -> None:
    lines = memcurse("--version").stdout.splitlines()
    named = [line.split()[0] for line in lines[:6]]
    assert named == ["memcurse", "python", "numpy", "scipy", "torch", "jax"]
