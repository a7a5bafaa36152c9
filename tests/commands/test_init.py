"""`memcurse init`: the file and the page that it leaves, and what it refuses."""

from __future__ import annotations

from pathlib import Path

import pytest
from end_to_end.command import assert_refused, memcurse
from safetensors.numpy import load_file

from memcurse_cli import inspect

CALL = ("init", "lru", "--memory", "10:400", "--horizon", "300", "--units", "8")


def test_the_file_holds_the_layer_that_the_page_tells_and_its_horizon(tmp_path: Path) -> None:
    path, again = tmp_path / "lru.safetensors", tmp_path / "again.safetensors"
    done = memcurse(*CALL, "--max-phase", "0.5", "--output", path)
    assert (done.returncode, done.stderr) == (0, "")
    assert max(map(len, done.stdout.splitlines())) <= 80
    report = inspect(path)
    times, rate = report.layers[0].eigenvalues.time_constant, report.usable_rate
    for figure in (times.min, times.max, times.p50):
        assert f" {figure:.3g}" in done.stdout.replace(",", " ")
    assert f"usable up to {rate.rate:.2g} ({rate.low:.2g} to " in done.stdout
    assert "HI is beyond the horizon of 300" in done.stdout
    assert report.input.horizon == 300
    assert load_file(path)["theta_log"].max() < -0.69
    code = (*CALL, "--max-phase", "0.5", "--code", "torch", "--output", again)
    assert "def lru(" in memcurse(*code, encoding="ascii").stdout
    assert again.read_bytes() == path.read_bytes()


@pytest.mark.parametrize(
    ("more", "where"),
    [
        (("--memory", "10"), "--memory"),
        (("--memory", "20:10"), "--memory"),
        (("--memory", "1:nan"), "--memory"),
        (("--code", "jax"), "--code"),
        (("--code", "torch", "--json"), "--json"),
        (("--method", "critical"), "--method"),
        (("--units", "0"), "--units"),
    ],
)
def test_what_it_refuses_leaves_no_file(more: tuple[str, ...], where: str, tmp_path: Path) -> None:
    assert_refused(memcurse(*CALL, *more, "--output", tmp_path / "lru.safetensors"), where)
    assert not list(tmp_path.iterdir())
