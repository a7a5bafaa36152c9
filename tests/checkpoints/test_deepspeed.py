"""DeepSpeed's folders, written with the keys that its engine saves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from memcurse_cli.checkpoints.open import open_checkpoint
from memcurse_cli.diagnosis.inspection import inspect
from memcurse_cli.errors import CheckpointError

WEIGHTS = "mp_rank_00_model_states.pt"


def states(module: Any, ranks: int = 1, **more: Any) -> dict[str, Any]:
    """The entries of one rank's file, as engine.py's _save_checkpoint writes them."""
    shapes = {name: torch.Size([4, 4]) for name in module or ()}
    return {
        "module": module,
        "buffer_names": [],
        "optimizer": None,
        "param_shapes": [shapes],
        "frozen_param_shapes": None,
        "frozen_param_fragments": None,
        "lr_scheduler": None,
        "global_steps": 100,
        "dp_world_size": 2,
        "mp_world_size": ranks,
        "ds_config": {"train_batch_size": 2},
        "ds_version": "0.16.2",
        **more,
    }


def step(folder: Path, **more: Any) -> Path:
    folder.mkdir()
    module = torch.nn.GRU(3, 4).state_dict()
    frozen = {"weight_hh_l0": torch.zeros(48)}
    torch.save(states(module, frozen_param_fragments=frozen, **more), folder / WEIGHTS)
    for rank in range(2):
        optimizer = {"optimizer_state_dict": {"single_partition_of_fp32_groups": [torch.ones(9)]}}
        name = f"bf16_zero_pp_rank_{rank}_mp_rank_00_optim_states.pt"
        torch.save(optimizer, folder / name)
    return folder


def test_the_weights_of_a_step_are_read(tmp_path: Path) -> None:
    folder = step(tmp_path / "global_step100")
    saved = torch.load(folder / WEIGHTS)["module"]
    for path in (folder, folder / WEIGHTS):
        with open_checkpoint(path) as store:
            assert list(store.tensors) == list(saved)
            assert not store.notes
            for name, tensor in saved.items():
                np.testing.assert_array_equal(store.read(name), tensor.double().numpy())
    assert [layer.family for layer in inspect(folder).layers] == ["gru"]


def test_of_several_steps_latest_names_one(tmp_path: Path) -> None:
    step(tmp_path / "global_step100")
    step(tmp_path / "global_step200")
    (tmp_path / "zero_to_fp32.py").write_text("raise SystemExit")
    with pytest.raises(CheckpointError, match="2 checkpoints: global_step100/mp_rank_00_model_st"):
        open_checkpoint(tmp_path)
    (tmp_path / "latest").write_text("global_step200\n")
    expected = torch.load(tmp_path / "global_step200" / WEIGHTS)["module"]["bias_hh_l0"]
    with open_checkpoint(tmp_path) as store:
        np.testing.assert_array_equal(store.read("bias_hh_l0"), expected.double().numpy())


@pytest.mark.parametrize("latest", ["../outside", "/etc", "global_step9", "", "\x1b[31m" * 100])
def test_latest_leads_nowhere_else(tmp_path: Path, latest: str) -> None:
    (tmp_path / "save").mkdir()
    step(tmp_path / "outside")
    step(tmp_path / "save" / "global_step100")
    (tmp_path / "save" / "latest").write_text(latest)
    inside = torch.load(tmp_path / "save" / "global_step100" / WEIGHTS)["module"]["bias_hh_l0"]
    with open_checkpoint(tmp_path / "save") as store:
        np.testing.assert_array_equal(store.read("bias_hh_l0"), inside.double().numpy())


def test_a_linked_step_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "save").mkdir()
    step(tmp_path / "outside")
    (tmp_path / "save" / "global_step100").symlink_to(tmp_path / "outside")
    with pytest.raises(CheckpointError, match="leads outside"):
        open_checkpoint(tmp_path / "save")


def test_parts_of_matrices_are_refused_or_noted(tmp_path: Path) -> None:
    folder = step(tmp_path / "global_step100", ranks=2)
    torch.save(states({}, 2), folder / "mp_rank_01_model_states.pt")
    with pytest.raises(CheckpointError, match=r"split over 2 ranks \(tensor parallel\); merge"):
        open_checkpoint(folder)
    with open_checkpoint(folder / WEIGHTS) as store:
        assert store.notes == ("one of 2 tensor-parallel parts: matrices may be slices",)


def test_zero_stage_3_says_what_to_run(tmp_path: Path) -> None:
    folder = tmp_path / "global_step100"
    folder.mkdir()
    path = folder / "zero_pp_rank_0_mp_rank_00_model_states.pt"
    torch.save(states({"rnn.weight_hh_l0": torch.empty(0), "buffer": torch.ones(3)}), path)
    for place in (tmp_path, folder, path):
        with pytest.raises(CheckpointError, match=r"ZeRO stage 3.*; run the zero_to_fp32.py"):
            open_checkpoint(place)


def test_a_pipeline_says_where_its_layers_are(tmp_path: Path) -> None:
    torch.save(states(None), tmp_path / WEIGHTS)
    with pytest.raises(CheckpointError, match="whose layers lie in files of their own"):
        open_checkpoint(tmp_path)
    torch.save(torch.nn.GRU(3, 4).state_dict(), tmp_path / "layer_01-model_00-model_states.pt")
    with pytest.raises(CheckpointError, match="name the one of a recurrent layer, such as layer_0"):
        open_checkpoint(tmp_path)
    with open_checkpoint(tmp_path / "layer_01-model_00-model_states.pt") as store:
        assert len(store.tensors) == 4


def test_a_folder_of_optimiser_states_alone_has_no_checkpoint(tmp_path: Path) -> None:
    folder = step(tmp_path / "global_step100")
    (folder / WEIGHTS).unlink()
    with pytest.raises(CheckpointError, match="no checkpoint"):
        open_checkpoint(folder)
