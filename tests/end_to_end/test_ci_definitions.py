"""The GitHub Action and the pre-commit hook run what they say, as their runners would run it."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from shutil import copyfile
from typing import Any

import pytest
import yaml
from end_to_end.command import MEMCURSE, ROOT, SAMPLES, program

from memcurse_cli.checkpoints.registry import FORMATS

ACTION: dict[str, Any] = yaml.safe_load((ROOT / "action.yml").read_text())


SETUP, INSTALL, CHECK = ACTION["runs"]["steps"]
SHELLS = {"bash": ["bash", "-e", "-o", "pipefail"], "python": [sys.executable]}
"""How the runner starts the script of a step."""


def run_step(
    step: dict[str, Any], folder: Path, **inputs: str
) -> tuple[subprocess.CompletedProcess[str], dict[str, str]]:
    """A step with its inputs in the environment as the runner puts them, and its outputs."""
    given = {name: entry.get("default", "") for name, entry in ACTION["inputs"].items()}
    given |= {name.replace("_", "-"): value for name, value in inputs.items()}
    environment = {
        name: re.sub(r"\$\{\{ inputs\.([\w-]+) \}\}", lambda found: given[found[1]], value)
        for name, value in step["env"].items()
    }
    script, outputs = folder / "step", folder / "outputs"
    script.write_text(step["run"])
    outputs.touch()
    environment |= {"RUNNER_TEMP": str(folder), "GITHUB_OUTPUT": str(outputs)}
    environment |= {"GITHUB_STEP_SUMMARY": str(folder / "summary"), "GITHUB_WORKSPACE": str(folder)}
    environment |= {"GITHUB_ACTION_PATH": str(ROOT)}
    done = program(*SHELLS[step["shell"]], script, environment=environment, folder=folder)
    return done, dict(line.split("=", 1) for line in outputs.read_text().splitlines())


def run_action(
    folder: Path, *, command: str = f'exec {MEMCURSE} "$@"', **inputs: str
) -> tuple[subprocess.CompletedProcess[str], dict[str, str]]:
    """The last step, with a command that leaves its calls in ``calls``."""
    write_program(folder / "memcurse" / "bin" / "memcurse", f'echo "$*" >> calls\n{command}')
    return run_step(CHECK, folder, **inputs)


def write_program(path: Path, script: str) -> None:
    path.parent.mkdir(parents=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def test_the_action_fails_on_a_cursed_checkpoint_with_annotations(tmp_path: Path) -> None:
    copyfile(SAMPLES / "dense_linear_rnn.safetensors", tmp_path / "dense.safetensors")
    done, outputs = run_action(tmp_path, paths="dense.safetensors", sarif="out.sarif")
    assert done.returncode == 1, done.stderr
    assert done.stdout.startswith("::error file=dense.safetensors,")
    assert '"version": "2.1.0"' in (tmp_path / "out.sarif").read_text()
    assert (tmp_path / "summary").read_text().count("| dense.safetensors | cursed |") == 1
    assert outputs["verdict"] == "cursed"
    assert json.loads(Path(outputs["report"]).read_text())["schema"].startswith("memcurse.report/")


def test_the_action_expands_patterns_and_reads_each_file_once(tmp_path: Path) -> None:
    folder = tmp_path / "my runs" / "a"
    folder.mkdir(parents=True)
    for sample in ("lru", "gru"):
        copyfile(SAMPLES / f"{sample}.safetensors", folder / f"{sample}.safetensors")
    done, outputs = run_action(
        tmp_path,
        paths='"my runs/**/*.safetensors"\n"my runs/a/lru.safetensors"\n',
        inspect_options="--horizon 300 --layer '*'",
        options="--max-unstable 0",
        sarif="out.sarif",
    )
    assert (done.returncode, done.stderr) == (0, "")
    reports = json.loads(Path(outputs["report"]).read_text())
    assert [report["checkpoint"]["path"] for report in reports] == [
        "my runs/a/gru.safetensors",
        "my runs/a/lru.safetensors",
    ]
    assert {report["input"]["horizon"] for report in reports} == {300}
    reading, *checking = (tmp_path / "calls").read_text().splitlines()
    assert reading.startswith("inspect --horizon 300 --layer * --json ")
    for call in checking:
        assert call.startswith("check --max-unstable 0 ")
        assert call.endswith(f" -- {outputs['report']}")


def test_the_outputs_of_the_action_are_those_of_its_last_step_and_its_verdict_is_the_worst(
    tmp_path: Path,
) -> None:
    for name, output in ACTION["outputs"].items():
        assert output["value"] == f"${{{{ steps.{CHECK['id']}.outputs.{name} }}}}"
    for worst, *others in (
        ("ok", "ok"),
        ("not_judged", "ok"),
        ("watch", "not_judged"),
        ("cursed", "watch", "ok"),
    ):
        folder = tmp_path / worst
        folder.mkdir()
        reports = json.dumps([{"verdict": verdict} for verdict in (*others, worst)])
        command = f"[ $1 = check ] || echo '{reports}' > \"$4\""
        done, outputs = run_action(folder, command=command, paths="x")
        assert (done.returncode, done.stderr) == (0, "")
        assert outputs["verdict"] == worst


@pytest.mark.parametrize(
    "paths", ["$(touch pwned) `touch pwned`; touch pwned", "--help", "bob's.safetensors", "no*", ""]
)
def test_an_input_of_the_action_is_never_run(paths: str, tmp_path: Path) -> None:
    done, outputs = run_action(tmp_path, paths=paths)
    assert (done.returncode, done.stderr.count("\n"), outputs) == (2, 1, {})
    assert done.stderr.startswith("memcurse: error: ")
    assert not (tmp_path / "pwned").exists()
    assert all("${{" not in step.get("run", "") for step in ACTION["runs"]["steps"])


@pytest.mark.parametrize(
    ("paths", "packages"),
    [
        ("runs/*.safetensors", [str(ROOT)]),
        ("a.pt hf://owner/model", [f"{ROOT}[remote]", "huggingface_hub"]),
    ],
)
def test_the_action_installs_the_core_and_what_a_url_takes(
    paths: str, packages: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_program(tmp_path / "bin" / "python", f"mkdir -p {tmp_path}/memcurse/bin")
    write_program(tmp_path / "memcurse" / "bin" / "pip", "printf '%s\\n' \"$@\"")
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    done, _ = run_step(INSTALL, tmp_path, paths=paths)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1 - len(packages) :] == [
        str(ROOT / "constraints.txt"),
        *packages,
    ]


def test_the_hook_takes_checkpoints_and_runs_the_check() -> None:
    (hook,) = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())
    for name in ("model.safetensors", "runs/best.ckpt", "pytorch_model.bin"):
        assert re.search(hook["files"], name)
    assert not re.search(hook["files"], "train.py")
    wanted = re.findall(r"\w+", hook["files"].partition("(")[2])
    known = {extension.lstrip(".") for one in FORMATS for extension in one.extensions}
    assert set(wanted) <= known
    command = [MEMCURSE if part == "memcurse" else part for part in shlex.split(hook["entry"])]
    for sample, code in (("lru", 0), ("dense_linear_rnn", 1)):
        done = program(*command, SAMPLES / f"{sample}.safetensors")
        assert done.returncode == code, done.stderr
