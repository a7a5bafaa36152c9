"""`memcurse track` from the command line."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from end_to_end.command import MEMCURSE, SAMPLES, assert_refused, memcurse, process
from tracking.build import write, write_run

from memcurse_cli.__main__ import run
from memcurse_cli.commands import options
from memcurse_cli.schema.derived import Tracking
from memcurse_cli.schema.figures import Component
from memcurse_cli.schema.json_codec import decode

RUN = SAMPLES / "run"
HERE = ("--no-cache", "--jobs", "1")


@pytest.fixture(autouse=True)
def no_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A user's cache that is empty, and no settings of the machine's."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # else rounding hangs on where work is done


def tracked(
    *arguments: str | Path, by: Callable[..., subprocess.CompletedProcess[str]] = memcurse
) -> Tracking:
    """The run that the command prints as JSON."""
    done = by("track", *arguments, "--json")
    assert (done.returncode, done.stderr) == (0, "")
    return decode(Tracking, json.loads(done.stdout), where="stdout")


def test_all_ways_to_read_give_the_same(tmp_path: Path) -> None:
    inline = tracked(RUN, *HERE, by=process)
    (tmp_path / "home").write_text("not a folder")  # in the place of the user's cache
    assert tracked(RUN, "--jobs", "1") == inline
    asked = memcurse("track", RUN, "--jobs", "1", "--cache", tmp_path / "home" / "cache")
    assert_refused(asked, "cannot be written", "--no-cache")
    assert tracked(RUN, *HERE) == inline
    assert tracked(RUN, "--no-cache", "--jobs", "2", by=process) == inline
    assert tracked(RUN, "--cache", tmp_path / "cache", by=process) == inline
    assert tracked(RUN, "--cache", tmp_path / "cache") == inline


def test_reading_options_reach_the_reports() -> None:
    for given, field, value in (
        (("--lr", "0.01"), "learning_rate", 0.01),
        (("--horizon", "50"), "horizon", 50),
        (("--rho", "0.5"), "autocorrelation", (Component(1.0, 0.5),)),
        (
            ("--autocorrelation", "0.5:0,0.5:0.9"),
            "autocorrelation",
            (Component(0.5, 0.0), Component(0.5, 0.9)),
        ),
        (("--horizon", "50", "--readout", "every"), "readout", "every"),
    ):
        report = tracked(RUN / "step_0.safetensors", *HERE, *given).steps[0].report
        assert getattr(report.input, field) == value
    told = tracked(RUN / "step_0.safetensors", *HERE, "--step-limit", "1e-9").steps[0].report
    assert "MC201" in {one.code for one in told.layers[0].findings}


def test_what_cannot_be_read_ends_with_two_after_the_rest(tmp_path: Path) -> None:
    write_run(tmp_path)[1].write_bytes(b"x")
    for form in ((), ("--json",), ("--format", "csv"), ("--format", "html")):
        done = memcurse("track", tmp_path, *HERE, *form)
        assert done.returncode == 2
        assert "1 of 5 checkpoints could not be read" in done.stderr
        assert done.stderr.count("\n") == 1
        assert done.stdout.count("\n") > 5
    target = tmp_path / "out.csv"
    done = memcurse("track", tmp_path, *HERE, "--format", "csv", "--output", target)
    assert (done.returncode, done.stdout) == (2, "")
    assert len(target.read_text().splitlines()) == 6


def test_bad_input_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "step_1.safetensors").write_bytes(b"x")
    write(tmp_path / "b" / "model.safetensors", 0.5)
    for arguments, words in (
        ((tmp_path / "absent",), "no such file"),
        ((tmp_path / "x*",), "no checkpoint matches"),
        ((tmp_path / "step_1.safetensors",), "step_1.safetensors"),
        ((tmp_path / "b" / "model.safetensors",), "--step-pattern"),
        ((RUN, "--step-pattern", "("), "not a regular expression"),
        ((RUN, RUN / "step_0.safetensors", "--step-pattern", "(0)"), "both of step 0"),
        ((RUN, "--format", "html5"), "'html5' is not known"),
        ((RUN, "--until", "5"), "--watch"),
        ((RUN, "--watch", "--json"), "--output"),
        ((RUN, "--watch", "--format", "html"), "html cannot grow on standard output"),
        ((RUN, "--executor", "spark://x:1"), "dask://HOST:PORT"),
    ):
        jobs = () if "--executor" in arguments else ("--jobs", "1")
        assert_refused(memcurse("track", *arguments, "--no-cache", *jobs), words)


def test_the_page_of_a_watched_run_is_in_its_file(tmp_path: Path) -> None:
    target = tmp_path / "run.html"
    watched = ("--watch", "--until", "200", "--format", "html", "--output", target)
    done = memcurse("track", RUN, *HERE, *watched)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert target.read_text() == memcurse("track", RUN, *HERE, "--format", "html").stdout
    assert list(tmp_path.glob("*.html")) == [target]


def test_an_interrupt_keeps_what_was_done_and_writes_nothing(tmp_path: Path) -> None:
    """A run of many checkpoints is interrupted, killed, and then goes on where it was."""
    write_run(tmp_path / "run", tuple(0.5 + 0.002 * index for index in range(200)))
    cache, target = tmp_path / "cache", tmp_path / "out.json"
    command = [MEMCURSE, "track", str(tmp_path / "run"), "--cache", str(cache), "--jobs", "2"]
    command += ["--json", "--output", str(target)]

    def entries() -> int:
        return len(list(cache.rglob("*.json")))

    for ending, code in ((signal.SIGINT, 130), (signal.SIGKILL, -signal.SIGKILL)):
        had = entries()
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as reading:
            until = time.monotonic() + 60
            while entries() < had + 5 and time.monotonic() < until:
                time.sleep(0.01)
            reading.send_signal(ending)
            _, errors = reading.communicate(timeout=60)
        assert reading.returncode == code, errors
        assert errors == "memcurse: interrupted\n" or code != 130
        assert not target.exists()
        assert had + 5 <= entries() < 200
    assert run(command[1:]) == 0
    resumed = json.loads(target.read_text())
    assert (len(resumed["steps"]), resumed["failed"]) == (200, 0)
    target.unlink()
    assert run([*command[1:], "--no-cache"]) == 0
    assert json.loads(target.read_text()) == resumed


def test_a_run_in_progress_is_followed_until_an_interrupt(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    command = [MEMCURSE, "track", str(folder / "step_*.safetensors"), "--watch", *HERE]
    command += ["--interval", "0.05"]
    pipe = subprocess.PIPE
    watching = subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True)
    time.sleep(0.3)  # nothing is there yet
    whole = write(folder / "step_1.safetensors", 0.5).read_bytes()
    assert watching.stdout.readline().startswith("step 1: not judged; memory 1.4;")
    half = folder / "step_2.safetensors"
    half.write_bytes(whole[: len(whole) // 2])
    time.sleep(0.3)
    write(folder / "step_3.safetensors", 0.9)
    assert watching.stdout.readline().startswith("step 3: ")
    half.write_bytes(whole)
    assert watching.stdout.readline().startswith("step 2: ")
    watching.send_signal(signal.SIGINT)
    rest, errors = watching.communicate(timeout=30)
    assert (watching.returncode, rest, errors) == (0, "", "")


def test_watching_ends_at_a_step(tmp_path: Path) -> None:
    done = memcurse("track", RUN, *HERE, "--watch", "--until", "160", "--lr", "0.03")
    assert (done.returncode, done.stderr) == (0, "")
    assert re.findall(r"^step (\d+): (\w+);", done.stdout, re.MULTILINE)[:4] == [
        *((step, "watch") for step in ("0", "20", "40")),
        ("60", "cursed"),
    ]
    write_run(tmp_path)[0].write_bytes(b"x")
    failed = memcurse("track", tmp_path, *HERE, "--watch", "--until", "400")
    assert failed.returncode == 2
    assert "1 of 5" in failed.stderr


def test_a_terminal_shows_the_table_live(tmp_path: Path) -> None:
    write_run(tmp_path, (0.5, 0.9))
    master, slave = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "70", "LINES": "30"}
    environment.pop("NO_COLOR", None)
    watching = subprocess.Popen(
        [MEMCURSE, "track", str(tmp_path), "--watch", *HERE, "--interval", "0.05"],
        stdin=slave,
        stdout=slave,
        stderr=slave,
        env=environment,
    )
    os.close(slave)
    try:
        shown = until(master, "100")
        write(tmp_path / "step_77777.safetensors", 0.99)
        shown += until(master, "77777")
        watching.send_signal(signal.SIGINT)
        assert watching.wait(30) == 0
    finally:
        watching.kill()
        os.close(master)
    assert "Traceback" not in shown
    assert "\x1b[" in shown  # it is redrawn in place


def until(master: int, word: str) -> str:
    """What a terminal shows until a word is there."""
    shown = ""
    while word not in shown:
        assert select.select([master], [], [], 30)[0], shown
        shown += os.read(master, 65536).decode(errors="replace")
    return shown


def test_progress_is_for_terminals_and_not_for_the_quiet_and_obeys_no_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(options, "PATIENCE", 0.0)
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    assert run(["track", str(RUN), *HERE]) == 0
    shown = capsys.readouterr().err
    assert "11 of 11 checkpoints" in shown
    assert shown.endswith("\r\x1b[2K")
    assert run(["track", str(RUN), *HERE, "--quiet"]) == 0
    assert capsys.readouterr().err == ""
    name = "a\x1b]0;b\x07.safetensors"
    (tmp_path / name).write_bytes((RUN / "step_0.safetensors").read_bytes())
    monkeypatch.chdir(tmp_path)
    assert run(["inspect", name]) == 0
    assert r"a\x1b]0;b\x07.safetensors: layer 1 of 1" in capsys.readouterr().err
