"""A callback for PyTorch Lightning.

from memcurse_cli.integrations.lightning import MemcurseCallback
trainer = lightning.Trainer(callbacks=[MemcurseCallback(every=500, horizon=1024)])
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from memcurse_cli.integrations import Monitor

if TYPE_CHECKING:
    from lightning.pytorch import Callback, LightningModule, Trainer
else:
    try:
        from lightning.pytorch import Callback
    except ImportError:  # the package's older name
        from pytorch_lightning import Callback


class MemcurseCallback(Monitor, Callback):
    """Logs scalars of the module's weights every so many optimizer steps, under a prefix."""

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, *arguments: Any, **named: Any
    ) -> None:
        """Inspect after the optimizer's step, on the first process only."""
        step = trainer.global_step
        if not trainer.is_global_zero or not self.due(step):
            return
        rates = [group["lr"] for one in trainer.optimizers for group in one.param_groups]
        found = self.measure(pl_module.state_dict(), step, max(rates, default=None))
        for logger in trainer.loggers:
            logger.log_metrics(found, step=step)
