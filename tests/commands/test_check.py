"""`memcurse check` from the command line."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from end_to_end.command import SAMPLES, assert_refused, memcurse

from memcurse_cli.checkpoints.untrusted import names
from memcurse_cli.checkpoints.untrusted.names import MAX_CONTAINERS, MAX_JSON_BYTES
from memcurse_cli.commands import request

LRU = SAMPLES / "lru.safetensors"
DENSE = SAMPLES / "dense_linear_rnn.safetensors"


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The JSON of both samples."""
    return {path.stem: memcurse("inspect", path, "--json").stdout for path in (LRU, DENSE)}


def test_a_healthy_checkpoint_passes_and_a_cursed_one_fails() -> None:
    passed = memcurse("check", LRU)
    assert (passed.returncode, passed.stderr) == (0, "")
    assert passed.stdout.startswith("passed")
    failed = memcurse("check", DENSE)
    assert (failed.returncode, failed.stderr) == (1, "")
    assert failed.stdout.count("fail  ") == 2  # MC101, and the rate once
    assert "5.3e-5" in failed.stdout
    assert memcurse("check", DENSE, "--exit-zero").returncode == 0


def test_a_pipe_and_a_file_of_a_report_are_as_good_as_the_checkpoint(
    reports: dict[str, str], tmp_path: Path
) -> None:
    direct = memcurse("check", DENSE, "--json")
    piped = memcurse("check", "-", "--json", stdin=reports["dense_linear_rnn"])
    file = tmp_path / "report"
    file.write_text(reports["dense_linear_rnn"])
    assert json.loads(direct.stdout) == json.loads(piped.stdout)
    assert memcurse("check", file, "--json").stdout == piped.stdout
    assert (direct.returncode, piped.returncode) == (1, 1)


def test_limits_stand_in_a_file_and_the_command_line_wins(
    reports: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "memcurse.toml").write_text(
        '[check]\nmax-step-effect = 0.01\n\n[[check.overrides]]\nlayers = ["nowhere.*"]\n'
        "max-unstable = 0\n"
    )
    strict = memcurse("check", "-", stdin=reports["lru"], folder=tmp_path)
    assert strict.returncode == 1
    assert "memcurse.toml:2" in strict.stdout
    assert strict.stderr.splitlines() == [
        "memcurse: warning: memcurse.toml:4: matches no layer (layers nowhere.*)"
    ]
    lenient = memcurse(
        "check", "-", "--max-step-effect", "1", "--quiet", stdin=reports["lru"], folder=tmp_path
    )
    assert (lenient.returncode, lenient.stderr) == (0, "")


def test_only_what_got_worse_fails_against_a_baseline(
    reports: dict[str, str], tmp_path: Path
) -> None:
    baseline = tmp_path / "baseline.json"
    baseline.write_text(reports["dense_linear_rnn"])
    same = memcurse("check", DENSE, "--baseline", baseline)
    assert same.returncode == 0
    assert "no worse than in the baseline" in " ".join(same.stdout.split())
    better = json.loads(reports["dense_linear_rnn"])
    better["layers"][0]["parameters"][0]["step_effect"] /= 1.1
    baseline.write_text(json.dumps(better))
    assert memcurse("check", DENSE, "--baseline", baseline).returncode == 1
    assert memcurse("check", DENSE, "--baseline", baseline, "--tolerance", "0.2").returncode == 0


def test_what_is_no_report_and_what_reads_a_checkpoint_are_refused(reports: dict[str, str]) -> None:
    for arguments in (("--lr", "1e-4"), ("--horizon", "5"), ("--layer", "x")):
        refused = memcurse("check", "-", *arguments, stdin=reports["lru"])
        assert_refused(refused, arguments[0], "standard input is a report")
    for stdin, words in (("", "nothing was piped in"), ("[]", "no report"), ('{"schema"', "JSON")):
        assert_refused(memcurse("check", "-", stdin=stdin), words)


def test_json_has_the_bounds_of_a_tensors_header(
    reports: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    large, many = tmp_path / "large.json", tmp_path / "many.json"
    large.write_text("{")
    os.truncate(large, 1 << 40)
    many.write_text("[" + "[]," * MAX_CONTAINERS + "[]]")
    assert_refused(memcurse("check", large), "large.json", f"more than {MAX_JSON_BYTES} bytes")
    assert_refused(memcurse("compare", LRU, many), "many.json", "lists and objects")
    for baseline, words in ((large, "more than"), (many, "lists and objects")):
        outcome = memcurse("check", LRU, "--baseline", baseline)
        assert_refused(outcome, baseline.name, words)
    os.mkfifo(tmp_path / "pipe")
    opened = os.open(tmp_path / "pipe", os.O_RDWR)
    os.write(opened, reports["lru"].encode())
    assert_refused(memcurse("check", LRU, "--baseline", tmp_path / "pipe"), "nor a directory")
    os.close(opened)
    for module in (request, names):
        monkeypatch.setattr(module, "MAX_JSON_BYTES", 1000)
    outcome = memcurse("check", "-", stdin=reports["lru"])
    assert_refused(outcome, "standard input", "more than 1000 bytes")


def test_a_layer_that_was_not_judged_passes_with_a_warning_unless_told_otherwise(
    tmp_path: Path,
) -> None:
    gru = SAMPLES / "gru.safetensors"
    passed = memcurse("check", gru)
    assert passed.returncode == 0
    assert "l0 was not judged: its weights do not tell its rate" in " ".join(passed.stdout.split())
    assert memcurse("check", gru, "--fail-on", "not-judged").returncode == 1
    assert memcurse("check", gru, "--max-verdict", "watch").returncode == 1
    (tmp_path / "memcurse.toml").write_text('[check]\nfail-on = "not-judged"\nmin-memory = 4\n')
    configured = memcurse("check", gru, folder=tmp_path)
    assert configured.stdout.count("fail  ") == 1


def test_a_report_of_the_first_version_is_a_baseline(
    reports: dict[str, str], tmp_path: Path
) -> None:
    old = json.loads(reports["dense_linear_rnn"]) | {"schema": "memcurse.report/1"}
    old["layers"][0]["findings"] = []  # it was judged by its step effects
    baseline = tmp_path / "old.json"
    baseline.write_text(json.dumps(old))
    against = memcurse("check", DENSE, "--ignore", "MC101", "--baseline", baseline)
    assert (against.returncode, against.stderr) == (0, "")
    assert memcurse("check", baseline).returncode == 1


def test_the_summary_of_a_job_is_added_where_github_runs(tmp_path: Path) -> None:
    summary = tmp_path / "summary.md"
    summary.write_text("before\n")
    variables = {"GITHUB_STEP_SUMMARY": str(summary)}
    for _ in range(2):
        assert memcurse("check", DENSE, "--format", "github", environment=variables).returncode == 1
    printed = memcurse("check", DENSE, "--format", "markdown", environment=variables).stdout
    assert summary.read_text() == "before\n" + 2 * printed
    assert "5.3e-5" in printed
    variables = {"GITHUB_STEP_SUMMARY": str(tmp_path / "absent" / "summary.md")}
    failed = memcurse("check", DENSE, "--format", "github", environment=variables)
    assert failed.returncode == 1
    assert failed.stderr.startswith("memcurse: warning: GITHUB_STEP_SUMMARY: cannot be written")
