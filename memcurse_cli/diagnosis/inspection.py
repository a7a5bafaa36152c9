"""The main line: a checkpoint goes in, a report comes out."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from memcurse_cli.checkpoints.lazy import LazyStore
from memcurse_cli.checkpoints.memory import MemoryStore
from memcurse_cli.checkpoints.open import open_checkpoint
from memcurse_cli.checkpoints.optimizer.adam import AdamState
from memcurse_cli.checkpoints.optimizer.state import adam_state, open_optimizer, require_state
from memcurse_cli.checkpoints.shards import sibling_shards
from memcurse_cli.checkpoints.untrusted.source import unchanged_while_read
from memcurse_cli.diagnosis.adam import summarise_adam, summarise_optimizer
from memcurse_cli.diagnosis.autocorrelation import read_autocorrelation
from memcurse_cli.diagnosis.diagnose import diagnose, sensitivity_curves
from memcurse_cli.diagnosis.sentence import sentence
from memcurse_cli.diagnosis.settings import Settings, check_readout
from memcurse_cli.diagnosis.verdicts import worst
from memcurse_cli.errors import TensorError, UsageError
from memcurse_cli.families.bounds import read_layer, require_layers
from memcurse_cli.families.detect import (
    detect,
    layers_of_every_family,
    select_layers,
    validate_assumptions,
)
from memcurse_cli.families.family import Match, ReadOptions
from memcurse_cli.families.not_recurrent import attention_layers
from memcurse_cli.families.rewriting import rewritings
from memcurse_cli.families.stacked import tied_notes
from memcurse_cli.schema.report import (
    CheckpointSummary,
    InputAssumption,
    LayerReport,
    NotRecurrent,
    Report,
    SkippedLayer,
)
from memcurse_cli.theory.autocorrelation import WHITE, Autocorrelation
from memcurse_cli.theory.linalg import validate_device
from memcurse_cli.theory.threads import threads_by_order
from memcurse_cli.version import VERSION

HORIZON_KEY = "memcurse.horizon"
EXAMPLES = 3

Progress = Callable[[int, int, str], None]


@unchanged_while_read()
def inspect(
    checkpoint: str | os.PathLike[str] | Mapping[str, Any],
    *,
    rho: float | None = None,
    autocorrelation: Autocorrelation | str | None = None,
    horizon: int | None = None,
    readout: str | None = None,
    learning_rate: float = 1e-3,
    watch_limit: float = 0.1,
    cursed_limit: float = 1.0,
    family: str | None = None,
    layers: Sequence[str] = (),
    assume: Mapping[str, str] | None = None,
    device: str = "auto",
    values: bool = False,
    spectra: bool = False,
    gates: bool = False,
    input_scale: float | None = None,
    rewrite_as: Sequence[str] = (),
    normalize: str | None = None,
    learning_rates: bool = False,
    optimizer: str | os.PathLike[str] | None = None,
    pictures: bool = False,
    progress: Progress | None = None,
) -> Report:
    """Report on every recurrent layer of a checkpoint.

    Args:
        checkpoint: the path of a checkpoint, or a state dict of NumPy, torch or JAX arrays.
        rho: the drive's autocorrelation is ρ^|Δ|; white noise (0) by default.
        autocorrelation: a mixture instead of one ρ, as `Autocorrelation`, as ``"w:ρ,…"``, or as
            the path of the JSON that memcurse autocorrelation wrote.
        horizon: the number of steps T of a sequence that starts from a zero state. Without it
            the horizon that the checkpoint's metadata names, else an infinite sequence.
        readout: ``last`` or ``every``: read states and loss at the last step, or take the mean
            over every step. By default states are read at the last, the loss at every step.
        learning_rate: the change that one optimizer step makes to a parameter.
        watch_limit: the step effect above which a parameter group is to be watched.
        cursed_limit: the step effect above which it is cursed.
        family: read with this family only, instead of all that are recognised.
        layers: glob patterns of layer names; all layers by default.
        assume: what the checkpoint does not store, e.g. ``{"discretization": "bilinear"}``.
        device: ``auto``, ``cpu``, ``cuda`` or ``cuda:i``, for eigendecompositions.
        values: keep every eigenvalue in the report.
        spectra: read the hidden weights of gated layers and report their spectra, and where GRUs
            and LSTMs work under random inputs.
        gates: read the weights of input-dependent gates and report how far they move.
        input_scale: the RMS of every component of the gates' input, 1 by default; giving it asks
            for ``gates``.
        rewrite_as: other parametrisations to report every layer under, beside its own:
            real-imaginary, polar, lru, optimal or s4.
        normalize: the gain to do so with: ``own`` for γ = √(1-|λ|²) with a parameter of its own,
            ``coupled`` for the same computed from λ; by default γ is held.
        learning_rates: derive learning rates of the recurrent groups, relative to
            ``learning_rate`` for the rest of the network.
        optimizer: the path of the optimizer's state, where it is not in the checkpoint itself.
        pictures: keep a picture of each layer's Hessian in the report, where it has scores of it.
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
        learning_rate=learning_rate,
        watch_limit=watch_limit,
        cursed_limit=cursed_limit,
        values=values,
        spectra=spectra,
        gates=gates or input_scale is not None,
        input_scale=1.0 if input_scale is None else input_scale,
        what_if=rewritings(rewrite_as, normalize),
        learning_rates=learning_rates,
    )
    validate_device(device)
    options = ReadOptions(
        device=device, assume=dict(assume or {}), spectra=spectra, gates=settings.gates
    )
    validate_assumptions(options.assume)
    store: LazyStore = (
        MemoryStore(checkpoint) if isinstance(checkpoint, Mapping) else open_checkpoint(checkpoint)
    )
    held = store if optimizer is None else open_optimizer(optimizer)
    with store, held as source, threads_by_order():
        state = adam_state(store, source)
        if optimizer is not None:
            require_state(state, source.path)
        summary = None if state is None else summarise_optimizer(state, source.path)
        report = _inspect(
            store, settings, options, family, layers, progress, state, source, pictures=pictures
        )
        return replace(report, optimizer=summary)


def _inspect(
    store: LazyStore,
    settings: Settings,
    options: ReadOptions,
    family: str | None,
    layers: Sequence[str],
    progress: Progress | None,
    state: AdamState | None,
    source: LazyStore,
    *,
    pictures: bool,
) -> Report:
    settings = with_stored_horizon(settings, store.metadata)
    settings.check_readout_has_horizon()
    found = detect(store.tensors, family, path=store.path, aliases=store.aliases)
    matches = select_layers(found, layers)
    require_layers(len(matches), store.path)
    reports: list[LayerReport] = []
    skipped: list[SkippedLayer] = []
    errors: list[TensorError] = []
    for index, (reader, match) in enumerate(matches):
        if progress is not None:
            progress(index, len(matches), match.layer)
        try:
            # One layer at a time: a recurrence is dropped before the next one is read.
            recurrence = read_layer(reader, store, match, options)
            report = diagnose(recurrence, settings)
            if state is not None:
                taken = report.hessian is not None
                steps = summarise_adam(recurrence, state, store, source, settings, curvature=taken)
                report = replace(report, adam=steps)
            if pictures and report.hessian is not None:
                from memcurse_cli.diagnosis.hessian.layer import diagnose_hessian

                drawn = diagnose_hessian(recurrence, settings).picture
                report = replace(report, picture=drawn)
            reports.append(report)
        except TensorError as error:
            errors.append(error)
            skipped.append(SkippedLayer(match.layer, reader.name, str(error)))
    if not reports:
        raise errors[0]
    # Whatever was asked for, the layers of all families are told from attention.
    everything = found if family is None else layers_of_every_family(store.tensors)
    claimed = [name for _, match in everything for name in match.tensors.values()]
    attention = attention_layers(store.tensors, claimed, store.aliases)
    return Report(
        version=VERSION,
        checkpoint=summarise_checkpoint(store, [match for _, match in matches]),
        input=InputAssumption(
            autocorrelation=tuple(settings.autocorrelation),
            horizon=settings.horizon,
            horizon_source=settings.horizon_source,
            readout=settings.readout,
            learning_rate=settings.learning_rate,
            input_scale=settings.input_scale if settings.gates else None,
        ),
        device=options.device,
        verdict=worst(layer.verdict for layer in reports),
        sentence=sentence(reports, settings),
        layers=tuple(reports),
        skipped=tuple(skipped),
        not_recurrent=(
            (NotRecurrent("attention", len(attention), attention[:EXAMPLES]),) if attention else ()
        ),
        curves=sensitivity_curves(settings) if settings.values else (),
    )


def choose_autocorrelation(
    rho: float | None, autocorrelation: Autocorrelation | str | None
) -> Autocorrelation:
    """The mixture, or that of one ρ, or white noise.

    Raises:
        UsageError: both are given, or one that is none.
    """
    if autocorrelation is None:
        return WHITE if rho is None else Autocorrelation.from_rho(rho)
    if rho is not None:
        raise UsageError(
            "both a ρ and an autocorrelation are given",
            where="--rho",
            remedy="give --rho for one decay or --autocorrelation for a mixture",
        )
    return read_autocorrelation(autocorrelation)


def summarise_checkpoint(store: LazyStore, layers: Sequence[Match]) -> CheckpointSummary:
    """The file of a report on these layers, once its tensors are read."""
    others = sibling_shards(store.path)
    notes = (*store.notes, *tied_notes(layers))
    return CheckpointSummary(
        path=store.path,
        format=store.format,
        bytes=store.bytes,
        tensors=len(store.tensors) - len(store.aliases),
        bytes_read=store.bytes_read,
        notes=(*notes, f"{others} for every layer") if others else notes,
    )


def with_stored_horizon(settings: Settings, metadata: Mapping[str, str]) -> Settings:
    """The settings, with the horizon that a checkpoint says it was trained at."""
    stored = metadata.get(HORIZON_KEY, "")
    steps = int(stored) if stored.isdecimal() and len(stored) < 19 else 0  # within 64 bits
    if settings.horizon is not None or steps < 1:
        return settings
    return replace(settings, horizon=steps, horizon_source="checkpoint")
