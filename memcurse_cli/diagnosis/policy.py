"""What a report is held to: limits and finding codes, for all layers or for some.

Later rule sets win over earlier ones: the table `check` of a settings file, its overrides in their
order, the command line. Where nothing is limited, findings of severity error fail.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

from msgspec import Struct

from memcurse_cli.checkpoints.untrusted.names import shown_place
from memcurse_cli.diagnosis.model import unseen_memory
from memcurse_cli.diagnosis.rules import RULES
from memcurse_cli.diagnosis.settings import SettingsFile
from memcurse_cli.errors import UsageError
from memcurse_cli.schema.figures import ParameterSummary, Rounding, Verdict
from memcurse_cli.schema.report import Group, LayerReport, Report, state_types, step_effects
from memcurse_cli.wording import duration, number, percent

# From the best to the worst; what was not judged has no place among them.
VERDICTS: tuple[Verdict, ...] = ("ok", "watch", "cursed")
DTYPES = Rounding.__struct_fields__
MAX_ROUNDING = "max-rounding-error"
MAX_STATE = "max-state-error"
MAX_VERDICT = "max-verdict"
MAX_STEP_EFFECT = "max-step-effect"
MIN_MEMORY = "min-memory"
COUNT = "max-unstable"
MAX_RESIDUAL = "max-adam-residual"


class Figure(NamedTuple):
    """One number that a limit is compared with, or the reason why there is none."""

    value: float | None  # infinite where it diverges
    group: Group | None = None  # none of the whole layer
    note: str = ""  # why there is none, or what to say where it is beyond its limit
    advice: str = ""


Part = LayerReport | Report  # what is judged: a layer, or the model as a whole
Figures = Callable[[LayerReport], Iterator[Figure]]


class LimitKind(Struct, frozen=True):
    """One kind of limit."""

    name: str  # the option and the key in a settings file, ``max-…`` or ``min-…``
    noun: str  # what the figure is called in a sentence
    figures: Callable[[Any], Iterator[Figure]]  # none where the part has no such thing
    say: Callable[[float], str] = number  # a figure in words, with its unit
    parts: Any = LayerReport  # what it bounds: such a `Part`, or either
    infinite: str = "diverges"

    def of(self, part: Part) -> Iterator[Figure]:
        """The figures of a layer, or those of the model as a whole."""
        return self.figures(part) if isinstance(part, self.parts) else iter(())

    @property
    def least(self) -> bool:
        """Whether figures must stay above the limit."""
        return self.name.startswith("min-")


def _verdict(part: Part) -> Iterator[Figure]:
    """That of a layer, and that of the model where it is worse than that of every layer."""
    if isinstance(part, Report):
        milder = {layer.verdict for layer in part.layers}.isdisjoint(VERDICTS[1:])
        told = part.verdict == "watch" and milder
    else:
        told = part.verdict in VERDICTS
    if told:
        yield Figure(float(VERDICTS.index(part.verdict)))


def _memory(layer: LayerReport) -> Iterator[Figure]:
    if layer.eigenvalues.count:
        yield Figure(math.inf if layer.memory is None else layer.memory)


def _model_memory(report: Report) -> Iterator[Figure]:
    memory = math.inf if report.memory is None else report.memory
    if not report.layers:
        yield Figure(None, note="no layer could be read")
    elif any(map(unseen_memory, report.layers)):
        note = "; hidden weights, which can hold a longer one, were not looked at"
        yield Figure(memory, None, note, "--spectra looks at them")
    else:
        yield Figure(memory)


def _missing(layer: LayerReport) -> str:
    """Why a figure of one of its groups is missing."""
    reason = None if layer.dense is None else layer.dense.reason
    return reason or "the report has no sensitivity for it"


def _of_groups(take: Callable[[LayerReport, ParameterSummary], float | None]) -> Figures:
    def figures(layer: LayerReport) -> Iterator[Figure]:
        for group in layer.parameters:
            value = take(layer, group)
            yield Figure(value, group, _missing(layer) if value is None else "")

    return figures


def _step_effect(layer: LayerReport) -> Iterator[Figure]:
    for group, value in step_effects(layer):
        yield Figure(value, group, "" if value is not None else _missing(layer))


@_of_groups
def _relative_sensitivity(layer: LayerReport, group: ParameterSummary) -> float | None:
    value = group.relative_sensitivity.p99
    if layer.dense is not None:  # every entry of the matrix at once, as for its step effect
        value = layer.dense.relative_sensitivity
    return math.inf if value is None and group.relative_sensitivity.divergent else value


def _rounding(dtype: str) -> Figures:
    def error(_: LayerReport, group: ParameterSummary) -> float | None:
        value, sensitivity = getattr(group.rounding, dtype), group.relative_sensitivity
        # A group whose sensitivity is known lacks an error only where rounding overflows.
        known = sensitivity.p99 is not None or sensitivity.divergent > 0
        return math.inf if value is None and known else value

    return _of_groups(error)


def _state(dtype: str) -> Figures:
    def error(layer: LayerReport) -> Iterator[Figure]:
        types = [one for one in state_types(layer) if one.dtype == dtype]
        run = () if layer.simulation is None else layer.simulation.stored
        seen = [one.error.value for one in run if one.dtype == dtype and one.error is not None]
        value = types[0].error.max if types else next(iter(seen), None)
        why = layer.storage_reason or "the report does not have it"
        yield Figure(value, note=why if value is None else "")

    return error


def _hessian(name: str) -> Figures:
    def figures(layer: LayerReport) -> Iterator[Figure]:
        why = layer.hessian_reason or "the report has no Hessian"
        yield Figure(getattr(layer.hessian, name, None), note="" if layer.hessian else why)

    return figures


# In the order in which they are judged.
KINDS: tuple[LimitKind, ...] = (
    LimitKind(MAX_VERDICT, "verdict", _verdict, lambda value: VERDICTS[int(value)], Part),
    LimitKind(MIN_MEMORY, "longest memory", _model_memory, duration, Report, "never ends"),
    LimitKind(MAX_STEP_EFFECT, "step effect", _step_effect, percent),
    LimitKind("max-relative-sensitivity", "relative sensitivity", _relative_sensitivity),
    LimitKind(
        COUNT,
        "number of unstable eigenvalues",
        lambda layer: iter([Figure(float(layer.eigenvalues.unstable))]),
        lambda value: f"{value:.0f}",
    ),
    LimitKind("max-time-constant", "memory", _memory, duration, infinite="never ends"),
    LimitKind("min-diagonality", "diagonality of the Hessian", _hessian("diagonality"), percent),
    LimitKind(MAX_RESIDUAL, "curvature left by Adam", _hessian("adam_residual")),
    *(
        LimitKind(f"{MAX_ROUNDING}.{one}", f"rounding error in {one}", _rounding(one), percent)
        for one in DTYPES
    ),
    *(
        LimitKind(f"{MAX_STATE}.{one}", f"error of the state in {one}", _state(one), percent)
        for one in DTYPES
    ),
)

BY_NAME: Mapping[str, LimitKind] = {kind.name: kind for kind in KINDS}
GROWTH = {"MC101": COUNT, "MC107": MIN_MEMORY, "MC20": MAX_STEP_EFFECT, "MC301": MAX_RESIDUAL}
"""The limit whose figure says how bad a finding is, by the code that it starts with."""


def kind_of(rule: str) -> LimitKind | None:
    """What a limit bounds, or the figure that a finding grows with."""
    growth = (name for prefix, name in GROWTH.items() if rule.startswith(prefix))
    return BY_NAME.get(rule) or BY_NAME.get(next(growth, ""))


READABLE = "readable"
CHECK = "check"
OVERRIDES = "overrides"
ALLOW_MISSING = "allow-missing"
FAIL_ON = "fail-on"
NOT_JUDGED = "not-judged"
TOLERANCE = "tolerance"
CODES = ("select", "forbid", "ignore")
SCOPES = ("layers", "families")
OF_TYPES = (MAX_ROUNDING, MAX_STATE)  # which have a bound for each type
LIMITS = tuple(dict.fromkeys(kind.name.partition(".")[0] for kind in KINDS))
CHOICES = (FAIL_ON, ALLOW_MISSING, TOLERANCE)
KEYS = (*LIMITS, *CODES, *CHOICES, OVERRIDES)  # what the table may hold


class Limit(Struct, frozen=True):
    """The bound of a figure of `KINDS`, a verdict by its place, and who set it."""

    name: str
    bound: float
    origin: str

    @property
    def kind(self) -> LimitKind:
        """What it bounds."""
        return BY_NAME[self.name]

    @property
    def said(self) -> str:
        """The bound in words."""
        return self.kind.say(self.bound)


class RuleSet(Struct, frozen=True):
    """Limits and finding codes for some layers."""

    limits: tuple[Limit, ...] = ()  # at most one of each name
    select: tuple[str, ...] | None = None  # codes that fail, in place of an earlier set's, if any
    forbid: tuple[str, ...] = ()  # prefixes of findings that fail beside those
    ignore: tuple[str, ...] = ()  # that never fail, unless a longer prefix says that they do
    layers: tuple[str, ...] = ()  # glob patterns of layer names; empty for all
    families: tuple[str, ...] = ()
    origin: str = ""  # where it was written

    @property
    def scope(self) -> str:
        """The layers and families that it names; empty for all."""
        named = {"layers": self.layers, "families": self.families}
        return "; ".join(f"{what} {', '.join(names)}" for what, names in named.items() if names)

    def applies(self, name: str, family: str) -> bool:
        """Whether a layer is one that it names."""
        return _matches(name, self.layers) and _matches(family, self.families)


class Policy(Struct, frozen=True):
    """What a report is held to; later rule sets win."""

    rule_sets: tuple[RuleSet, ...] = ()
    allow_missing: bool = False  # whether a figure that a limit needs may be missing
    fail_on: str = ""  # ``not-judged`` where layers fail that were not
    tolerance: float = 0.05  # by how much, relatively, a figure may be worse than in a baseline

    def applying(self, part: Part) -> list[RuleSet]:
        """The rule sets for a layer; for the model those that name no layers."""
        if isinstance(part, LayerReport):
            return [rules for rules in self.rule_sets if rules.applies(part.name, part.family)]
        return [rules for rules in self.rule_sets if not rules.scope]

    def limits(self, part: Part) -> dict[str, Limit]:
        """The limits for a layer, or for the model, by name."""
        return {limit.name: limit for rules in self.applying(part) for limit in rules.limits}

    @property
    def is_default(self) -> bool:
        """Whether nothing was limited, selected or forbidden."""
        sets = self.rule_sets
        return not any(one.limits or one.forbid or one.select is not None for one in sets)

    def unmatched(self, reports: Iterable[Report]) -> Iterator[RuleSet]:
        """The rule sets that name layers or families, none of which is in the reports."""
        present = [(one.name, one.family) for report in reports for one in report.layers]
        present += [(one.name, one.family) for report in reports for one in report.skipped]
        for rules in self.rule_sets:
            if rules.scope and not any(rules.applies(*one) for one in present):
                yield rules


def _matches(name: str, patterns: Sequence[str]) -> bool:
    return not patterns or any(fnmatchcase(name, pattern) for pattern in patterns)


class _Table(NamedTuple):
    """A table of a settings file and the keys that lead to it, or options of the command line."""

    file: SettingsFile | None  # None of the command line
    found: Mapping[str, Any]
    place: tuple[str | int, ...] = ()

    def origin(self, *keys: str) -> str:
        if self.file is not None:
            return self.file.place(*self.place, *keys)
        return f"--{(*self.place, *keys)[0]}" if keys else "the command line"

    def wrong(self, what: str, *keys: str, remedy: str) -> UsageError:
        return UsageError(what, where=self.origin(*keys), remedy=remedy)

    def refused(self, key: str, what: str, example: str) -> UsageError:
        """The error of a value, with one that could stand in its place."""
        remedy = f"give --{key} {example}" if self.file is None else f"write {key} = {example}"
        return self.wrong(f"{key} {what}", key, remedy=remedy)

    def require_known(self, *known: str) -> None:
        for key in self.found:
            if key not in known and self.file is not None:
                raise unknown_key(self.file, (*self.place, key), known)

    def choice(self, key: str, *known: str) -> int:
        """The place of a value among those that there are."""
        if self.found[key] not in known:
            raise self.refused(key, f"is not {' or '.join(known)}", f"'{known[-1]}'")
        return known.index(self.found[key])

    def number(self, key: str) -> float:
        value = self.found[key]
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not 0 <= value <= sys.float_info.max:
            raise self.refused(key, "is not a number of 0 or more", "0" if key == COUNT else "0.5")
        return float(value)

    def texts(self, key: str) -> tuple[str, ...]:
        value = self.found.get(key, [])
        if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
            example = '["MC101"]' if key in CODES else '["encoder.*"]'
            raise self.refused(key, "is not a list of texts", example)
        for code in value if key in CODES else ():
            if not code or not any(known.startswith(code) for known in RULES):
                problem = f"no finding has a code that begins with {shown_place(code)!r}"
                raise self.wrong(problem, key, remedy="see memcurse rule for the codes")
        return tuple(value)

    def rule_set(self) -> RuleSet:
        texts = {key: self.texts(key) for key in (*CODES, *SCOPES) if key in self.found}
        return RuleSet(tuple(self.limits()), origin=self.origin(), **texts)

    def choices(self) -> dict[str, Any]:
        """The fields of a `Policy` beside its rule sets, which hold for every layer."""
        found = self.found
        if not isinstance(found.get(ALLOW_MISSING, False), bool):
            raise self.refused(ALLOW_MISSING, "is not true or false", "true")
        if FAIL_ON in found:
            self.choice(FAIL_ON, NOT_JUDGED)
        if TOLERANCE in found:
            self.number(TOLERANCE)
        return {key.replace("-", "_"): found[key] for key in CHOICES if key in found}

    def limits(self) -> Iterator[Limit]:
        for key in (name for name in LIMITS if name in self.found):
            value, origin = self.found[key], self.origin(key)
            if key == MAX_VERDICT:
                yield Limit(key, float(self.choice(key, *VERDICTS[:-1])), origin)
            elif key in OF_TYPES:
                if not isinstance(value, dict):
                    raise self.refused(key, "names no type", "{ bfloat16 = 0.1 }")
                errors = _Table(self.file, value, (*self.place, key))
                errors.require_known(*DTYPES)
                for dtype in value:
                    yield Limit(f"{key}.{dtype}", errors.number(dtype), origin)
            else:
                yield Limit(key, self.number(key), origin)


def unknown_key(file: SettingsFile, place: Sequence[str | int], known: Sequence[str]) -> UsageError:
    """The error of a key that does not exist, with the nearest one that does."""
    key = str(place[-1])
    near = get_close_matches(key.replace("_", "-"), known, 1)
    remedy = f"did you mean {near[0]}?" if near else f"known are {', '.join(known)}"
    return file.wrong(f"unknown key {key[:40]!r}", *place, remedy=remedy)


def table(file: SettingsFile) -> _Table:
    """The table of `memcurse check`; raises `UsageError` for a key that does not exist."""
    whole = _Table(file, file.values.get(CHECK, {}), (CHECK,))
    if not isinstance(whole.found, dict):
        raise whole.wrong(f"{CHECK} is not a table", remedy=f"write [{CHECK}] above its keys")
    whole.require_known(*KEYS)
    return whole


def rule_sets(file: SettingsFile) -> tuple[RuleSet, ...]:
    """The table of `memcurse check` and its overrides, in their order, held to their kinds."""
    whole = table(file)
    overrides = whole.found.get(OVERRIDES, [])
    if not isinstance(overrides, list) or not all(isinstance(one, dict) for one in overrides):
        heading = ".".join((*file.prefix, CHECK, OVERRIDES))
        remedy = f"write [[{heading}]] above each"
        raise whole.wrong(f"{OVERRIDES} is not an array of tables", OVERRIDES, remedy=remedy)
    found = [whole.rule_set()]
    for index, override in enumerate(overrides):
        one = _Table(file, override, (CHECK, OVERRIDES, index))
        one.require_known(*SCOPES, *LIMITS, *CODES)
        if MIN_MEMORY in override:
            remedy = f"write it below [{'.'.join((*file.prefix, CHECK))}]"
            raise one.wrong(f"{MIN_MEMORY} is of the whole model", MIN_MEMORY, remedy=remedy)
        if not any(override.get(scope) for scope in SCOPES):
            remedy = 'add layers = ["encoder.*"] or families = ["lru"]'
            raise one.wrong("an override names no layers and no families", remedy=remedy)
        found.append(one.rule_set())
    return tuple(found)


def policy_of(file: SettingsFile | None, options: Mapping[str, Any]) -> Policy:
    """What a settings file and those options of the command line say that are among `KEYS`.

    Options are texts where a file has tables: errors by type as ``DTYPE=ERROR``, codes joined by
    commas. Raises `UsageError` for a wrong value.
    """
    found = {name: options[name] for name in KEYS if options.get(name) not in (None, (), [])}
    for key in OF_TYPES:
        for text in found.pop(key, ()):
            dtype, _, error = text.partition("=")
            with suppress(ValueError):
                found.setdefault(key, {})[dtype] = float(error)
            error = found.get(key, {}).get(dtype, math.nan)
            if dtype not in DTYPES or not 0 <= error < math.inf:
                what, remedy = f"{text!r} is not DTYPE=ERROR", f"give one of {', '.join(DTYPES)}"
                raise UsageError(what, where=f"--{key}", remedy=f"{remedy}, as bfloat16=0.1")
    for name in (name for name in CODES if name in found):
        codes = (code.strip() for text in found[name] for code in text.split(","))
        found[name] = [code for code in codes if code]
    given = _Table(None, found)
    if file is None:
        return Policy((given.rule_set(),), **given.choices())
    chosen = table(file).choices() | given.choices()
    return Policy((*rule_sets(file), given.rule_set()), **chosen)
