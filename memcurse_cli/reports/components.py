"""The parts of R(Δ) = Σ w ρ^|Δ| cos(ωΔ): as JSON objects, and in words."""

from __future__ import annotations

from collections.abc import Iterable

from memcurse_cli.reports.numbers import setting

NAMES = ("weight", "rho", "frequency")


def component_objects(components: Iterable[tuple[float, ...]]) -> list[dict[str, float]]:
    """``{"weight", "rho"}`` of each part that only decays, and its frequency of a cosine."""
    return [dict(zip(NAMES, component, strict=False)) for component in components]


def decay_words(rho: float, frequency: float = 0.0) -> str:
    """`δ(Δ)`, `1`, `0.9^|Δ|` or `0.9^|Δ|·cos(0.2Δ)`."""
    if rho == 0:
        return "δ(Δ)"
    factors = [] if rho == 1 else [f"{setting(rho)}^|Δ|"]
    if frequency > 0:
        factors.append(f"cos({setting(frequency)}Δ)")
    return "·".join(factors) or "1"
