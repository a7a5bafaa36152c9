"""The main lines: a checkpoint goes in; a report, or its layers' Hessians, come out."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from contextvars import copy_context
from typing import TYPE_CHECKING, Any, TypeVar

from msgspec.structs import replace

from memcurse_cli.checkpoints.open import MemoryStore, open_checkpoint
from memcurse_cli.checkpoints.optimizer import adam_state, open_optimizer, require_state
from memcurse_cli.checkpoints.safetensors import sibling_shards
from memcurse_cli.checkpoints.store import TensorStore
from memcurse_cli.checkpoints.untrusted.source import unchanged_while_read
from memcurse_cli.diagnosis.diagnose import diagnose, sensitivity_curves
from memcurse_cli.diagnosis.model import (
    actions,
    configured_type,
    model_findings,
    model_verdict,
    sentence,
    state_type,
)
from memcurse_cli.diagnosis.settings import Settings
from memcurse_cli.errors import TensorError
from memcurse_cli.families.detect import (
    attention_layers,
    detect,
    layers_of_every_family,
    read_layer,
    require_layers,
    select_layers,
    tied_notes,
    validate_assumptions,
)
from memcurse_cli.families.family import Family, Match, ReadOptions
from memcurse_cli.families.recurrence import Recurrence
from memcurse_cli.schema.figures import components_of
from memcurse_cli.schema.layer import OptimizerSummary
from memcurse_cli.schema.report import (
    CheckpointSummary,
    LayerReport,
    NotRecurrent,
    Report,
    SkippedLayer,
    longest_memory,
    smallest_rate,
)
from memcurse_cli.theory.autocorrelation import Autocorrelation
from memcurse_cli.theory.devices import validate_device, work_on
from memcurse_cli.theory.threads import side_by_side, threads_by_order
from memcurse_cli.version import VERSION

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from memcurse_cli.families.rewriting import Rewriting
    from memcurse_cli.schema.hessian import HessianReport

HORIZON_KEY = "memcurse.horizon"
ASSUMED_HORIZON = 1024
ASSUMED_RATE = 1e-3
LARGE_LAYER = 2**15  # elements of its tensors: Python, which runs one thread, takes longer below

Checkpoint = str | os.PathLike[str] | Mapping[str, Any]
Progress = Callable[[int, int, str], None]
Found = list[tuple[Family, Match]]
Taken = TypeVar("Taken")


@unchanged_while_read()
def inspect(
    checkpoint: Checkpoint,
    *,
    rho: float | None = None,
    autocorrelation: Autocorrelation | str | None = None,
    horizon: float | None = None,
    readout: str | None = None,
    learning_rate: float | None = None,
    step_limit: float = 0.1,
    state_error: float = 0.01,
    family: str | None = None,
    layers: Sequence[str] = (),
    assume: Mapping[str, str] | None = None,
    device: str = "auto",
    values: bool = False,
    spectra: bool = False,
    gates: bool = False,
    input_scale: float | None = None,
    simulate: bool | None = None,
    inputs: NDArray[Any] | None = None,
    embeddings: str | None = None,
    rewrite_as: Sequence[str] = (),
    normalize: str | None = None,
    learning_rates: bool = False,
    optimizer: str | os.PathLike[str] | None = None,
    pictures: bool = False,
    progress: Progress | None = None,
) -> Report:
    """Report on every recurrent layer of a checkpoint.

    Args:
        checkpoint: its path, or a state dict of NumPy, torch or JAX arrays.
        rho: the drive's autocorrelation is ρ^|Δ|; white noise (0) by default.
        autocorrelation: a mixture instead: an `Autocorrelation`, ``"w:ρ,…"``, or the path of the
            JSON that memcurse autocorrelation wrote.
        horizon: the number of steps T of a sequence that starts from a zero state, or
            ``math.inf``; by default that of the checkpoint's metadata, else `ASSUMED_HORIZON`.
        readout: ``last`` step or the mean over ``every`` one. By default states are read at the
            last, the loss at every step.
        learning_rate: the change of a parameter by one optimizer step; by default the largest that
            the checkpoint records, of each group its own, else `ASSUMED_RATE`.
        step_limit: the step effect above which a parameter group is told.
        state_error: the error of a state above which a type is not good enough to keep it in.
        family: read with this family only, instead of all that are recognised.
        layers: glob patterns of layer names; all layers by default.
        assume: what the checkpoint does not store, e.g. ``{"discretization": "bilinear"}``.
        device: ``cuda`` or ``cuda:i`` for the large arrays of every layer, ``cpu``, or ``auto``: a
            GPU that torch sees for single matrices of n >= 2048.
        values: keep every eigenvalue in the report.
        spectra: read the hidden weights of gated layers and report their spectra, and where GRUs
            and LSTMs work under random inputs.
        gates: read the weights of input-dependent gates and report how far they move.
        input_scale: the RMS of each part of the gates' input, 1 by default; asks for ``gates``.
        simulate: run every layer, for ten times as long, or none; by default those that have no
            closed form, where that is cheap.
        inputs: (batch, time, features) to run layers on in place of drawn ones, or (batch, time)
            tokens, the rows of the checkpoint's tensor that ``embeddings`` names.
        rewrite_as: parametrisations to report every layer under, too: real-imaginary, polar, lru,
            optimal or s4.
        normalize: the gain of these: ``own`` for γ = √(1-|λ|²) with a parameter of its own,
            ``coupled`` for the same computed from λ; by default γ is held.
        learning_rates: derive rates of the recurrent groups; the rest learns by ``learning_rate``.
        optimizer: the path of the optimizer's state, where it is not in the checkpoint itself.
        pictures: keep a picture of each layer's Hessian in the report, where it has scores of it.
        progress: called with (layers done, layers in all, name of the next).

    Raises CheckpointError: the file is missing, damaged or unsafe to open, or changed while it was
    read; NoRecurrenceError: no family recognises a layer; TensorError: no recognised layer could be
    read; UsageError: an argument outside its domain.
    """
    what_if: tuple[Rewriting, ...] = ()
    if rewrite_as or normalize is not None:
        from memcurse_cli.families.rewriting import rewritings

        what_if = rewritings(rewrite_as, normalize)
    settings = Settings.asked(
        rho,
        autocorrelation,
        horizon,
        readout,
        learning_rate=ASSUMED_RATE if learning_rate is None else learning_rate,
        learning_rate_source="assumed" if learning_rate is None else "option",
        step_limit=step_limit,
        state_error=state_error,
        values=values,
        spectra=spectra,
        gates=gates or input_scale is not None,
        input_scale=1.0 if input_scale is None else input_scale,
        simulate=simulate,
        work=(10 if simulate else 1) * Settings().work,
        what_if=what_if,
        learning_rates=learning_rates,
    )
    simulated = simulate is not False
    options = _options(
        device, assume, spectra=spectra, gates=settings.gates or bool(simulate), simulate=simulated
    )
    store = _open(checkpoint)
    held = store if optimizer is None else open_optimizer(optimizer)
    with store, held as source, threads_by_order(), work_on(device):
        state = adam_state(store, source)
        if optimizer is not None:
            require_state(state, source.path)
        settings = _trained_by(_told(settings, store), store, source)
        if inputs is not None:
            from memcurse_cli.diagnosis.simulation import given_inputs

            settings = replace(settings, inputs=given_inputs(store, inputs, embeddings))
        found = detect(store.tensors, family, path=store.path, aliases=store.aliases)
        matches = select_layers(found, layers)

        def report_on(recurrence: Recurrence) -> LayerReport:
            report = diagnose(recurrence, settings)
            taken = report.hessian is not None
            if state is not None:
                from memcurse_cli.diagnosis.optimizer import summarise_adam

                steps = summarise_adam(recurrence, state, store, source, settings, curvature=taken)
                report = replace(report, adam=steps)
            if pictures and taken:
                from memcurse_cli.diagnosis.hessian import diagnose_hessian

                picture = diagnose_hessian(recurrence, settings).picture
                report = replace(report, picture=picture)
            return report

        reports, skipped = _each(store, matches, options, progress, report_on)
        summary = None
        if state is not None:
            summary = OptimizerSummary(
                state.library, source.path, len(state.slots), len(state.refused), state.reason
            )
        # Whatever was asked for, the layers of all families are told from attention.
        everything = found if family is None else layers_of_every_family(store.tensors)
        claimed = [name for _, match in everything for name in match.tensors.values()]
        attention = attention_layers(store.tensors, claimed, store.aliases)
        not_recurrent = (NotRecurrent("attention", len(attention), attention),) * bool(attention)
        whole = len(reports) == len(found)
        path = None if isinstance(checkpoint, Mapping) else store.path
        short = model_findings(reports, settings, attention=bool(attention), whole=whole)
        kept_in = state_type(reports, settings, store.config)
        of_model = (*short, *configured_type(kept_in, reports, settings))
        return Report(
            version=VERSION,
            checkpoint=_summarise_checkpoint(store, matches),
            input=settings.input,
            device=device,
            verdict=model_verdict(reports, short, skipped=len(skipped)),
            sentence=sentence(reports, short, settings, skipped=len(skipped)),
            usable_rate=smallest_rate(layer.usable_rate for layer in reports),
            memory=longest_memory(layer.memory for layer in reports),
            findings=of_model,
            actions=tuple(actions(reports, of_model, path)),
            layers=reports,
            skipped=skipped,
            not_recurrent=not_recurrent,
            curves=sensitivity_curves(settings) if settings.values else (),
            optimizer=summary,
            state_type=kept_in,
        )


@unchanged_while_read()
def hessian(
    checkpoint: Checkpoint,
    *,
    rho: float | None = None,
    autocorrelation: Autocorrelation | str | None = None,
    horizon: float | None = None,
    readout: str | None = None,
    family: str | None = None,
    layers: Sequence[str] = (),
    assume: Mapping[str, str] | None = None,
    device: str = "auto",
    progress: Progress | None = None,
) -> HessianReport:
    """The Hessian of the squared error at a perfect fit, of every recurrent layer.

    Arguments and errors are those of `inspect`, except for ``readout``: ``every`` (the default)
    for a loss that is the mean over the steps, ``last`` for one at the last step.
    """
    from memcurse_cli.diagnosis.hessian import diagnose_hessian
    from memcurse_cli.schema.hessian import HessianInput, HessianReport

    settings = Settings.asked(rho, autocorrelation, horizon, readout)
    options = _options(device, assume)
    with _open(checkpoint) as store, threads_by_order(), work_on(device):
        settings = _told(settings, store)
        matches = detect(store.tensors, family, layers, path=store.path, aliases=store.aliases)
        reports, skipped = _each(
            store, matches, options, progress, lambda layer: diagnose_hessian(layer, settings)
        )
        mixture, steps, read_at = settings.of_loss
        assumed = HessianInput(components_of(mixture), steps, settings.horizon_source, read_at)
        return HessianReport(
            VERSION, _summarise_checkpoint(store, matches), assumed, reports, skipped
        )


def _options(device: str, assume: Mapping[str, str] | None, **read: bool) -> ReadOptions:
    validate_device(device)
    chosen = dict(assume or {})
    validate_assumptions(chosen)
    return ReadOptions(assume=chosen, **read)


def _open(checkpoint: Checkpoint) -> TensorStore:
    if isinstance(checkpoint, Mapping):
        return MemoryStore(checkpoint)
    return open_checkpoint(checkpoint)


def _each(
    store: TensorStore,
    matches: Found,
    options: ReadOptions,
    progress: Progress | None,
    take: Callable[[Recurrence], Taken],
) -> tuple[tuple[Taken, ...], tuple[SkippedLayer, ...]]:
    """What is taken of each layer, dropped as soon as it is, and what cannot be read.

    Large layers are read and worked on side by side: NumPy and LAPACK let other threads go on.
    """
    require_layers(len(matches), store.path)

    def attempt(index: int) -> Taken | TensorError:
        try:
            return take(read_layer(matches[index][0], store, matches[index][1], options))
        except TensorError as error:
            return error

    taken: list[Taken] = []
    skipped: list[SkippedLayer] = []
    errors: list[TensorError] = []
    large = sum(_elements(store, match) for _, match in matches) >= LARGE_LAYER * len(matches)
    with ExitStack() as stack:
        threads = stack.enter_context(side_by_side(len(matches) if large else 1))
        outcomes: Iterator[Taken | TensorError] = map(attempt, range(len(matches)))
        if threads > 1:
            from concurrent.futures import ThreadPoolExecutor

            pool = stack.enter_context(ThreadPoolExecutor(threads))
            contexts = [copy_context() for _ in matches]  # what this thread has set, in each
            outcomes = pool.map(
                lambda index: contexts[index].run(attempt, index), range(len(matches))
            )
        for index, (reader, match) in enumerate(matches):
            if progress is not None:
                progress(index, len(matches), match.layer)
            outcome = next(outcomes)
            if isinstance(outcome, TensorError):
                errors.append(outcome)
                skipped.append(SkippedLayer(match.layer, reader.name, str(outcome)))
            else:
                taken.append(outcome)
    if not taken:
        raise errors[0]
    return tuple(taken), tuple(skipped)


def _elements(store: TensorStore, match: Match) -> int:
    return sum(math.prod(store.tensors[name].shape) for name in match.tensors.values())


def _summarise_checkpoint(store: TensorStore, found: Found) -> CheckpointSummary:
    """The file of a report on these layers, once its tensors are read."""
    others = sibling_shards(store.path)
    notes = (*store.notes, *tied_notes([match for _, match in found]))
    return CheckpointSummary(
        path=store.path,
        format=store.format,
        bytes=store.bytes,
        tensors=len(store.tensors) - len(store.aliases),
        bytes_read=store.bytes_read,
        notes=(*notes, f"{others} for every layer") if others else notes,
    )


def _told(settings: Settings, store: TensorStore) -> Settings:
    """The settings, with what a checkpoint says of the horizon."""
    if settings.horizon_source is None:
        stored = store.metadata.get(HORIZON_KEY, "")
        steps = int(stored) if stored.isdecimal() and len(stored) < 19 else 0  # within 64 bits
        source = "checkpoint" if steps else "assumed"
        settings = replace(settings, horizon=steps or ASSUMED_HORIZON, horizon_source=source)
    settings.check_readout_has_horizon()
    return settings


def _trained_by(settings: Settings, store: TensorStore, source: TensorStore) -> Settings:
    """The settings, with what a checkpoint records of its optimizer; an option overrides a rate."""
    if source.contents is None and store.beside is None:  # the file has tensors alone
        return settings
    from memcurse_cli.checkpoints.recorded_rates import recorded_rates

    recorded = recorded_rates(store, source)
    if recorded is None:
        return settings
    settings = replace(settings, optimizer=recorded.optimizer or None, adaptive=recorded.adaptive)
    if recorded.largest is None or settings.learning_rate_source == "option":
        return settings
    # An optimizer may have a weight that modules share under another name.
    held = {name: store.aliases.get(name, name) for name in store.tensors}
    return replace(
        settings,
        learning_rate=recorded.largest,
        learning_rate_source=recorded.source,
        rates={name: recorded.groups[one] for name, one in held.items() if one in recorded.groups},
        current_learning_rate=recorded.current if recorded.current != recorded.largest else None,
    )
