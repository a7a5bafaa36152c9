"""Runs of real trainers: what the callbacks log, and what is saved beside the weights."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import flax.serialization
import jax.numpy as jnp
import orbax.checkpoint
import pytest
import torch
from tracking.build import state

from memcurse_cli import inspect
from memcurse_cli.errors import UsageError
from memcurse_cli.schema.derived import Tracking
from memcurse_cli.tracking.discovery import FoundStep, find_checkpoints, find_step
from memcurse_cli.tracking.executors import Reading
from memcurse_cli.tracking.track import Tracker

HORIZON = 20


def track(*given: Path | str) -> Tracking:
    return Tracker([str(one) for one in given], Reading.of(horizon=50)).update()


def told(tracking: Tracking) -> list[tuple[int, str]]:
    assert tracking.failed == 0
    return [(one.step, one.step_source) for one in tracking.steps]


@pytest.mark.filterwarnings("ignore")
def test_a_run_of_hugging_faces_trainer(tmp_path: Path) -> None:
    pytest.importorskip("accelerate", reason="the Trainer needs it")
    from transformers import MambaConfig, MambaForCausalLM, Trainer, TrainingArguments

    from memcurse_cli.integrations.transformers import MemcurseCallback

    configuration = MambaConfig(
        vocab_size=11, hidden_size=8, state_size=4, num_hidden_layers=2, intermediate_size=16
    )
    tokens = torch.randint(0, 11, (6, 7)).tolist()
    arguments = TrainingArguments(
        str(tmp_path),
        max_steps=4,
        per_device_train_batch_size=1,
        learning_rate=1e-3,
        lr_scheduler_type="constant",
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
    callback = MemcurseCallback(trainer, every=2, horizon=HORIZON)
    trainer.add_callback(callback)
    trainer.train()
    logged = [entry for entry in trainer.state.log_history if "memcurse/verdict" in entry]
    assert [entry["step"] for entry in logged] == [2, 4]
    assert len(callback.report.layers) == 2
    assert callback.report.input.learning_rate == 1e-3
    assert callback.report.scalars().items() <= logged[-1].items()
    trainer.save_model()
    trainer.save_state()  # the folder itself is now a checkpoint of step 4 too
    run = track(tmp_path)
    assert told(run) == [(2, "directory"), (4, "directory")]
    assert all(len(one.report.layers) == 2 for one in run.steps if one.report)
    files = track(*sorted(tmp_path.glob("checkpoint-*/model.safetensors")))
    assert told(files) == [(2, "trainer state"), (4, "trainer state")]
    assert [one.report for one in files.steps] == [one.report for one in run.steps]


@pytest.mark.filterwarnings("ignore")
def test_a_run_of_lightning(tmp_path: Path) -> None:
    lightning = pytest.importorskip("lightning", reason="it trains and saves the run")
    from lightning.pytorch.callbacks import ModelCheckpoint
    from lightning.pytorch.loggers import CSVLogger

    from memcurse_cli.integrations.lightning import MemcurseCallback

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            for name, values in state(0.9).items():
                self.register_parameter(name, torch.nn.Parameter(torch.tensor(values)))

        def training_step(self, batch: torch.Tensor, index: int) -> torch.Tensor:
            return (self.nu_log + 9).square().sum()  # towards a long memory

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.Adam(self.parameters(), lr=0.3)

    folder, module = tmp_path / "run", Module()
    saving = ModelCheckpoint(folder, every_n_train_steps=2, save_top_k=-1, save_last=True)
    callback = MemcurseCallback(every=2, horizon=HORIZON)
    trainer = lightning.Trainer(
        max_steps=6,
        logger=CSVLogger(tmp_path / "logs", flush_logs_every_n_steps=1),
        callbacks=[saving, callback],
        enable_progress_bar=False,
        enable_model_summary=False,
        accelerator="cpu",
    )
    trainer.fit(module, torch.utils.data.DataLoader(torch.zeros(6, 1), batch_size=1))
    (table,) = (tmp_path / "logs").rglob("metrics.csv")
    head, *lines = (line.split(",") for line in table.read_text().splitlines())
    assert [int(line[head.index("step")]) for line in lines] == [2, 4, 6]
    end = inspect(module.state_dict(), horizon=HORIZON, learning_rate=0.3)
    assert callback.report.scalars() == end.scalars()
    run = track(folder)
    assert told(run) == [(2, "metadata"), (4, "metadata"), (6, "metadata")]
    memories = [one.report.memory for one in run.steps if one.report]
    assert memories == sorted(memories)
    assert "the memory rose" in run.sentence
    assert find_step(str(folder / "last.ckpt")) == FoundStep(6, "metadata")
    with pytest.raises(UsageError, match=r"last\.ckpt.* both of step 6"):
        track(folder / "*.ckpt")


def managed(folder: Path, **trees: Any) -> Path:
    """Some steps, as Orbax's manager saves them."""
    with orbax.checkpoint.CheckpointManager(folder) as manager:
        for step, tree in trees.items():
            manager.save(int(step[1:]), args=orbax.checkpoint.args.StandardSave(tree))
    return folder


def params(modulus: float) -> dict[str, Any]:
    return {"params": {name: jnp.asarray(values) for name, values in state(modulus).items()}}


@pytest.mark.filterwarnings("ignore")
def test_a_run_of_orbaxs_manager(tmp_path: Path) -> None:
    folder = managed(tmp_path / "params", _3=params(0.5), _12=params(0.9))
    assert find_checkpoints([str(folder)]) == [str(folder / "12"), str(folder / "3")]
    run = track(folder)
    assert told(run) == [(3, "directory"), (12, "directory")]
    memories = [one.report.memory for one in run.steps if one.report]
    assert memories == pytest.approx([-1 / math.log(0.5), -1 / math.log(0.9)], rel=1e-6)
    items = [folder / step / "default" for step in ("12", "3")]
    for path in (items[0], items[0] / "_METADATA"):
        assert find_step(str(path)) == FoundStep(12, "directory")
    for item in items:  # without the manager's own file a step is its item
        (item.parent / "_CHECKPOINT_METADATA").unlink()
    assert find_checkpoints([str(folder)]) == list(map(str, items))
    # Train states of Flax and Orbax say their step.
    tree = {"step": jnp.asarray(41), **params(0.9)}
    path = tmp_path / "latest.msgpack"
    path.write_bytes(flax.serialization.to_bytes(tree))
    assert find_step(str(path)) == FoundStep(41, "metadata")
    saved = managed(tmp_path / "run", _43=tree) / "43"
    assert find_step(str(saved)) == FoundStep(41, "metadata", in_name=43)
