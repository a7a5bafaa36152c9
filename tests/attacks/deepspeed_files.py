"""Attack files in DeepSpeed's folders."""

from __future__ import annotations

from pathlib import Path

import torch
from attacks.build import Executes, attack, weights


def _step(directory: Path, name: str, **more: object) -> Path:
    folder = directory / name
    folder.mkdir(parents=True)
    state = {"module": weights(), "ds_version": "0.16.2", "param_shapes": [], **more}
    torch.save(state, folder / "mp_rank_00_model_states.pt")
    return folder


def _outside(directory: Path) -> Path:
    return _step(directory.parent, f"{directory.name}-outside")


@attack("opens")
def deepspeed_that_would_run_code(directory: Path) -> Path:
    return _step(directory, "global_step1", ds_config=Executes(directory))


@attack("no checkpoint")
def deepspeed_latest_that_climbs(directory: Path) -> Path:
    (directory / "latest").write_text(f"../{_outside(directory).name}")
    return directory


@attack("no checkpoint")
def deepspeed_latest_of_control_characters(directory: Path) -> Path:
    (directory / "latest").write_bytes(b"\x1b]0;owned\x07" * 100_000)
    return directory


@attack("outside")
def deepspeed_step_that_is_a_link(directory: Path) -> Path:
    (directory / "global_step1").symlink_to(_outside(directory))
    return directory


@attack("64 deep")
def deepspeed_module_within_itself(directory: Path) -> Path:
    module: dict[str, object] = {}
    module["self"] = module
    return _step(directory, "global_step1", module=module)


@attack("opens")
def deepspeed_shapes_of_no_kind(directory: Path) -> Path:
    return _step(directory, "global_step1", param_shapes=[3, None, {("a",): 1}], mp_world_size="2")
