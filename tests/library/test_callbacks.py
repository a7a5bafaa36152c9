"""The callbacks in real training runs of the libraries that they are for."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from memcurse_cli import inspect
from memcurse_cli.schema.report import scalars

HORIZON = 20


def gru() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.ModuleDict({"rnn": torch.nn.GRU(2, 4), "head": torch.nn.Linear(4, 1)})


@pytest.mark.filterwarnings("ignore")
def test_lightning(tmp_path: Path) -> None:
    lightning = pytest.importorskip("lightning.pytorch")
    from lightning.pytorch.loggers import CSVLogger

    from memcurse_cli.integrations.lightning import MemcurseCallback

    class Network(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.network = gru()

        def training_step(self, batch: torch.Tensor, index: int) -> torch.Tensor:
            states, _ = self.network["rnn"](batch)
            return self.network["head"](states).square().mean()

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.Adam(self.parameters(), lr=0.05)

    module, callback = Network(), MemcurseCallback(every=2, horizon=HORIZON)
    data = torch.utils.data.DataLoader(torch.randn(6, 5, 2), batch_size=1)
    trainer = lightning.Trainer(
        max_epochs=1,
        accelerator="cpu",
        callbacks=[callback],
        logger=CSVLogger(tmp_path, flush_logs_every_n_steps=1),
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(module, data)
    (table,) = tmp_path.rglob("metrics.csv")
    lines = table.read_text().splitlines()
    steps = [int(line.split(",")[lines[0].split(",").index("step")]) for line in lines[1:]]
    assert steps == [2, 4, 6]
    assert callback.report is not None
    assert callback.report.input.learning_rate == 0.05
    end = scalars(inspect(module.state_dict(), horizon=HORIZON, learning_rate=0.05))
    assert scalars(callback.report) == end


@pytest.mark.filterwarnings("ignore")
def test_transformers_trainer(tmp_path: Path) -> None:
    pytest.importorskip("accelerate")
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
        save_strategy="no",
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
    assert callback.report is not None
    assert len(callback.report.layers) == 2
    assert callback.report.input.learning_rate == 1e-3
    for name, number in scalars(callback.report).items():
        assert logged[-1][name] == number
