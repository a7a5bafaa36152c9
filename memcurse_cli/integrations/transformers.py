"""A callback for the Trainer of Hugging Face transformers.

from memcurse_cli.integrations.transformers import MemcurseCallback
trainer.add_callback(MemcurseCallback(trainer, every=500, horizon=1024))
"""

from __future__ import annotations

from typing import Any

from transformers import Trainer, TrainerCallback

from memcurse_cli.integrations import Monitor


class MemcurseCallback(Monitor, TrainerCallback):
    """Logs scalars of the model's weights every so many optimizer steps, under a prefix.

    They stand in ``trainer.state.log_history`` and reach every logger that the Trainer reports to.
    """

    def __init__(
        self, trainer: Trainer, every: int = 500, *, prefix: str = "memcurse/", **options: Any
    ) -> None:
        super().__init__(every, prefix=prefix, **options)
        self._trainer = trainer

    def on_step_end(
        self, args: Any, state: Any, control: Any, model: Any = None, **named: Any
    ) -> Any:
        """Inspect after the optimizer's step, on the first process only."""
        step = state.global_step
        if model is not None and state.is_world_process_zero and self.due(step):
            schedule = named.get("lr_scheduler")
            rates = [args.learning_rate] if schedule is None else schedule.get_last_lr()
            found = self.measure(model.state_dict(), step, max(rates))
            if found:
                self._trainer.log(found)
        return control
