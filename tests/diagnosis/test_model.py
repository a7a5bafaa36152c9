"""What is said of a whole model: one verdict, its memory, the sentence, and what to do."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from diagnosis.build import SAMPLES, drawn_lru
from end_to_end.command import memcurse
from safetensors.numpy import load_file, save_file

from memcurse_cli import inspect

GRU = load_file(SAMPLES / "gru.safetensors")
ATTENTION = {f"block.self_attn.{name}_proj.weight": np.ones((4, 4)) for name in "qkvo"}
HORIZON = 1000


def named(**layers: dict[str, Any]) -> dict[str, Any]:
    return {f"{name}.{key}": array for name, held in layers.items() for key, array in held.items()}


def forgetful() -> dict[str, np.ndarray]:
    """An LRU that remembers 2.6 steps."""
    return drawn_lru(8, (0.33, 0.5))


@pytest.mark.parametrize(
    ("horizon", "attention", "verdict", "severity"),
    [
        (25, False, "ok", None),
        (100, False, "watch", "warning"),
        (HORIZON, False, "watch", "error"),
        (25, True, "ok", None),
        (100, True, "ok", "info"),
        (HORIZON, True, "watch", "warning"),
    ],
)
def test_a_memory_far_below_the_horizon_is_found_and_attention_makes_it_milder(
    horizon: int, attention: bool, verdict: str, severity: str | None
) -> None:
    state = named(a=forgetful(), b=forgetful()) | (ATTENTION if attention else {})
    report = inspect(state, horizon=horizon)
    assert report.verdict == verdict
    assert [one.severity for one in report.findings] == [severity] * (severity is not None)
    for found in report.findings:
        assert found.code == "MC107"
        assert found.message.startswith(f"the longest memory is 2.6 of {horizon} steps")
        assert ("attention has to carry the rest" in found.message) is attention
        assert f"The longest memory is 2.6 of {horizon} steps" in report.sentence
        acted = any(one.text == found.advice for one in report.actions)
        assert acted is (severity != "info")


def test_the_longest_memory_is_that_of_what_was_looked_at() -> None:
    assert not inspect(named(a=forgetful(), b=drawn_lru(8, (0.005, 0.01))), horizon=100).findings
    assert not inspect(forgetful()).findings  # whose horizon nothing says
    part = inspect(named(a=forgetful(), b=drawn_lru(8)), horizon=HORIZON, layers=["a"])
    assert not part.findings
    broken = named(a=forgetful(), b={key: array * np.nan for key, array in drawn_lru(8).items()})
    unread = inspect(broken, horizon=HORIZON)
    assert (unread.verdict, unread.findings) == ("not_judged", ())
    assert unread.sentence.endswith("1 layer could not be read.")


def test_hidden_weights_are_looked_at_before_a_memory_is_called_short() -> None:
    closed = inspect(GRU, horizon=HORIZON, simulate=False)
    assert (closed.verdict, closed.findings) == ("not_judged", ())
    assert "The gates alone keep 4.3 of 1000 steps." in closed.sentence
    assert "look at the memory of the hidden weights" in [one.text for one in closed.actions]
    weak = GRU | {"weight_hh_l0": 1e-3 * GRU["weight_hh_l0"]}
    opened = inspect(weak, horizon=HORIZON, spectra=True)
    assert [one.code for one in opened.findings] == ["MC107"]
    assert "hidden weights" not in " ".join(one.text for one in opened.actions)


def test_ok_only_if_every_layer_was_judged() -> None:
    calm = drawn_lru(8, (0.001, 0.01))
    assert inspect(named(a=calm, b=calm), horizon=300).verdict == "ok"
    gates = {f"linear_{gate}.weight": np.ones((4, 2)) for gate in "zh"}
    gated = gates | {f"linear_{gate}.bias": np.zeros(4) for gate in "zh"}
    mixed = inspect(named(a=calm, b=gated), horizon=300)
    assert [layer.verdict for layer in mixed.layers] == ["ok", "not_judged"]
    assert mixed.verdict == "not_judged"
    assert mixed.usable_rate == mixed.layers[0].usable_rate
    assert "Training bears a rate of about" in mixed.sentence
    assert "1 of 2 layers was not judged: " in mixed.sentence
    worse = inspect(named(a=calm, b=gated), horizon=300, learning_rate=1.0)
    assert worse.verdict == "cursed"


def test_a_cure_stands_beside_the_rate_that_it_was_found_to_bear(tmp_path: Path) -> None:
    path = tmp_path / "a model.safetensors"
    save_file(load_file(SAMPLES / "dense_linear_rnn.safetensors"), path)
    report = inspect(path, horizon=300)
    cure, slower = report.actions[:2]
    assert cure.text == "make the recurrence diagonal: that bears 0.0045"
    assert cure.command == f"memcurse diagonalize '{path}' --output cured.safetensors"
    done = memcurse(*shlex.split(cure.command)[1:], folder=tmp_path)
    assert done.returncode == 0, done.stderr
    cured = inspect(tmp_path / "cured.safetensors", horizon=300)
    assert cured.usable_rate.rate == pytest.approx(report.layers[0].cure.usable_rate.rate, rel=1e-3)
    assert slower.text == "or train A at 5.3e-5 or less"
    assert "at 0.001 on A changes the state by 309 %" in report.sentence
    assert "about 5.3e-5 (1.8e-5 to 1.6e-4); yours, 0.001, is 19 times that." in report.sentence
    assert inspect(load_file(path), horizon=300).actions[0].command == ""  # there is no file


def test_what_grows_is_clipped_where_only_that_helps(tmp_path: Path) -> None:
    report = inspect(SAMPLES / "complex_diagonal_rnn.safetensors", learning_rate=0.03)
    cure = report.layers[0].cure
    assert (cure.parametrization, cure.clip_modulus, cure.reason) == ("lru", 0.999, None)
    done = memcurse(*shlex.split(report.actions[0].command)[1:], folder=tmp_path)
    assert done.returncode == 0, done.stderr
    cured = inspect(tmp_path / "cured.safetensors", learning_rate=0.03)
    assert cured.usable_rate.rate == pytest.approx(cure.usable_rate.rate, rel=0.02)


def test_a_layer_that_cannot_be_rewritten_in_its_file_is_shown_rewritten(tmp_path: Path) -> None:
    random, path = np.random.default_rng(0), tmp_path / "heads.safetensors"
    head = 0.98 * np.linalg.qr(random.standard_normal((8, 8)))[0]
    matrices = {"B": random.standard_normal((16, 2)), "C": random.standard_normal((2, 16))}
    save_file({"A": np.stack([head, head]), **matrices}, path)
    report = inspect(path, learning_rate=0.03, horizon=300)
    assert report.layers[0].cure.reason == "its tensors hold other layers too"
    assert report.actions[0].command == f"memcurse inspect {path} --as lru --normalize own"


def test_one_rate_is_advised_for_all_layers_that_are_too_fast() -> None:
    turn = 0.99 * np.exp(0.7j * np.ones(1))
    quick = {"A_re": turn.real, "A_im": turn.imag}
    slow = {"A_re": 0.9 * turn.real, "A_im": 0.9 * turn.imag}
    report = inspect(named(a=quick, b=slow), horizon=100, learning_rate=1.0)
    rates = [layer.usable_rate.rate for layer in report.layers]
    assert report.usable_rate.rate == min(rates) == rates[0]
    (advice,) = [one.text for one in report.actions if one.text.endswith("or less")]
    assert "train the recurrent parameters of 2 layers at 0.0" in advice
