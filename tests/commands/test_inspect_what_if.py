"""`memcurse inspect --as` and `--normalize`: what a user types, and what comes back."""

from __future__ import annotations

import json

import pytest
from end_to_end.command import SAMPLES

from memcurse_cli.__main__ import run

DENSE = str(SAMPLES / "dense_linear_rnn.safetensors")
GRU = str(SAMPLES / "gru.safetensors")


def table(page: str) -> list[str]:
    return page.split("What if\n")[1].split("\n\n")[0].splitlines()


def test_the_page_sets_what_is_beside_what_could_be(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["inspect", DENSE, "--as", "lru", "--as", "polar", "--normalize", "own"]) == 0
    page = capsys.readouterr().out
    assert max(map(len, page.splitlines())) <= 80
    heading, now, nu, theta, gamma, polar, *_ = table(page)
    assert heading.split()[:2] == ["written", "as"]
    assert now.split()[:3] == ["cursed", "now", "A"]
    assert nu.split()[:5] == ["ok", "lru,", "γ", "own", "nu_log"]
    assert theta.split()[1] == "theta_log"
    assert gamma.split()[:2] == ["ok", "gamma_log"]
    assert polar.split()[1] == "polar,"
    words = " ".join(page.split())
    assert "as lru, γ own or polar, γ own: without 5 eigenvalues with |λ| ≥ 1" in words
    assert "one of each conjugate pair" in words


def test_there_is_no_table_unless_it_is_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["inspect", GRU]) == 0
    assert "What if" not in capsys.readouterr().out


def test_several_files_have_a_table_each(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["inspect", DENSE, GRU, "--as", "s4", "--json"]) == 0
    for report in json.loads(capsys.readouterr().out):
        for layer in report["layers"]:
            (found,) = layer["what_if"]
            assert found["parametrization"] == "s4"
            assert found["step_size"] == 0.01
            assert [group["name"] for group in found["parameters"]] == [
                "log_dt",
                "log_A_real",
                "A_imag",
            ]


def test_a_gain_alone_keeps_the_parameters(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["inspect", str(SAMPLES / "lru.safetensors"), "--normalize", "coupled"]) == 0
    rows = table(capsys.readouterr().out)
    assert rows[4].split()[1:7] == ["as", "it", "is,", "γ", "coupled", "nu_log"]
    assert "gamma_log" not in "".join(rows[4:])


def test_a_dense_matrix_says_why_it_has_no_gain(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["inspect", DENSE, "--normalize", "own"]) == 0
    assert "has no gain of its own" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--as", "cosine"], "--as: 'cosine' is not known"),
        (["--as", "lru", "--normalize", "yes"], "--normalize: 'yes' is not known"),
    ],
)
def test_an_unknown_name_is_bad_usage(
    capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    assert run(["inspect", GRU, *arguments]) == 2
    assert said in capsys.readouterr().err
