"""Whatever is done with a URL, its name, password, query and fragment are shown nowhere."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from checkpoints.web import Web, serving, unused_port
from end_to_end.command import SAMPLES, memcurse

from memcurse_cli.checkpoints.untrusted.names import shown_place, shown_text
from memcurse_cli.commands import COMMANDS, build
from memcurse_cli.commands.defaults import everything, option_name, variables

LRU = SAMPLES / "lru.safetensors"
SECRETS = ("Aladdin", "Sesame", "Rumpel", "Shibboleth")
NAMED = "Aladdin:Sesame@"
KEYED = "?X-Amz-Expires=60&X-Amz-Signature=Rumpel&token=Rumpel77#Shibboleth"

HOSTS = (
    *(f"http://{NAMED}[::1", f"http:/{NAMED}127.0.0.1", f"http:{NAMED}127.0.0.1"),
    *(f"http//{NAMED}127.0.0.1", f"//{NAMED}127.0.0.1", f"{NAMED}127.0.0.1", "127.0.0.1"),
    *(f" http://{NAMED}127.0.0.1", f"http://{NAMED}127.0.0.1:99999999", f"http://{NAMED}"),
    *(f"ftp://{NAMED}127.0.0.1", f"zip://a::http://{NAMED}127.0.0.1"),
)
MALFORMED = (
    *(f"{host}/a{KEYED}" for host in HOSTS),
    *(f"http://Aladdin:Sesame{mark}Sesame@127.0.0.1/a" for mark in "/#?"),
    "http://127.0.0.1/a&token=Rumpel;jsessionid=Rumpel",
)
"""What a user may type for a URL that has credentials."""

ARGUMENTS: dict[str, tuple[str | Path, ...]] = {
    "inspect": (LRU,),
    "check": (LRU,),
    "compare": (LRU, LRU),
    "track": (SAMPLES / "run", "--jobs", "1"),
    "rule": ("MC101",),
    "autocorrelation": ("noise.csv",),
    "hessian": (LRU,),
    "schema": ("check",),
    "init": ("lru", "--memory", "2:9", "--horizon", "9", "--output", "out.safetensors"),
    "train": ("lru", "--steps", "1", "--output", "out.safetensors"),
}
"""What each command needs, as far as it needs something."""

READERS = ("inspect", "check", "compare", "track", "autocorrelation", "hessian")
"""The commands that open what they are given."""


@pytest.fixture
def web(tmp_path: Path) -> Iterator[Web]:
    served = tmp_path / "served"
    served.mkdir()
    (served / "step_1.safetensors").write_bytes(LRU.read_bytes())
    with serving(served) as server:
        moved = f"http://{NAMED}127.0.0.1:{unused_port()}/a{KEYED}"
        server.moved = {"/moved": moved, "/odd": f"ftp://{NAMED}127.0.0.1{KEYED}"}
        yield server


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with an input, and the user's cache in it."""
    folder = tmp_path / "home"
    folder.mkdir()
    (folder / "noise.csv").write_text("\n".join(str((7 * k) % 11) for k in range(60)))
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
    return folder


def call(home: Path, *arguments: str | Path, **others: Any) -> str:
    """What a command prints, in whose output and files no secret is."""
    done = memcurse(*arguments, folder=home, **others)
    written = [path.read_bytes().decode() for path in home.rglob("*") if path.is_file()]
    for text in (done.stdout, done.stderr, *written):
        for secret in SECRETS:
            assert secret not in text, (arguments, text[-2000:])
    assert "internal error" not in done.stderr, done.stderr
    return done.stdout


def urls(web: Web) -> list[str]:
    """URLs with credentials: one that is there, and every other kind."""
    here = f"http://{NAMED}127.0.0.1:{web.server_port}"
    names = ("step_1.safetensors", "absent", "moved", "odd", "folder/", "step_x.csv")
    dead = f"http://{NAMED}127.0.0.1:{unused_port()}/step_1.safetensors{KEYED}"
    return [*(f"{here}/{name}{KEYED}" for name in names), dead, *MALFORMED]


@pytest.mark.parametrize("command", COMMANDS)
def test_no_argument_shows_the_credentials_of_a_url(command: str, web: Web, home: Path) -> None:
    for url in urls(web) if command in READERS else MALFORMED[:3]:
        jobs = ("--jobs", "1") if command == "track" else ()
        call(home, command, url, *jobs, "--debug")
        call(home, command, url, LRU, *jobs, "--json", "--verbose")


@pytest.mark.parametrize("command", COMMANDS)
def test_no_option_shows_the_credentials_of_a_url(command: str, web: Web, home: Path) -> None:
    there, malformed = urls(web)[0], MALFORMED[0]
    for option in (*build(command).params, None):
        name = "config" if option is None else option_name(option)
        if name and not getattr(option, "is_flag", False):
            for url in (there, malformed):
                given = (command, *ARGUMENTS.get(command, ()), f"--{name}", url)
                call(home, *given, "--verbose")
    call(home, command, *ARGUMENTS.get(command, ()), f"--{there}")


def test_a_run_at_urls_shows_no_credentials(web: Web, home: Path) -> None:
    (web.root / "step_2.safetensors").write_bytes(LRU.read_bytes())
    first = f"http://{NAMED}127.0.0.1:{web.server_port}/step_1.safetensors{KEYED}"
    second, missing = (first.replace("step_1", other) for other in ("step_2", "step_3"))
    same = first.replace("/step_1", "//step_1")
    options = ("--jobs", "1", "--verbose", "--debug")
    for form in ("terminal", "json", "csv", "html"):
        for run in ((first, second), (first, missing)):
            call(home, "track", *run, *options, "--format", form, "--output", f"of.{form}")
    call(home, "track", first, same, *options)
    call(home, "track", missing, *options, "--cache", "other")
    call(home, "track", first, "--step-pattern", r"(token=\w+)", *options)
    call(home, "track", first, second, "--jobs", "2")
    document = json.loads(call(home, "track", first, second, "--jobs", "1", "--json"))
    shown = [web.url(f"step_{step}.safetensors") for step in (1, 2)]
    assert [step["path"] for step in document["steps"]] == shown


def test_a_report_on_a_url_shows_no_credentials(web: Web, home: Path) -> None:
    url = f"http://{NAMED}127.0.0.1:{web.server_port}/step_1.safetensors{KEYED}"
    for form in ("terminal", "json", "html"):
        text = call(home, "inspect", url, "--format", form, "--verbose")
        assert web.url("step_1.safetensors") in text
    for form in ("json", "github", "sarif", "junit"):
        call(home, "check", url, "--max-step-effect", "0.1", "--format", form)


def test_settings_show_no_credentials(home: Path) -> None:
    for url in MALFORMED[:3]:
        named = {
            variables(command, name)[-1]: url
            for command, options in everything().items()
            for name in options
        }
        call(home, "settings", environment=named)
        call(home, "settings", "--json", environment=named)
        for command, name in (("inspect", "optimizer"), ("predict", "autocorrelation")):
            variable = {variables(command, name)[-1]: url}
            call(home, command, *ARGUMENTS.get(command, ()), "--verbose", environment=variable)


HARMLESS = r"""
run/model@best.pt run/a:b@c/x.pt run/epoch=?-step=????.ckpt a#1.pt C:\a\b@c#d.pt
hf://org/repo@main/a.pt http://localhost:8000/models@v2/x.pt http://[::1]:80/a
dask://HOST:PORT 0.332:0,0.044:0.997:0.1
"""


@pytest.mark.parametrize("place", HARMLESS.split())
def test_what_holds_no_credentials_is_shown_as_it_is(place: str) -> None:
    assert shown_place(place) == place
    assert shown_text(f"  '{place}': no\n") == f"  '{place}': no\n"
