"""The line behind `memcurse hessian`: a checkpoint goes in, its layers' Hessians come out."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from memcurse_cli.checkpoints.memory import MemoryStore
from memcurse_cli.checkpoints.open import open_checkpoint
from memcurse_cli.checkpoints.store import TensorStore
from memcurse_cli.checkpoints.untrusted.source import unchanged_while_read
from memcurse_cli.diagnosis.hessian.layer import diagnose_hessian
from memcurse_cli.diagnosis.inspection import (
    Progress,
    choose_autocorrelation,
    summarise_checkpoint,
    with_stored_horizon,
)
from memcurse_cli.diagnosis.settings import Settings, check_readout
from memcurse_cli.errors import TensorError
from memcurse_cli.families.bounds import read_layer, require_layers
from memcurse_cli.families.detect import detect, validate_assumptions
from memcurse_cli.families.family import Family, Match, ReadOptions
from memcurse_cli.schema.hessian import (
    HessianInput,
    HessianReport,
    LayerHessianReport,
)
from memcurse_cli.schema.report import SkippedLayer
from memcurse_cli.theory.autocorrelation import Autocorrelation
from memcurse_cli.theory.linalg import validate_device
from memcurse_cli.theory.threads import threads_by_order
from memcurse_cli.version import VERSION


@unchanged_while_read()
def hessian(
    checkpoint: str | os.PathLike[str] | Mapping[str, Any],
    *,
    rho: float | None = None,
    autocorrelation: Autocorrelation | str | None = None,
    horizon: int | None = None,
    readout: str | None = None,
    family: str | None = None,
    layers: Sequence[str] = (),
    assume: Mapping[str, str] | None = None,
    device: str = "auto",
    progress: Progress | None = None,
) -> HessianReport:
    """The Hessian of the squared error at a perfect fit, of every recurrent layer.

    Args:
        checkpoint: the path of a checkpoint, or a state dict of NumPy, torch or JAX arrays.
        rho: the input's autocorrelation is ρ^|Δ|; white noise (0) by default.
        autocorrelation: a mixture instead of one ρ, as `memcurse_cli.inspect` takes it.
        horizon: the number of steps T of a sequence that starts from a zero state. Without it
            the horizon that the checkpoint's metadata names, else an infinite sequence.
        readout: ``every`` (the default) for a loss that is the mean over the steps, ``last`` for
            one at the last step.
        family: read with this family only, instead of all that are recognised.
        layers: glob patterns of layer names; all layers by default.
        assume: what the checkpoint does not store, e.g. ``{"discretization": "bilinear"}``.
        device: ``auto``, ``cpu``, ``cuda`` or ``cuda:i``, for eigendecompositions.
        progress: called with (layers done, layers in all, name of the next).

    Raises:
        CheckpointError: the file is missing, damaged or unsafe to open, or changed while it was
            read.
        NoRecurrenceError: no family recognises a layer.
        TensorError: a layer was recognised but none could be read.
        UsageError: an argument outside its domain.
    """
    settings = Settings(
        autocorrelation=choose_autocorrelation(rho, autocorrelation),
        horizon=horizon,
        horizon_source=None if horizon is None else "option",
        readout=check_readout(readout),
    )
    validate_device(device)
    options = ReadOptions(device=device, assume=dict(assume or {}))
    validate_assumptions(options.assume)
    store = (
        MemoryStore(checkpoint) if isinstance(checkpoint, Mapping) else open_checkpoint(checkpoint)
    )
    with store, threads_by_order():
        settings = with_stored_horizon(settings, store.metadata)
        settings.check_readout_has_horizon()
        found = detect(store.tensors, family, layers, path=store.path, aliases=store.aliases)
        require_layers(len(found), store.path)
        reports, skipped = _layers(store, found, settings, options, progress)
        return HessianReport(
            version=VERSION,
            checkpoint=summarise_checkpoint(store, [match for _, match in found]),
            input=HessianInput(
                autocorrelation=tuple(settings.autocorrelation),
                horizon=settings.horizon,
                horizon_source=settings.horizon_source,
                readout=settings.loss_readout,
            ),
            layers=tuple(reports),
            skipped=tuple(skipped),
        )


def _layers(
    store: TensorStore,
    matches: Sequence[tuple[Family, Match]],
    settings: Settings,
    options: ReadOptions,
    progress: Progress | None,
) -> tuple[list[LayerHessianReport], list[SkippedLayer]]:
    """One layer at a time: a recurrence is dropped before the next one is read."""
    reports: list[LayerHessianReport] = []
    skipped: list[SkippedLayer] = []
    errors: list[TensorError] = []
    for index, (reader, match) in enumerate(matches):
        if progress is not None:
            progress(index, len(matches), match.layer)
        try:
            reports.append(diagnose_hessian(read_layer(reader, store, match, options), settings))
        except TensorError as error:
            errors.append(error)
            skipped.append(SkippedLayer(match.layer, reader.name, str(error)))
    if not reports:
        raise errors[0]
    return reports, skipped
