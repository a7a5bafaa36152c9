"""The cache gives back what was put in, and nothing else, whatever happened to its files."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest
from msgspec.structs import replace
from tracking.build import write

from memcurse_cli.errors import CheckpointError, UsageError
from memcurse_cli.schema.report import Report
from memcurse_cli.tracking import cache as cache_module
from memcurse_cli.tracking.cache import Cache, hash_content, signature
from memcurse_cli.tracking.executors import Reading, read_checkpoint
from memcurse_cli.tracking.track import Tracker

READING = Reading.of()
KEY = "ab" * 32


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return Cache(tmp_path / "cache")


@pytest.fixture
def report(tmp_path: Path) -> Report:
    taken = read_checkpoint(str(write(tmp_path / "run" / "step_1.safetensors", 0.9)), READING)
    assert taken.report is not None
    return taken.report


def test_a_damaged_entry_is_none(cache: Cache, report: Report) -> None:
    cache.put(KEY, report)
    (entry,) = [path for path in cache.directory.rglob("*.json") if path.is_file()]
    whole = entry.read_bytes()
    damaged = [b"", b"{}", whole[:-1], whole.replace(b"0.9", b"0.8", 1)]
    damaged.append(cache_module._hash(b"{}").encode() + b"\n{}")  # whole, and no report
    earlier = json.loads(whole.partition(b"\n")[2])
    for name in ("version", "checkpoint", "memory"):  # as 0.1 kept it
        del earlier[name]
    body = json.dumps({**earlier, "summary": {"unstable": 0}}).encode()
    damaged.append(cache_module._hash(body).encode() + b"\n" + body)
    damaged.append(cache_module._hash(b"\xff").encode() + b"\n\xff")
    for content in damaged:
        entry.write_bytes(content)
        assert cache.get(KEY) is None, content[:80]
        cache.put(KEY, report)
        assert cache.get(KEY) == report


def test_the_key_is_of_bytes_options_and_version(
    cache: Cache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / "step_1.safetensors", 0.9)
    key = cache.key_of(str(path), READING)
    moved = path.rename(tmp_path / "renamed.safetensors")
    assert cache.key_of(str(moved), READING) == key
    options = {"rho": 0.5, "horizon": 10, "learning_rate": 1e-4, "step_limit": 0.2}
    options |= {"family": "lru", "layers": ("a*",), "device": "cpu"}
    options |= {"assume": {"discretization": "bilinear"}}
    others = [Reading.of(**{name: value}) for name, value in options.items()]
    others.append(Reading.of(horizon=10, readout="every"))
    keys = {cache.key_of(str(moved), other) for other in others}
    assert len(keys) == len(others)
    assert key not in keys
    for name, other in (("VERSION", "9.9.9"), ("LAYOUT", 2)):
        with monkeypatch.context() as patch:
            patch.setattr(cache_module, name, other)
            assert cache.key_of(str(moved), READING) != key
    changed = write(tmp_path / "changed.safetensors", 0.8)
    assert hash_content(str(changed)) != hash_content(str(moved))


def test_what_a_checkpoint_is_read_from_beside_it_counts(tmp_path: Path) -> None:
    path = write(tmp_path / "model.safetensors", 0.9)
    lone = hash_content(str(path))
    config = tmp_path / "config.json"
    config.write_text("{}")
    assert hash_content(str(path)) != lone
    with_config = hash_content(str(path))
    log = tmp_path / "trainer_state.json"
    log.write_text("{}")
    assert hash_content(str(path)) != with_config
    folder = hash_content(str(tmp_path))
    config.rename(tmp_path / "other.json")
    assert hash_content(str(tmp_path)) != folder
    index = tmp_path / "model.safetensors.index.json"
    index.write_text("{}")
    before = hash_content(str(index))
    write(path, 0.5)
    assert hash_content(str(index)) != before


def test_only_what_a_report_is_made_of_is_hashed(
    cache: Cache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / "step_1.safetensors", 0.9)
    lone = hash_content(str(path))
    with (tmp_path / "config.json").open("wb") as config:
        config.truncate(1 << 40)  # too large for a model's configuration, so that it is not read
    assert hash_content(str(path)) == lone
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "zeros").write_bytes(bytes(1000))
    with monkeypatch.context() as patched:
        patched.setattr(cache_module, "hash_content", lambda path: pytest.fail(path))
        for name in ("pipe", "zeros"):
            with pytest.raises(CheckpointError):
                cache.key_of(str(tmp_path / name), READING)
    monkeypatch.setattr(cache_module, "MAX_HASHED_BYTES", 100)
    with pytest.raises(CheckpointError, match="too large to be hashed"):
        hash_content(str(path))
    assert Tracker([str(path)], READING, cache=cache).update().failed == 0


def test_a_hash_counts_until_the_file_changes(
    cache: Cache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / "step_1.safetensors", 0.9)
    hashed = []

    def counted(path: str) -> str:
        hashed.append(path)
        return hash_content(path)

    monkeypatch.setattr(cache_module, "hash_content", counted)
    cache.key_of(str(path), READING)
    cache.key_of(str(path), READING)
    assert len(hashed) == 2  # so young that its time would not tell a change
    old = time.time_ns() - 10_000_000_000
    os.utime(path, ns=(old, old))
    key = cache.key_of(str(path), READING)
    assert cache.key_of(str(path), READING) == key
    assert cache.key_of(str(path), Reading.of(rho=0.5)) != key
    assert len(hashed) == 3
    write(path, 0.8)
    os.utime(path, ns=(old + 1, old + 1))
    assert cache.key_of(str(path), READING) != key
    path.unlink()
    assert signature(str(path)) is None


def test_a_folder_that_cannot_be_written_is_an_error_if_it_was_asked_for(
    tmp_path: Path, report: Report
) -> None:
    file = tmp_path / "file"
    file.write_text("")
    asked = Cache(file / "cache")
    with pytest.raises(UsageError, match="--no-cache"):
        asked.put(KEY, report)
    replace(asked, required=False).put(KEY, report)
    assert asked.get(KEY) is None


def test_what_stands_in_the_place_of_an_entry_costs_that_entry_alone(
    cache: Cache, report: Report, monkeypatch: pytest.MonkeyPatch
) -> None:
    (cache.directory / "ab" / f"{KEY}.json").mkdir(parents=True)
    (cache.directory / "cd").write_text("")
    for key in (KEY, "cd" * 32):
        cache.put(key, report)
        assert cache.get(key) is None
    cache.put("ef" * 32, report)
    assert cache.get("ef" * 32) == report
    before = {path for path in cache.directory.rglob("*") if path.is_file()}

    def interrupted(source: str, target: Path) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        cache.put("12" * 32, report)
    assert {path for path in cache.directory.rglob("*") if path.is_file()} == before
