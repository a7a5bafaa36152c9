"""Callbacks for training loops, one file per library: they inspect the weights now and then."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from memcurse_cli.diagnosis.inspection import inspect
from memcurse_cli.errors import NoRecurrenceError, UsageError
from memcurse_cli.schema.figures import Verdict
from memcurse_cli.schema.report import Report

LOGGER = logging.getLogger("memcurse")

SEVERITY: dict[Verdict, int] = {"ok": 0, "not_judged": 0, "watch": 1, "cursed": 2}
"""How bad a verdict is: one that was not judged is no worse than ok."""


class Monitor:
    """Inspects a network every so many optimizer steps, and warns when the verdict gets worse.

    It warns too when states begin to do nothing but sum their inputs, MC108.

    ``options`` are what `memcurse_cli.inspect` takes, ``horizon`` above all; without a
    ``learning_rate`` the optimizer's own is used. ``report`` is the last report, or None. Raises
    UsageError: no positive number of steps.
    """

    def __init__(self, every: int = 500, *, prefix: str = "memcurse/", **options: Any) -> None:
        if every < 1:
            raise UsageError(
                f"every {every} steps is never", where="every", remedy="give one step or more"
            )
        self.report: Report | None = None
        self._every, self._prefix, self._options = every, prefix, options
        self._last: int | None = None
        self._told = False  # that it was not judged
        self._summing: set[str] = set()  # the layers that were said to sum their inputs

    def due(self, step: int) -> bool:
        """Whether to inspect after this many optimizer steps; never twice at the same one."""
        return step % self._every == 0 and step != self._last

    def measure(
        self, weights: Mapping[str, Any], step: int, learning_rate: float | None
    ) -> dict[str, float]:
        """Inspect some weights and return the scalars to log.

        A network without a recurrent layer is said once, in a warning, and never looked at again.
        """
        self._last = step
        options = dict(self._options)
        if learning_rate:
            options.setdefault("learning_rate", learning_rate)
        try:
            report = inspect(weights, **options)
        except NoRecurrenceError as error:
            LOGGER.warning("%s; memcurse looks no further", error)
            self.due = lambda step: False  # type: ignore[method-assign]  # nothing left to see
            return {}
        before: Verdict = "ok" if self.report is None else self.report.verdict
        said = f"step {step}: {report.verdict.replace('_', ' ')}. {report.sentence}"
        if SEVERITY[report.verdict] > SEVERITY[before]:
            LOGGER.warning("%s", said)
        elif report.verdict == "not_judged" and not self._told:
            self._told = True
            LOGGER.info("%s", said)
        for layer in report.layers:
            found = [one.message for one in layer.findings if one.code == "MC108"]
            if found and layer.name not in self._summing:
                LOGGER.warning("step %s: %s: %s", step, layer.name, found[0])
                self._summing.add(layer.name)
        self.report = report
        return report.scalars(self._prefix)
