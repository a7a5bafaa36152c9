"""Tar archives, DeepSpeed's folders and a config.json that are not what they should be."""

from __future__ import annotations

import gzip
import os
import tarfile
from pathlib import Path

from attacks.build import (
    MARKER,
    Builder,
    Executes,
    attack,
    attacks,
    builders,
    entry,
    safetensors,
    saved,
    weights,
)

WEIGHTS = "model_weights.ckpt"


def _member(kind: bytes = tarfile.REGTYPE, size: int = 0, link: str = "") -> bytes:
    member = tarfile.TarInfo(WEIGHTS)
    member.type, member.size, member.linkname = kind, size, link
    return member.tobuf(tarfile.GNU_FORMAT)


def _tar(member: bytes) -> bytes:
    return tarfile.TarInfo("model_config.yaml").tobuf() + member + bytes(10752)


attacks(
    "a.nemo",
    {
        "tar_member_of_2_to_the_60_bytes": ("beyond its end", _tar(_member(size=2**60))),
        "tar_name_of_2_to_the_60_bytes": (
            "truncated or corrupt",
            _tar(_member(tarfile.GNUTYPE_LONGNAME, 2**60)),
        ),
        "tar_member_that_is_a_link_out_of_the_archive": (
            "is a link",
            _tar(_member(tarfile.SYMTYPE, link="/etc/passwd")),
        ),
        "tar_member_that_is_a_hard_link": (
            "is a link",
            _tar(_member(tarfile.LNKTYPE, link="../../secret")),
        ),
        "tar_name_that_climbs": (
            "holds no model_weights.ckpt",
            _tar(tarfile.TarInfo(f"../{WEIGHTS}").tobuf()),
        ),
        "tar_bomb": (
            "more than the",
            lambda: gzip.compress(_member(size=1 << 29) + bytes(1 << 29), 9),
        ),
    },
)


def _step(name: str = "", **more: object) -> Builder:
    """A step of DeepSpeed's, which a link leads to where it has a name."""
    state = {"module": weights(), "ds_version": "0.16.2", "param_shapes": [], **more}

    def build(directory: Path) -> Path:
        folder = directory.parent / f"{directory.name}-outside" if name else directory / "step1"
        folder.mkdir(parents=True)
        (folder / "mp_rank_00_model_states.pt").write_bytes(saved(state))
        if name == "latest":
            (directory / name).write_text(f"../{folder.name}")
        elif name:
            (directory / name).symlink_to(folder)
        return directory if name else folder

    return build


WITHIN_ITSELF: dict[str, object] = {}
WITHIN_ITSELF["self"] = WITHIN_ITSELF
builders(
    {
        "deepspeed_that_would_run_code": ("opens", _step(ds_config=Executes())),
        "deepspeed_latest_that_climbs": ("no checkpoint", _step("latest")),
        "deepspeed_step_that_is_a_link": ("outside", _step("global_step1")),
        "deepspeed_module_within_itself": ("64 deep", _step(module=WITHIN_ITSELF)),
        "deepspeed_shapes_of_no_kind": (
            "opens",
            _step(param_shapes=[3, None, {("a",): 1}], mp_world_size="2"),
        ),
    }
)


@attack("no checkpoint")
def deepspeed_latest_of_control_characters(directory: Path) -> Path:
    (directory / "latest").write_bytes(b"\x1b]0;owned\x07" * 100_000)
    return directory


def beside(config: bytes) -> Builder:
    """A config.json beside harmless weights."""

    def build(directory: Path) -> Path:
        if config:
            (directory / "config.json").write_bytes(config)
        path = directory / "model.safetensors"
        path.write_bytes(safetensors({"w": entry([1], 0, 4)}, bytes(4)))
        return path

    return build


def linked_config(directory: Path) -> Path:
    inside = directory / "inside"
    inside.mkdir()
    (directory / "secret.json").write_text(f'{{"secret": "{MARKER}"}}')
    (inside / "config.json").symlink_to(directory / "secret.json")
    return beside(b"")(inside)


def fifo_config(directory: Path) -> Path:
    os.mkfifo(directory / "config.json")
    return beside(b"")(directory)


# Each with the reason that a note gives.
CONFIGS: dict[str, tuple[str, Builder]] = {
    "config_of_ten_megabytes": ("more than 1000000", beside(b'{"a":' * 2_000_000)),
    "config_nested_a_hundred_thousand_deep": (
        "nested too deeply",
        beside(b'{"a":' * 100_000 + b"1" + b"}" * 100_000),
    ),
    "config_with_a_number_of_half_a_million_digits": (
        "not valid JSON",
        beside(b'{"n_groups": ' + b"9" * 500_000 + b"}"),
    ),
    "config_that_is_a_link_out_of_the_directory": ("leads outside", linked_config),
    "config_that_is_a_fifo": ("neither a regular file", fifo_config),
    "config_of_a_large_number": ("20 digits", beside(b'{"a": 1%s}' % (b"0" * 400))),
    "config_that_is_a_list": ("not a JSON object", beside(b"[1, 2]")),
    "config_of_nan": ("NaN is not a number", beside(b'{"a": NaN}')),
    "config_with_a_key_twice": ("stands twice", beside(b'{"a": 1, "a": 2}')),
}
builders({name: ("opens", build) for name, (_, build) in CONFIGS.items()})
builders(
    {
        "config_of_wrong_types": (
            "opens",
            beside(b'{"n_groups": {"a": []}, "time_step_limit": "\\u001b[31m"}'),
        )
    }
)
