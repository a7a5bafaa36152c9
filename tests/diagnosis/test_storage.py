"""Which type the state can be kept in: of layers, of models with a configuration, in limits."""

from __future__ import annotations

import json
import logging
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from diagnosis.build import SAMPLES, drawn_lru, finding, only
from safetensors.numpy import save_file

from memcurse_cli import inspect
from memcurse_cli.diagnosis.check import judge
from memcurse_cli.diagnosis.policy import policy_of
from memcurse_cli.errors import UsageError
from memcurse_cli.integrations import Monitor
from memcurse_cli.schema.json_codec import from_json, to_json
from memcurse_cli.theory.stored_state import keep
from memcurse_cli.tracking.executors import Reading
from memcurse_cli.tracking.track import Tracker

HEADS, WIDTH, STATE = 4, 8, 16
DELTA = 2.0**-7 * 0.2123  # of bfloat16


def mamba2(*memories: float, spread: float = 0.0) -> dict[str, np.ndarray]:
    """One Mamba-2 mixer with heads of these memories in steps at zero input, Δ = 0.1."""
    random, inner = np.random.default_rng(6), HEADS * WIDTH
    weight = random.normal(size=(2 * inner + 2 * STATE + HEADS, 20)).astype(np.float32)
    weight[-HEADS:] *= spread / np.linalg.norm(weight[-HEADS:], axis=1, keepdims=True)
    kept = np.array((*memories, *[10.0] * (HEADS - len(memories))))
    mixer = {
        "A_log": -np.log(kept * 0.1),
        "dt_bias": np.full(HEADS, math.log(math.expm1(0.1))),
        "D": np.ones(HEADS),
        "in_proj.weight": weight,
        "conv1d.weight": random.normal(size=(inner + 2 * STATE, 1, 4)),
        "norm.weight": np.ones(inner),
    }
    return {f"layers.0.mixer.{name}": value.astype(np.float32) for name, value in mixer.items()}


def by_type(layer: Any) -> dict[str, Any]:
    return {one.dtype: one for one in layer.storage.types}


def folder(path: Path, state: dict[str, np.ndarray], **config: object) -> Path:
    path.mkdir()
    save_file(state, path / "model.safetensors")
    (path / "config.json").write_text(json.dumps({"n_groups": 1, **config}))
    return path


def test_every_head_has_its_error_in_every_type() -> None:
    layer = only(mamba2(1e9, 300.0), horizon=1000, values=True)
    types = by_type(layer)
    assert list(types)[-3:] == ["bfloat16", "float16", "float32"]
    errors = types["bfloat16"].errors
    a = math.exp(-2 / 300)
    told = [500.5, 1 / (1 - a) - 1000 * a**1000 / (1 - a**1000)]
    assert errors[:2] == pytest.approx(DELTA * np.sqrt(told), rel=1e-3)
    assert types["bfloat16"].error.max == errors[0]
    assert types["bfloat16"].above == 2
    assert types["bfloat16"].stopped == 2
    assert types["float16"].error.max == pytest.approx(errors[0] / 8)
    assert types["bfloat16"].stochastic == pytest.approx(math.sqrt(2) * errors[0])
    assert types["float8_e5m2"].error.max == 1  # nothing left
    assert from_json(to_json(inspect(mamba2(1e9))), where="here").layers[0].storage is not None


def test_states_are_those_of_a_run_that_is_rounded() -> None:
    state, steps = drawn_lru(8, (0.004, 0.02)), 150
    layer = only(state, horizon=steps, simulate=True)
    (_, _, _, bfloat16, *_) = layer.simulation.stored
    eigenvalues = np.exp(-np.exp(state["nu_log"]) + 1j * np.exp(state["theta_log"]))
    gain = np.exp(state["gamma_log"]) * (state["B_re"] + 1j * state["B_im"]).T
    random, exact, held = np.random.default_rng(9), np.zeros((500, 8), complex), 0j
    for _ in range(steps):
        x = gain * random.normal(size=(500, 1))
        exact, held = eigenvalues * exact + x, keep(eigenvalues * held + x, "bfloat16")
    each = np.sqrt(np.mean(abs(held - exact) ** 2, axis=0) / np.mean(abs(exact) ** 2, axis=0))
    whole = math.sqrt(np.mean(abs(held - exact) ** 2) / np.mean(abs(exact) ** 2))
    assert by_type(layer)["bfloat16"].error.p50 == pytest.approx(np.median(each), rel=0.15)
    assert bfloat16.error.value == pytest.approx(whole, rel=0.15)


def test_gates_that_move_keep_what_they_keep_on_average() -> None:
    layer = only(mamba2(*[60.0] * 4, spread=1.5), horizon=400, gates=True, values=True)
    moving = {one.dtype: one for one in layer.gates.storage}["bfloat16"]
    random = np.random.default_rng(2)
    bias, rate = math.log(math.expm1(0.1)), 1 / 6
    exact, held = np.zeros((4000, 1)), np.zeros((4000, 1))
    for _ in range(400):
        step = np.log1p(np.exp(bias + 1.5 * random.normal(size=exact.shape)))
        x = step * random.normal(size=exact.shape)
        exact = np.exp(-step * rate) * exact + x
        held = keep(np.exp(-step * rate) * held + x, "bfloat16")
    seen = math.sqrt(np.mean((held - exact) ** 2) / np.mean(exact**2))
    assert moving.error.p50 == pytest.approx(seen, rel=0.1)
    assert moving.error.p50 < by_type(layer)["bfloat16"].error.p50  # Δ is larger on average
    assert moving.held_open > moving.error.max


def test_a_configured_type_that_loses_too_much_is_found(tmp_path: Path) -> None:
    state = mamba2(1e5, 1e5)
    path = folder(tmp_path / "asked", state, mamba_ssm_cache_dtype="float16")
    report = inspect(path, horizon=16384)
    assert report.state_type.smallest == "float32"
    assert report.state_type.configured == "float16"
    (found,) = (one for one in report.findings if one.code == "MC405")
    assert found.severity == "warning"
    assert "2 of 4 heads" in found.message
    assert report.verdict == "not_judged"
    assert any(one.text == found.advice for one in report.actions)
    assert "MC405" not in {one.code for one in inspect(path, horizon=64).findings}
    within = inspect(path, horizon=16384, state_error=0.05)
    assert within.state_type.smallest == "float16"
    assert not within.findings
    nested = folder(tmp_path / "nested", state, text_config={"mamba_ssm_dtype": "torch.bfloat16"})
    assert inspect(nested).state_type.configured == "bfloat16"
    eight = folder(tmp_path / "eight", mamba2(1e9), mamba_ssm_cache_dtype="fp8")
    (overflowing,) = inspect(eight, horizon=1_000_000).findings
    assert "float8_e4m3fn, which overflows after 8e5 steps" in overflowing.message
    other = folder(tmp_path / "other", state, mamba_ssm_cache_dtype="auto")
    assert inspect(other).state_type.configured is None


def test_states_that_sum_their_inputs_are_found_where_the_horizon_is_known() -> None:
    layer = only(mamba2(1e7, 1e7), horizon=512)
    found = finding(layer, "MC108")
    assert found.severity == "warning"
    assert found.message.startswith("2 of 4 heads have a memory beyond the 512 steps")
    # 5 · 0.1 · t = 65504 of a constant drive, 25 · 0.01 · t = 65504² of a white one.
    assert "1.3e5 steps of constant ones" in found.message
    assert layer.storage.constant_overflow == pytest.approx(65504 / 0.5, rel=0.03)
    assert by_type(only(mamba2(1e14), horizon=512))["float16"].overflow == pytest.approx(
        65504**2 / 0.25, rel=1e-3
    )
    assert finding(only(mamba2(1e7)), "MC108").severity == "info"
    constant = only(mamba2(1e7), horizon=512, rho=1.0).storage
    assert constant.growth == pytest.approx(2, abs=0.01)
    assert "MC108" not in {one.code for one in only(mamba2(300.0), horizon=512).findings}


def test_a_run_and_a_callback_say_since_when(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for step, memory in enumerate((10.0, 100.0, 1e4, 1e6)):
        save_file(mamba2(memory), tmp_path / f"step_{step}.safetensors")
    tracking = Tracker([str(tmp_path)], Reading.of(horizon=512)).update()
    assert "1 head sums its inputs, the first from step 2 on" in tracking.sentence
    monitor = Monitor(every=1, horizon=512)
    with caplog.at_level(logging.WARNING):
        for step, memory in enumerate((100.0, 1e6, 1e6), 1):
            monitor.measure(mamba2(memory), step, 1e-3)
    assert [record.getMessage()[:7] for record in caplog.records] == ["step 2:"]


def test_limits_hold_the_state_in_a_type() -> None:
    report = inspect(mamba2(1e9), horizon=1000)

    def failing(*limits: str, of: Any = report) -> list[Any]:
        policy = policy_of(None, {"max-state-error": limits})
        return [one for one in judge(of, policy) if one.fails]

    (found,) = failing("bfloat16=0.01", "float16=0.01")
    assert found.figure == pytest.approx(DELTA * math.sqrt(500.5), rel=1e-3)
    assert "error of the state in bfloat16 is 3.71 %" in found.message
    gru = SAMPLES / "gru.safetensors"
    (missing,) = failing("bfloat16=0.5", of=inspect(gru, simulate=False))
    assert "--simulate" in missing.message
    with pytest.raises(UsageError, match="max-state-error"):
        failing("float17=0.1")


def test_what_carries_errors_on_otherwise_says_so() -> None:
    dense = only(SAMPLES / "dense_linear_rnn.safetensors")
    assert dense.storage is None
    assert "matrix" in dense.storage_reason
    with pytest.raises(UsageError, match="--state-error"):
        inspect(mamba2(10.0), state_error=1.0)
