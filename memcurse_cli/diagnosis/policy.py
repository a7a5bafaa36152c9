"""What a report is held to: limits and finding codes, for all layers or for some.

Rule sets apply to the layers and families that they name, later ones over earlier ones: the table
`check` of a settings file, its overrides in their order, the command line. Where nothing is
limited, a layer fails that is cursed or has a finding of severity error.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import Any, Literal, NamedTuple, get_args

from memcurse_cli.checkpoints.untrusted.names import printable, shown_place
from memcurse_cli.diagnosis.settings import SettingsFile
from memcurse_cli.diagnosis.wording import duration, number, percent
from memcurse_cli.errors import UsageError
from memcurse_cli.schema.figures import ParameterSummary, Rounding, Verdict, diverges
from memcurse_cli.schema.report import LayerReport, Report

VERDICTS: tuple[Verdict, ...] = get_args(Verdict)
DTYPES = tuple(Rounding.__dataclass_fields__)
MAX_ROUNDING_ERROR = "max-rounding-error"
MAX_VERDICT = "max-verdict"


class Figure(NamedTuple):
    """One number of one layer that a limit is compared with, or the reason why there is none."""

    value: float | None  # infinite where it diverges
    subject: str = ""  # none of the whole layer
    tensor: str = ""
    reason: str = ""


Figures = Callable[[LayerReport], Iterator[Figure]]


@dataclass(frozen=True)
class LimitKind:
    """One kind of limit."""

    name: str  # the option and the key in a settings file, ``max-…`` or ``min-…``
    noun: str  # what the figure is called in a sentence
    meaning: str  # what it is, with its equation
    figures: Figures  # none where the layer has no such thing
    say: Callable[[float], str] = number  # a figure in words, with its unit

    @property
    def sense(self) -> Literal["max", "min"]:
        """Whether figures must stay below or above the limit."""
        return "min" if self.name.startswith("min-") else "max"


def _time_constant(layer: LayerReport) -> Iterator[Figure]:
    longest = layer.eigenvalues.time_constant
    if longest.max is None and longest.divergent:
        yield Figure(math.inf)
    elif layer.eigenvalues.count:
        yield Figure(longest.max, reason="the report has no time constants")


def _of_groups(take: Callable[[LayerReport, ParameterSummary], float | None]) -> Figures:
    def figures(layer: LayerReport) -> Iterator[Figure]:
        reason = None if layer.dense is None else layer.dense.reason
        reason = reason or "the report has no sensitivity for it"
        for group in layer.parameters:
            yield Figure(take(layer, group), group.name, group.tensor, reason)

    return figures


def _relative_sensitivity(layer: LayerReport, group: ParameterSummary) -> float | None:
    value = group.relative_sensitivity.p99
    if layer.dense is not None:  # every entry of the matrix at once, as for its step effect
        value = layer.dense.relative_sensitivity
    return math.inf if value is None and group.relative_sensitivity.divergent else value


def _rounding(dtype: str) -> Figures:
    def error(_: LayerReport, group: ParameterSummary) -> float | None:
        value: float | None = getattr(group.rounding, dtype)
        # A group whose sensitivity is known lacks an error only where rounding overflows.
        sensitivity = group.relative_sensitivity
        known = sensitivity.p99 is not None or sensitivity.divergent > 0
        return math.inf if value is None and known else value

    return _of_groups(error)


def _hessian(name: str) -> Figures:
    def figures(layer: LayerReport) -> Iterator[Figure]:
        if layer.hessian is None:
            yield Figure(None, reason=layer.hessian_reason or "the report has no Hessian")
        else:
            yield Figure(getattr(layer.hessian, name))

    return figures


KINDS: tuple[LimitKind, ...] = (
    LimitKind(
        MAX_VERDICT,
        "verdict",
        "The worst verdict that a layer may have: ok or watch.",
        lambda layer: iter([Figure(float(VERDICTS.index(layer.verdict)))]),
        lambda value: VERDICTS[int(value)],
    ),
    LimitKind(
        "max-step-effect",
        "step effect",
        "lr √κ of a parameter group's p99 scalar: the relative change of the state in one step "
        "of the optimizer; 0.5 is 50 %.",
        _of_groups(lambda _, group: math.inf if diverges(group) else group.step_effect),
        percent,
    ),
    LimitKind(
        "max-relative-sensitivity",
        "relative sensitivity",
        "κ(ω) = E|dh/dω|² / E|h|² of a parameter group's p99 scalar; of the whole of a dense "
        "matrix.",
        _of_groups(_relative_sensitivity),
    ),
    LimitKind(
        "max-unstable",
        "number of unstable eigenvalues",
        "How many eigenvalues of a layer may have |λ| ≥ 1.",
        lambda layer: iter([Figure(float(layer.eigenvalues.unstable))]),
        lambda value: f"{value:.0f}",
    ),
    LimitKind(
        "max-time-constant",
        "longest time constant",
        "max -1/log|λ| of a layer, in steps.",
        _time_constant,
        duration,
    ),
    LimitKind(
        "min-diagonality",
        "diagonality of the Hessian",
        "Σ H_aa² / Σ H_ab² of a layer, in [1/N, 1].",
        _hessian("diagonality"),
        percent,
    ),
    LimitKind(
        "max-adam-residual",
        "curvature left by Adam",
        "λ_max(D^-½ H D^-½) of a layer: 1 is diagonal, N the worst.",
        _hessian("adam_residual"),
    ),
    *(
        LimitKind(
            f"{MAX_ROUNDING_ERROR}.{dtype}",
            f"rounding error in {dtype}",
            f"Relative error of the state when a parameter group is stored in {dtype} (p99).",
            _rounding(dtype),
            percent,
        )
        for dtype in DTYPES
    ),
)
"""Every kind of limit, in the order in which they are judged."""

BY_NAME: Mapping[str, LimitKind] = {kind.name: kind for kind in KINDS}

FINDINGS = "findings"
READABLE = "readable"
CHECK = "check"
OVERRIDES = "overrides"
ALLOW_MISSING = "allow-missing"
TOLERANCE = "tolerance"
CODES = ("select", "forbid", "ignore")
SCOPES = ("layers", "families")
NUMBERS = tuple(kind.name for kind in KINDS if kind.name != MAX_VERDICT and "." not in kind.name)
LIMITS = (MAX_VERDICT, *NUMBERS, MAX_ROUNDING_ERROR)
COUNT = "max-unstable"
KEYS = (*LIMITS, *CODES, ALLOW_MISSING, TOLERANCE, OVERRIDES)
"""What the table may hold."""

CODE = re.compile(r"MC\d{0,3}\Z")
LIMITING_VERDICTS = VERDICTS[:-1]
CODE_REMEDY = "write MC, or up to three digits behind it, such as MC2 or MC204; see memcurse rule"


@dataclass(frozen=True)
class Limit:
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


@dataclass(frozen=True)
class RuleSet:
    """Limits and finding codes for some layers."""

    limits: tuple[Limit, ...] = ()  # at most one of each name
    select: tuple[str, ...] | None = None  # codes that fail, in place of an earlier set's, if any
    forbid: tuple[str, ...] = ()  # prefixes of findings that fail beside those
    ignore: tuple[str, ...] = ()  # that never fail, unless a longer prefix says that they do
    layers: tuple[str, ...] = ()  # glob patterns of layer names; empty for all
    families: tuple[str, ...] = ()
    origin: str = ""  # where it was written

    def applies(self, name: str, family: str) -> bool:
        """Whether a layer is one that it names."""
        return _matches(name, self.layers) and _matches(family, self.families)


@dataclass(frozen=True)
class Policy:
    """What a report is held to; later rule sets win."""

    rule_sets: tuple[RuleSet, ...] = ()
    allow_missing: bool = False  # whether a figure that a limit needs may be missing

    @property
    def is_default(self) -> bool:
        """Whether nothing was limited, selected or forbidden."""
        return not any(
            rules.limits or rules.forbid or rules.select is not None for rules in self.rule_sets
        )

    def unmatched(self, reports: Iterable[Report]) -> Iterator[RuleSet]:
        """The rule sets that name layers or families, none of which is in the reports."""
        present = [
            (layer.name, layer.family)
            for report in reports
            for layers in (report.layers, report.skipped)
            for layer in layers
        ]
        for rules in self.rule_sets:
            scoped = rules.layers or rules.families
            if scoped and not any(rules.applies(*one) for one in present):
                yield rules


def _matches(name: str, patterns: Sequence[str]) -> bool:
    return not patterns or any(fnmatchcase(name, pattern) for pattern in patterns)


class _Table(NamedTuple):
    """A table of a settings file, and the keys that lead to it."""

    file: SettingsFile
    found: Mapping[str, Any]
    place: tuple[str | int, ...]

    def wrong(self, what: str, *keys: str, remedy: str) -> UsageError:
        return self.file.wrong(what, *self.place, *keys, remedy=remedy)

    def require_known(self, *known: str) -> None:
        for key in self.found:
            if key not in known:
                raise unknown_key(self.file, (*self.place, key), known)

    def number(self, key: str) -> float:
        value = self.found[key]
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not 0 <= float(value) < math.inf:
            example = "0" if key == COUNT else "0.5"
            raise self.wrong(
                f"{key} is not a number of 0 or more", key, remedy=f"write {key} = {example}"
            )
        return float(value)

    def texts(self, key: str) -> tuple[str, ...]:
        value = self.found.get(key, [])
        if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
            example = '["MC101"]' if key in CODES else '["encoder.*"]'
            raise self.wrong(
                f"{key} is not a list of texts", key, remedy=f"write {key} = {example}"
            )
        for problem in _wrong_codes(value) if key in CODES else ():
            raise self.wrong(problem, key, remedy=CODE_REMEDY)
        return tuple(value)

    def rule_set(self) -> RuleSet:
        texts = {key: self.texts(key) for key in (*CODES, *SCOPES) if key in self.found}
        return RuleSet(tuple(self.limits()), origin=self.file.place(*self.place), **texts)

    def limits(self) -> Iterator[Limit]:
        for key in (name for name in LIMITS if name in self.found):
            value, origin = self.found[key], self.file.place(*self.place, key)
            if key == MAX_VERDICT:
                if value not in LIMITING_VERDICTS:
                    raise self.wrong(
                        f"{key} is not {' or '.join(LIMITING_VERDICTS)}",
                        key,
                        remedy=f'write {key} = "watch"',
                    )
                yield Limit(key, float(LIMITING_VERDICTS.index(value)), origin)
            elif key == MAX_ROUNDING_ERROR:
                if not isinstance(value, dict):
                    remedy = f"write {key} = {{ bfloat16 = 0.1 }}"
                    raise self.wrong(f"{key} names no type", key, remedy=remedy)
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
    """The table of `memcurse check`; raises `ConfigurationError` for a key that does not exist."""
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
        if not any(override.get(scope) for scope in SCOPES):
            raise one.wrong(
                "an override names no layers and no families",
                remedy='add layers = ["encoder.*"] or families = ["lru"]',
            )
        found.append(one.rule_set())
    return tuple(found)


def boolean(file: SettingsFile, key: str) -> bool | None:
    """A yes or no of the table; None where it does not say."""
    value = table(file).found.get(key)
    if value is not None and not isinstance(value, bool):
        raise file.wrong(f"{key} is not true or false", CHECK, key, remedy=f"write {key} = true")
    return value


def positive(file: SettingsFile, key: str) -> float | None:
    """A number of the table, zero or more; None where it does not say."""
    found = table(file)
    return found.number(key) if key in found.found else None


def from_options(
    numbers: Mapping[str, float | None],
    *,
    verdict: str | None = None,
    rounding: Iterable[str] = (),
    **codes: Iterable[str] | None,
) -> RuleSet:
    """The rule set of the command line, for every layer; raises `UsageError` for a wrong value.

    Of bounds by the limit's name, a verdict, rounding errors as ``DTYPE=ERROR``, and codes of
    ``select``, ``forbid`` and ``ignore``, several of them joined by commas; None is not given.
    """
    limits = []
    if verdict is not None:
        if verdict not in LIMITING_VERDICTS:
            raise UsageError(
                f"{verdict!r} is not a verdict that can be a limit",
                where=f"--{MAX_VERDICT}",
                remedy=f"give {' or '.join(LIMITING_VERDICTS)}",
            )
        place = float(LIMITING_VERDICTS.index(verdict))
        limits.append(Limit(MAX_VERDICT, place, f"--{MAX_VERDICT}"))
    limits += [_limit(name, bound) for name, bound in numbers.items() if bound is not None]
    for text in rounding:
        dtype, _, error = text.partition("=")
        if dtype not in DTYPES or not re.fullmatch(r"[0-9.eE+-]+", error):
            raise UsageError(
                f"{text!r} is not DTYPE=ERROR",
                where=f"--{MAX_ROUNDING_ERROR}",
                remedy=f"for example bfloat16=0.1; known are {', '.join(DTYPES)}",
            )
        try:
            bound = float(error)
        except ValueError:  # such as 1e
            bound = math.nan
        limits.append(_limit(MAX_ROUNDING_ERROR, bound, f".{dtype}"))
    chosen = {}
    for name, texts in codes.items():
        if texts is not None:
            several = (code.strip() for text in texts for code in text.split(","))
            chosen[name] = tuple(code for code in several if code)
            for problem in _wrong_codes(chosen[name]):
                raise UsageError(problem, where=f"--{name}", remedy=CODE_REMEDY)
    return RuleSet(limits=tuple(limits), origin="the command line", **chosen)


def _limit(option: str, bound: float, dtype: str = "") -> Limit:
    if not 0 <= bound <= sys.float_info.max:
        raise UsageError(
            f"{printable(f'{bound}', 20)} is not a bound",
            where=f"--{option}",
            remedy="give a number of 0 or more",
        )
    return Limit(option + dtype, bound, f"--{option}")


def _wrong_codes(codes: Iterable[str]) -> Iterator[str]:
    for code in codes:
        if not CODE.match(code):
            yield f"{shown_place(code)!r} is not a code or its beginning"
