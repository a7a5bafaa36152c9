"""Checkpoints at URLs, from a server on this machine that counts what it sends."""

from __future__ import annotations

import asyncio
import contextlib
import json
import pickle
import re
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from checkpoints.fuzzing import FUZZ
from checkpoints.web import Web, serving, unused_port
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import save_file

from memcurse_cli.checkpoints import remote
from memcurse_cli.checkpoints.open import open_checkpoint
from memcurse_cli.checkpoints.remote import PAGE, RemoteFile
from memcurse_cli.checkpoints.store import Transfer
from memcurse_cli.checkpoints.untrusted.names import is_url
from memcurse_cli.checkpoints.untrusted.source import unchanged_while_read
from memcurse_cli.diagnosis.inspection import inspect
from memcurse_cli.errors import CheckpointError

LAYERS = 7


@pytest.fixture
def web(tmp_path: Path) -> Iterator[Web]:
    with serving(tmp_path) as server:
        yield server


def mamba() -> dict[str, np.ndarray[Any, Any]]:
    """Seven layers, of which a report needs A_log and dt_proj.bias: 1 % of the bytes."""
    shapes = {
        "A_log": (1024, 16),
        "D": (1024,),
        "conv1d.weight": (1024, 1, 4),
        "dt_proj.weight": (1024, 32),
        "dt_proj.bias": (1024,),
        "in_proj.weight": (2048, 512),
        "out_proj.weight": (512, 1024),
        "x_proj.weight": (64, 1024),
    }
    return {
        f"backbone.layers.{layer}.mixer.{name}": np.full(shape, 0.1, np.float32)
        for layer in range(LAYERS)
        for name, shape in shapes.items()
    }


def test_a_report_fetches_little_more_than_it_needs(web: Web) -> None:
    save_file(mamba(), web.root / "model.safetensors")
    local = inspect(web.root / "model.safetensors")
    report = inspect(web.url("model.safetensors"))
    assert report.layers == local.layers
    assert len(report.layers) == LAYERS
    assert report.checkpoint.bytes == local.checkpoint.bytes > 40e6
    assert local.checkpoint.bytes_read < 0.011 * local.checkpoint.bytes
    # Another byte comes with the answer that the file has not changed.
    assert report.checkpoint.bytes_read + 1 == web.sent < 0.045 * local.checkpoint.bytes
    # No more than the pages that each layer's tensors touch, and the header's.
    assert web.sent < local.checkpoint.bytes_read + (LAYERS + 1) * 2 * PAGE
    # The header, the config.json that is not there, and one or two ranges of each layer.
    assert len(web.asked) <= 1.5 * LAYERS + 2


SAVE: dict[str, Callable[[dict[str, Any], Path], object]] = {
    "pt": torch.save,
    "legacy": partial(torch.save, _use_new_zipfile_serialization=False),
    "npz": lambda tensors, path: np.savez(path, **tensors),
    "pkl": lambda tensors, path: path.write_bytes(pickle.dumps(tensors)),
    "safetensors": save_file,
}


@pytest.mark.parametrize("kind", SAVE)
def test_every_format_is_read_by_ranges(web: Web, kind: str) -> None:
    tensors: dict[str, Any] = {"layer0.w": np.ones((3, 400)), "layer1.w": np.ones((900, 400))}
    if kind in ("pt", "legacy"):
        tensors = {name: torch.from_numpy(array) for name, array in tensors.items()}
    path = web.root / f"a b.{kind}"
    SAVE[kind](tensors, path)
    with open_checkpoint(web.url(f"a%20b.{kind}")) as store, open_checkpoint(path) as local:
        assert store.tensors == local.tensors
        name = next(name for name in store.tensors if name.startswith("layer0"))
        np.testing.assert_array_equal(store.read(name), local.read(name))
        assert store.bytes_read == web.sent < 500_000 < store.bytes


def test_shards_and_the_config_are_found_beside_a_remote_index(web: Web) -> None:
    folder = web.root / "sub"
    folder.mkdir()
    weight_map = {f"w{index}": f"s {index}.safetensors" for index in range(2)}
    for index, (name, shard) in enumerate(weight_map.items()):
        save_file({name: np.full((3, 3), index)}, folder / shard)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    (folder / "config.json").write_text('{"model_type": "mamba"}')
    with open_checkpoint(web.url("sub/model.safetensors.index.json?token=secret")) as store:
        assert store.config == {"model_type": "mamba"}
        assert store.read("w1")[0, 0] == 1
        assert store.bytes_read == web.sent
        assert "secret" not in store.path
    # Whatever gives access to the index gives access to its shards.
    assert {path.partition("?")[2] for path in web.asked} == {"token=secret"}


def test_a_remote_index_leads_nowhere_else_and_shards_of_other_names_are_quoted(web: Web) -> None:
    index = web.root / "i.index.json"

    def refused(shard: str, expected: str) -> None:
        index.write_text(json.dumps({"weight_map": {"w": shard}}))
        web.asked.clear()
        with pytest.raises(CheckpointError, match=expected):
            open_checkpoint(web.url("i.index.json"))

    for shard in ("../secret", "/etc/passwd", "http://elsewhere/a", "..\\b", ""):
        refused(shard, "leads outside")
        assert len(web.asked) == 1
    refused("%2e%2e/a?b#c", "no such file")
    assert web.asked[1:] == ["/%252e%252e/a%3Fb%23c"]


def test_a_local_index_fetches_nothing(web: Web, tmp_path: Path) -> None:
    save_file({"w": np.eye(2)}, tmp_path / "a.safetensors")
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"w": web.url("a.safetensors")}}))
    with pytest.raises(CheckpointError, match="leads outside"):
        open_checkpoint(index)
    with pytest.raises(CheckpointError, match="no such file"):
        open_checkpoint(Path(web.url("a.safetensors")))
    assert not web.asked


def test_redirections_are_followed_and_remembered(web: Web) -> None:
    save_file({"a": np.ones(10), "w": np.ones((300, 300))}, web.root / "a.safetensors")
    web.moved = {"/here": "/there?signed", "/there": "/a.safetensors"}
    with open_checkpoint(web.url("here")) as store:
        store.read("w")
        file = "/a.safetensors"
        asked = [path for path in web.asked if "config" not in path]
        assert asked == ["/here", "/there?signed", file, file]
        # What the redirection led to has expired; the first URL leads elsewhere now.
        (web.root / "a.safetensors").rename(web.root / "b.safetensors")
        web.moved = {"/here": "/b.safetensors"}
        store.read("w")
    web.moved = {"/here": "/there", "/there": "/here"}
    with pytest.raises(CheckpointError, match="redirects more than 10 times; check the URL"):
        open_checkpoint(web.url("here"))


@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        ("404", r"no such file \(HTTP 404\); check the URL"),
        ("403", r"refuses access \(HTTP 403\); use a URL that gives access"),
        ("500", r"answers with HTTP 500; try again later"),
        ("416", "the file is empty"),
        ("wrong range", "does not say which range it sends; download the file first"),
        ("short", "cannot be reached|and stopped; try again"),
        ("gzip", "compresses what it sends"),
        ("no length", "does not say how long the file is"),
        ("silent", "does not answer or sends too slowly; try again later"),
        ("slow", "does not answer or sends too slowly; try again later"),
        ("slow head", "does not answer or sends too slowly; try again later"),
        ("endless", "not a format that memcurse reads|are zero"),
    ],
)
def test_each_fault_of_a_server_has_its_line(
    web: Web, fault: str, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote, "CONNECT_SECONDS", 0.3)
    monkeypatch.setattr(remote, "READ_SECONDS", 0.3)
    monkeypatch.setattr(remote, "SLOWEST", 1 << 30)
    save_file({"w": np.ones((300, 300))}, web.root / "a.safetensors")
    web.fault = fault
    url = web.url("a.safetensors")
    with pytest.raises(CheckpointError, match=expected) as caught, open_checkpoint(url) as store:
        store.read("w")
    assert str(caught.value).startswith(f"{url}: ")
    assert str(caught.value).isprintable()
    assert web.sent < 100 << 20


def test_a_file_that_changes_while_it_is_read_is_refused(web: Web) -> None:
    path, url = web.root / "a.safetensors", web.url("a.safetensors")
    save_file({"nu_log": np.zeros((300, 300)), "theta_log": np.zeros((300, 300))}, path)

    def longer() -> None:
        path.write_bytes(path.read_bytes() + b"more")

    for change in (lambda: setattr(web, "tag", '"two"'), longer):
        web.tag = '"one"'
        with open_checkpoint(url) as store:
            change()
            with pytest.raises(CheckpointError, match="changed while it was read"):
                store.read("nu_log")
    save_file({"nu_log": np.zeros(4), "theta_log": np.zeros(4)}, path)
    with pytest.raises(CheckpointError) as caught:
        inspect(url, progress=lambda *_: setattr(web, "tag", '"two"'))
    assert str(caught.value).startswith(f"{url}: the file changed while it was read; ")
    assert inspect(url, progress=lambda *_: path.unlink()).layers  # it was read as it was


def test_a_server_without_ranges_is_read_whole_up_to_a_limit(
    web: Web, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_file({"w": np.ones((300, 300))}, web.root / "a.safetensors")
    web.fault = "no ranges"
    with open_checkpoint(web.url("a.safetensors")) as store:
        assert store.read("w").sum() == 90_000
        assert store.bytes_read == store.bytes == web.sent
    monkeypatch.setattr(remote, "MAX_WHOLE", 1000)
    with pytest.raises(CheckpointError, match="are more than the 1000 that are fetched whole"):
        open_checkpoint(web.url("a.safetensors"))


def test_what_cannot_be_a_remote_file_is_refused_at_once(web: Web) -> None:
    (web.root / "_METADATA").write_text('{"tree_metadata": {}}')
    for url, expected in (
        (f"http://127.0.0.1:{unused_port()}/a", "cannot be reached"),
        ("http://[::1/a", "not a URL"),
        ("http://127.0.0.1:99999999/a", "not a URL|cannot be reached"),
        ("ftp://host/a", "ftp:// is not a kind of path that memcurse reads"),
        ("file:///etc/passwd", "file:// is not a kind"),
        (web.url("folder/"), "folder cannot be listed; name the file in it"),
        (web.url("\x1b[31m"), "no such file"),
        (web.url("_METADATA"), "copy the folder to this machine"),
    ):
        with pytest.raises(CheckpointError, match=expected) as caught:
            open_checkpoint(url)
        assert str(caught.value).isprintable()
    assert is_url("https://host/a")
    assert not any(map(is_url, ["a/b", "C:\\a", "./https://host", Path("https://host"), 3]))


class FakeStore:
    """An object store with the calls of fsspec that are used."""

    def __init__(self, objects: dict[str, bytes]) -> None:
        self.objects, self.tag = objects, "one"

    def isdir(self, url: str) -> bool:
        return any(name.startswith(f"{url.rstrip('/')}/") for name in self.objects)

    def ls(self, url: str, detail: bool) -> list[str]:
        return [name.removeprefix("s3://") for name in self.objects if name.startswith(url)]

    def info(self, url: str) -> dict[str, int]:
        if url.endswith("denied"):
            raise PermissionError(url)
        if url.endswith("odd"):
            raise RuntimeError("\x1b[31mno credentials\nat all")
        if url.endswith("quoted"):
            raise RuntimeError(f'Invalid bucket name "{url.removeprefix("s3://")}?sig=pw": {url}')
        if url not in self.objects:
            raise FileNotFoundError(url)
        return {"size": len(self.objects[url]), "ETag": self.tag}

    def invalidate_cache(self) -> None:
        """Nothing is kept."""

    def cat_file(self, url: str, start: int, end: int) -> bytes:
        return self.objects[url][start:end]


def test_an_object_store_is_read_by_ranges(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import fsspec

    tensors = {"a": np.ones(3), "w": np.ones((1000, 1000))}
    save_file(tensors, tmp_path / "a.safetensors")
    content = (tmp_path / "a.safetensors").read_bytes()
    index = json.dumps({"weight_map": {"w": "x/a.safetensors", "a": "x/a.safetensors"}}).encode()
    store = FakeStore(
        {
            "s3://bucket/m/model.safetensors.index.json": index,
            "s3://bucket/m/x/a.safetensors": content,
            "s3://bucket/m/config.json": b'{"model_type": "x"}',
        }
    )
    monkeypatch.setattr(fsspec, "filesystem", lambda scheme: store)
    for url in ("s3://bucket/m", "s3://bucket/m/", "s3://bucket/m/model.safetensors.index.json"):
        with open_checkpoint(url) as opened:
            np.testing.assert_array_equal(opened.read("a"), tensors["a"])
            assert opened.bytes_read < 400_000 < opened.bytes
            assert opened.config == {"model_type": "x"}
    with unchanged_while_read(), open_checkpoint("s3://bucket/m") as opened:
        opened.read("a")
    changing = unchanged_while_read()
    changing.__enter__()
    open_checkpoint("s3://bucket/m").close()
    store.tag = "two"
    with pytest.raises(CheckpointError, match="the file changed while it was read"):
        changing.__exit__(None, None, None)
    for name, expected in (
        ("missing", "no such file; check the URL"),
        ("denied", "the store refuses access; log in"),
        ("odd", r"RuntimeError: \\x1b\[31mno credentials\)"),
        ("me:pw@quoted", r'Invalid bucket name "quoted": s3://quoted\)'),
    ):
        with pytest.raises(CheckpointError, match=expected) as caught:
            open_checkpoint(f"s3://{name}" if "@" in name else f"s3://bucket/{name}")
        assert str(caught.value).isprintable()


def test_an_object_store_that_sends_too_slowly_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    import fsspec
    from fsspec.asyn import AsyncFileSystem

    class Slow(AsyncFileSystem):
        async def _info(self, path: str, **_: object) -> dict[str, object]:
            return {"name": path, "size": 1000, "type": "file"}

        async def _cat_file(self, path: str, **_: object) -> bytes:
            await asyncio.sleep(5)
            return bytes(1000)

    monkeypatch.setattr(remote, "READ_SECONDS", 0.1)
    monkeypatch.setattr(fsspec, "filesystem", lambda scheme: Slow(skip_instance_cache=True))
    with pytest.raises(CheckpointError, match=r"s3://bucket/a: .* too slowly; try again later"):
        open_checkpoint("s3://bucket/a")


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("aiohttp", "fsspec", "fsspec.implementations.http"):
        monkeypatch.setitem(sys.modules, module, None)
    for url, expected in (
        ("https://host/a", "fsspec and aiohttp; run `pip install 'memcurse-cli[remote]'`"),
        ("s3://bucket/a", "fsspec and s3fs; run `pip install 'memcurse-cli[remote]' s3fs`"),
    ):
        with pytest.raises(CheckpointError, match=re.escape(expected)):
            open_checkpoint(url)


class Held(RemoteFile):
    """Bytes in memory, of which so many came with the size."""

    def __init__(self, content: bytes, head: int) -> None:
        self.content, self.head = content, content[:head]
        super().__init__("http://host/a", None, Transfer())

    def _open(self) -> tuple[int]:
        return (len(self.content),)

    _now = _open

    def _fetch(self, start: int, stop: int) -> bytes:
        assert 0 <= start < stop <= self.size
        return self.content[start:stop]


@FUZZ
@given(st.integers(0, 12 * PAGE), st.integers(0, 3 * PAGE), st.data())
def test_ranges_in_any_order_are_those_of_the_file(
    size: int, head: int, data: st.DataObject
) -> None:
    content = np.random.default_rng(size).bytes(size)
    file = Held(content, head)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(remote, "MAX_PAGES", data.draw(st.integers(1, 20), "pages"))
        patched.setattr(remote, "LARGE_READ", 6 * PAGE)
        for _ in range(8):
            offset = data.draw(st.integers(0, size), "offset")
            length = data.draw(st.integers(0, size - offset), "length")
            assert file.read(offset, length) == content[offset : offset + length]
        with pytest.raises(ValueError, match="the file ends at byte"):
            file.read(size, 1)


def test_no_answer_of_a_server_is_believed_unseen(tmp_path: Path) -> None:
    save_file({"w": np.ones((100, 100))}, tmp_path / "a.safetensors")
    numbers = st.sampled_from(["0", "-1", "65535", "80071", "80072", "9" * 30, "*", "٣", ""])
    places = st.builds("{} {}-{}/{}".format, st.sampled_from(["bytes", "x"]), *[numbers] * 3)
    with serving(tmp_path) as web:

        @settings(FUZZ, max_examples=60)
        @given(places | st.text("bytes 0123456789-/*", min_size=1))
        def answers(place: str) -> None:
            web.place = place.encode("ascii", "ignore").decode()
            # Whatever was read is what the file holds; nothing else than the one error is raised.
            with (
                contextlib.suppress(CheckpointError),
                open_checkpoint(web.url("a.safetensors")) as store,
            ):
                assert (store.read("w") == 1).all()

        answers()
