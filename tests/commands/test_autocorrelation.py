"""`memcurse autocorrelation`: what a user types, and what comes back."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from theory.sequences import PAPER, gaussian

from memcurse_cli.__main__ import run


@pytest.fixture
def data(tmp_path: Path) -> str:
    path = tmp_path / "x.npy"
    np.save(path, gaussian(PAPER, (64, 256, 8), 0).astype(np.float32))
    return str(path)


def test_the_page_shows_the_mixture_and_its_error(
    data: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["autocorrelation", data]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    assert "\x1b" not in captured.out
    assert max(map(len, captured.out.splitlines())) <= 80
    words = " ".join(captured.out.split())
    assert "64 sequences of 256 steps, 8 features" in words
    assert "divided by the number of products, unbiased" in words
    assert "white" in words
    assert "of R(0) in the root mean square" in words
    assert "from the spread between sequences" in words
    assert "give --autocorrelation FILE" in words


def test_the_page_says_what_no_mixture_can_follow(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "walks.npy"
    walks = np.random.default_rng(0).standard_normal((200, 20)).cumsum(axis=1)
    np.save(path, (walks - walks.mean(axis=1, keepdims=True))[:, :, None])
    assert run(["autocorrelation", str(path)]) == 0
    assert "no mixture of decays is negative" in " ".join(capsys.readouterr().out.split())


def test_the_page_shows_a_cosine(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "wave.csv"
    path.write_text("\n".join(map(str, np.cos(0.3 * np.arange(400)).tolist())))
    assert run(["autocorrelation", str(path)]) == 0
    words = " ".join(capsys.readouterr().out.split())
    assert "R(Δ) = Σ weight·ρ^|Δ|·cos(ωΔ)" in words
    assert "ω period share" in words
    assert "0.300" in words
    assert "no mixture of decays is negative" not in words


def test_json_goes_into_the_other_commands(
    data: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "input.json"
    options = ["--lags", "100", "--centred", "--estimator", "biased", "--padding", "0"]
    assert run(["autocorrelation", data, *options, "--json", "--output", str(target)]) == 0
    document = json.loads(target.read_text())
    assert document["schema"] == "memcurse.autocorrelation/1"
    assert document["data"] == {
        "source": data,
        "sequences": 64,
        "steps": 256,
        "features": 8,
        "masked": 0,
    }
    assert (document["estimator"], document["centred"]) == ("biased", True)
    assert document["empirical"]["lags"] == list(range(101))
    assert set(document["fit"]) == {"relative_rms", "relative_max", "worst_lag"}
    assert [state["time_constant"] for state in document["states"]] == [1, 10]
    for state in document["states"]:
        for name in ("second_moment", "sensitivity"):
            assert state[f"fitted_{name}"] == pytest.approx(state[name], rel=0.1)
    assert capsys.readouterr().out == ""
    assert run(["predict", "--autocorrelation", str(target), "--json"]) == 0
    settings = json.loads(capsys.readouterr().out)["settings"]
    assert settings["autocorrelation"] == document["components"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--lags", "256"], "--lags"),
        (["--estimator", "best"], "unbiased or biased"),
        (["--array", "y"], "'y'"),
        (["--padding", "x"], "--padding"),
    ],
)
def test_bad_options_are_one_line_and_status_two(
    arguments: list[str], message: str, data: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["autocorrelation", data, *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert message in captured.err
