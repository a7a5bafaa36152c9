"""The callbacks in real training runs of the libraries that they are for."""

from __future__ import annotations

import logging
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from memcurse_cli import MemcurseError, inspect
from memcurse_cli.integrations.monitor import Monitor
from memcurse_cli.schema.report import scalars

HORIZON = 20


def gru() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.ModuleDict({"rnn": torch.nn.GRU(2, 4), "head": torch.nn.Linear(4, 1)})


def complex_diagonal(modulus: float) -> dict[str, Any]:
    return {"A_re": np.array([modulus]), "A_im": np.zeros(1), "B_re": np.ones((1, 1))}


def test_scalars_are_the_reports_figures() -> None:
    report = inspect(gru().state_dict(), horizon=HORIZON)
    found = scalars(report)
    (layer,) = report.layers
    assert found["memcurse/verdict"] == 0
    assert found["memcurse/time_constant"] == layer.eigenvalues.time_constant.max
    bias = f"memcurse/{layer.name}/step_effect/{layer.parameters[0].name}"
    assert found[bias] == layer.parameters[0].step_effect
    assert all(type(number) is float and math.isfinite(number) for number in found.values())


def test_what_diverges_is_left_out_and_counted_as_unstable() -> None:
    found = scalars(inspect(complex_diagonal(1.5)), prefix="")
    assert found["unstable"] == 1
    assert found["verdict"] == 2
    assert "time_constant" not in found
    assert "step_effect" not in found


def test_no_other_layer_stands_for_one_that_diverges() -> None:
    layers = {"a": complex_diagonal(1.5), "b": complex_diagonal(0.5)}
    state = {f"{layer}.{name}": value for layer in layers for name, value in layers[layer].items()}
    found = scalars(inspect(state), prefix="")
    assert {"b/time_constant", "b/step_effect"} <= set(found)
    assert not {"time_constant", "step_effect"} & set(found)


def test_a_verdict_that_gets_worse_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    monitor = Monitor(2, "", {"horizon": 1000})
    with caplog.at_level(logging.WARNING, "memcurse"):
        for step, modulus in enumerate((0.5, 0.999, 1.01, 1.01)):
            monitor.measure(complex_diagonal(modulus), 2 * step, learning_rate=2e-3)
    assert [record.message.split(". ")[0] for record in caplog.records] == [
        "step 2: watch",
        "step 4: cursed",
    ]
    assert [step for step in range(5) if monitor.due(step)] == [0, 2, 4]
    assert not monitor.due(6)


def test_the_optimizers_rate_is_used_unless_one_is_given() -> None:
    weights = complex_diagonal(0.9)
    slow, fast = (
        Monitor(1, "", {"horizon": 9}).measure(weights, 1, learning_rate=rate)["step_effect"]
        for rate in (1e-4, 1e-2)
    )
    assert fast == pytest.approx(100 * slow)
    fixed = Monitor(1, "", {"horizon": 9, "learning_rate": 1e-4})
    assert fixed.measure(weights, 1, learning_rate=1e-2)["step_effect"] == pytest.approx(slow)


def test_a_network_without_a_recurrence_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    monitor = Monitor(1, "", {})
    with caplog.at_level(logging.WARNING, "memcurse"):
        assert monitor.measure({"weight": np.zeros((3, 3))}, 1, 1e-3) == {}
    assert len(caplog.records) == 1
    assert not monitor.due(2)


def test_never_is_refused() -> None:
    with pytest.raises(MemcurseError, match="every"):
        Monitor(0, "", {})


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
