"""The GitHub Action and the pre-commit hook run what they say, as their runners would run it."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import yaml
from end_to_end.command import MEMCURSE, ROOT, SAMPLES

from memcurse_cli.checkpoints.registry import FORMATS

ACTION: dict[str, Any] = yaml.safe_load((ROOT / "action.yml").read_text())


def run_action(folder: Path, **inputs: str) -> subprocess.CompletedProcess[str]:
    """The action's last step, with its inputs in the environment as the runner puts them."""
    step = ACTION["runs"]["steps"][-1]
    given = {name: entry.get("default", "") for name, entry in ACTION["inputs"].items()} | inputs
    environment = {
        name: re.sub(r"\$\{\{ inputs\.([\w-]+) \}\}", lambda found: given[found[1]], value)
        for name, value in step["env"].items()
    }
    home = folder / "memcurse" / "bin"
    home.mkdir(parents=True)
    (home / "memcurse").symlink_to(MEMCURSE)
    return subprocess.run(
        ["bash", "-e", "-o", "pipefail", "-c", step["run"]],
        env={**os.environ, **environment, "RUNNER_TEMP": str(folder)},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_the_action_fails_on_a_cursed_checkpoint_with_annotations(tmp_path: Path) -> None:
    done = run_action(
        tmp_path, paths=str(SAMPLES / "dense_linear_rnn.safetensors"), sarif="out.sarif"
    )
    assert done.returncode == 1, done.stderr
    assert done.stdout.startswith("::error ")
    assert '"version": "2.1.0"' in (tmp_path / "out.sarif").read_text()


def test_the_action_passes_its_options_on(tmp_path: Path) -> None:
    samples = " ".join(str(SAMPLES / f"{name}.safetensors") for name in ("lru", "gru"))
    done = run_action(tmp_path, paths=samples, options="--horizon 300 --max-unstable 0")
    assert (done.returncode, done.stderr) == (0, "")


def test_an_input_of_the_action_is_never_run(tmp_path: Path) -> None:
    done = run_action(tmp_path, paths="$(touch pwned) `touch pwned`; touch pwned")
    assert done.returncode == 2
    assert not (tmp_path / "pwned").exists()
    assert all("${{" not in step.get("run", "") for step in ACTION["runs"]["steps"])


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
        done = subprocess.run(
            [*command, SAMPLES / f"{sample}.safetensors"],
            capture_output=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == code, done.stderr
