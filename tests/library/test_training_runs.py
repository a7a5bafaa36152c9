"""Runs that trainers themselves saved: what they write beside the weights, and how they name it."""

from __future__ import annotations

from pathlib import Path

import jax.numpy as jnp
import pytest
import torch
from tracking.build import state

from memcurse_cli.errors import UsageError
from memcurse_cli.schema.derived import Tracking
from memcurse_cli.tracking.discovery import FoundStep, find_checkpoints, find_step
from memcurse_cli.tracking.track import Tracker
from memcurse_cli.tracking.work import Reading


def track(*given: Path | str) -> Tracking:
    return Tracker([str(one) for one in given], Reading.of(horizon=50)).update()


def told(tracking: Tracking) -> list[tuple[int, str]]:
    assert tracking.failed == 0
    return [(one.step, one.step_source) for one in tracking.steps]


@pytest.mark.filterwarnings("ignore")
def test_a_run_of_hugging_faces_trainer(tmp_path: Path) -> None:
    pytest.importorskip("accelerate", reason="the Trainer needs it")
    from transformers import MambaConfig, MambaForCausalLM, Trainer, TrainingArguments

    configuration = MambaConfig(
        vocab_size=11, hidden_size=8, state_size=4, num_hidden_layers=2, intermediate_size=16
    )
    tokens = torch.randint(0, 11, (6, 7)).tolist()
    arguments = TrainingArguments(
        str(tmp_path),
        max_steps=4,
        per_device_train_batch_size=1,
        report_to=[],
        save_steps=2,
        use_cpu=True,
        disable_tqdm=True,
    )
    trainer = Trainer(
        MambaForCausalLM(configuration),
        arguments,
        train_dataset=[{"input_ids": row, "labels": row} for row in tokens],
    )
    trainer.train()
    trainer.save_model()
    trainer.save_state()  # the folder itself is now a checkpoint of step 4 too
    run = track(tmp_path)
    assert told(run) == [(2, "directory"), (4, "directory")]
    assert all(len(one.snapshot.layers) == 2 for one in run.steps if one.snapshot)
    files = track(*sorted(tmp_path.glob("checkpoint-*/model.safetensors")))
    assert told(files) == [(2, "trainer state"), (4, "trainer state")]
    assert [one.snapshot for one in files.steps] == [one.snapshot for one in run.steps]


@pytest.mark.filterwarnings("ignore")
def test_a_run_of_lightning(tmp_path: Path) -> None:
    lightning = pytest.importorskip("lightning", reason="it trains and saves the run")
    from lightning.pytorch.callbacks import ModelCheckpoint

    class Module(lightning.LightningModule):  # type: ignore[name-defined,misc]  # imported late
        def __init__(self) -> None:
            super().__init__()
            for name, values in state(0.9).items():
                self.register_parameter(name, torch.nn.Parameter(torch.tensor(values)))

        def training_step(self, batch: torch.Tensor, index: int) -> torch.Tensor:
            return (self.nu_log + 9).square().sum()  # towards a long memory

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.Adam(self.parameters(), lr=0.3)

    saving = ModelCheckpoint(tmp_path, every_n_train_steps=2, save_top_k=-1, save_last=True)
    trainer = lightning.Trainer(
        max_steps=6,
        logger=False,
        callbacks=[saving],
        enable_progress_bar=False,
        enable_model_summary=False,
        accelerator="cpu",
    )
    trainer.fit(Module(), torch.utils.data.DataLoader(torch.zeros(6, 1), batch_size=1))
    run = track(tmp_path)
    assert told(run) == [(2, "metadata"), (4, "metadata"), (6, "metadata")]
    moduli = [one.snapshot.summary.modulus for one in run.steps if one.snapshot]
    assert moduli == sorted(moduli)
    assert "max |λ| rose" in run.sentence
    assert find_step(str(tmp_path / "last.ckpt")) == FoundStep(6, "metadata")
    with pytest.raises(UsageError, match=r"last\.ckpt.* both of step 6"):
        track(tmp_path / "*.ckpt")


@pytest.mark.filterwarnings("ignore")
def test_a_run_of_orbaxs_manager(tmp_path: Path) -> None:
    import orbax.checkpoint

    with orbax.checkpoint.CheckpointManager(tmp_path / "run") as manager:
        for step, modulus in ((5, 0.5), (10, 0.9)):
            params = {name: jnp.asarray(values) for name, values in state(modulus).items()}
            manager.save(step, args=orbax.checkpoint.args.StandardSave({"params": params}))
    run = track(tmp_path / "run")
    assert told(run) == [(5, "directory"), (10, "directory")]
    moduli = [one.snapshot.summary.modulus for one in run.steps if one.snapshot]
    assert moduli == pytest.approx([0.5, 0.9], rel=1e-6)


@pytest.mark.filterwarnings("ignore")
def test_flax_and_orbax_train_states_say_their_step(tmp_path: Path) -> None:
    import flax.serialization
    import orbax.checkpoint

    params = {name: jnp.asarray(values) for name, values in state(0.9).items()}
    tree = {"step": jnp.asarray(41), "params": params}
    path = tmp_path / "latest.msgpack"
    path.write_bytes(flax.serialization.to_bytes(tree))
    assert find_step(str(path)) == FoundStep(41, "metadata")
    with orbax.checkpoint.CheckpointManager(tmp_path / "run") as manager:
        manager.save(43, args=orbax.checkpoint.args.StandardSave(tree))
    saved = tmp_path / "run" / "43"
    assert find_step(str(saved)) == FoundStep(41, "metadata", in_name=43)
    with orbax.checkpoint.CheckpointManager(tmp_path / "plain") as manager:
        manager.save(43, args=orbax.checkpoint.args.StandardSave({"params": params}))
    assert find_step(str(tmp_path / "plain" / "43")) == FoundStep(43, "directory")
    item = tmp_path / "plain" / "43" / "default"
    for path in (item, item / "_METADATA"):
        assert find_step(str(path)) == FoundStep(43, "directory")


def test_an_orbax_step_without_the_managers_own_file_is_its_item(tmp_path: Path) -> None:
    import orbax.checkpoint

    with orbax.checkpoint.CheckpointManager(tmp_path) as manager:
        for step in (3, 12):
            manager.save(step, args=orbax.checkpoint.args.StandardSave({"w": jnp.zeros(2)}))
    found = find_checkpoints([str(tmp_path)])
    assert [Path(path).name for path in found] == ["12", "3"]
    for step in (3, 12):
        (tmp_path / str(step) / "_CHECKPOINT_METADATA").unlink()
    found = find_checkpoints([str(tmp_path)])
    assert [Path(path).relative_to(tmp_path).as_posix() for path in found] == [
        "12/default",
        "3/default",
    ]
