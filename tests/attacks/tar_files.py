"""Tar archives whose weights are not where their headers say, or nowhere."""

from __future__ import annotations

import gzip
import io
import tarfile
from pathlib import Path

from attacks.build import attack

WEIGHTS = "model_weights.ckpt"


def _tar(directory: Path, member: tarfile.TarInfo, content: bytes = b"") -> Path:
    path = directory / "a.nemo"
    config = tarfile.TarInfo("model_config.yaml")
    with path.open("wb") as file:
        file.write(config.tobuf() + member.tobuf(tarfile.GNU_FORMAT))
        file.write(content + bytes(10240))
    return path


def _member(kind: bytes = tarfile.REGTYPE, size: int = 0, link: str = "") -> tarfile.TarInfo:
    member = tarfile.TarInfo(WEIGHTS)
    member.type, member.size, member.linkname = kind, size, link
    return member


@attack("beyond its end")
def tar_member_of_2_to_the_60_bytes(directory: Path) -> Path:
    return _tar(directory, _member(size=2**60), bytes(512))


@attack("truncated or corrupt")
def tar_name_of_2_to_the_60_bytes(directory: Path) -> Path:
    return _tar(directory, _member(tarfile.GNUTYPE_LONGNAME, 2**60), bytes(512))


@attack("is a link")
def tar_member_that_is_a_link_out_of_the_archive(directory: Path) -> Path:
    return _tar(directory, _member(tarfile.SYMTYPE, link="/etc/passwd"))


@attack("is a link")
def tar_member_that_is_a_hard_link(directory: Path) -> Path:
    return _tar(directory, _member(tarfile.LNKTYPE, link="../../secret"))


@attack("holds no model_weights.ckpt")
def tar_name_that_climbs(directory: Path) -> Path:
    member = tarfile.TarInfo(f"../{WEIGHTS}")
    return _tar(directory, member)


@attack("more than the")
def tar_bomb(directory: Path) -> Path:
    path = directory / "a.nemo"
    packed = io.BytesIO()
    with gzip.GzipFile(fileobj=packed, mode="wb", compresslevel=9) as file:
        file.write(_member(size=1 << 29).tobuf())
        for _ in range(512):
            file.write(bytes(1 << 20))
    path.write_bytes(packed.getvalue())
    return path
