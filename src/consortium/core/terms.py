"""Terms: the part of a plan that the rules of the core need, and nothing else.

`Plan.terms()` compiles to this value; `PlanAdopted` records it, so that an auditor can
redo every selection and every closing from the log alone. Ratios are integers in parts
per million: exact, and the same on every machine. Times are milliseconds.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

PPM = 1_000_000
SECOND_MS = 1_000
MINUTE_MS = 60 * SECOND_MS
HOUR_MS = 60 * MINUTE_MS
DAY_MS = 24 * HOUR_MS

# The metric that `stop_below` speaks of; always better when lower.
LOSS = "loss"

ReportValue = bool | int | float | str


class Selection(IntEnum):
    """How the invited are chosen among the eligible."""

    RANDOM = 1
    FAIR = 2
    DIVERSE = 3


class Close(IntEnum):
    """When collecting ends."""

    ALL_OR_DEADLINE = 1
    QUORUM = 2


class Comparison(IntEnum):
    """The comparisons that an eligibility condition may use."""

    EQUAL = 1
    UNEQUAL = 2
    LESS = 3
    AT_MOST = 4
    GREATER = 5
    AT_LEAST = 6


@dataclass(frozen=True, slots=True)
class Condition:
    """One condition on what sites report, such as `memory_gb >= 16`."""

    name: str
    comparison: Comparison
    value: ReportValue


@dataclass(frozen=True, slots=True)
class Metric:
    """One number that members report at evaluation, as a sum over samples."""

    name: str
    higher_is_better: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What the rules need to know of a plan."""

    rounds: int
    quorum: int  # updates without which nothing is aggregated
    wait_for: int  # sites that must be eligible before anybody is invited
    target: int = 0  # 0: fraction of the eligible, at least the quorum
    fraction_ppm: int = PPM // 2
    overselect_ppm: int = PPM
    selection: Selection = Selection.RANDOM
    spread: tuple[str, ...] = ()  # attributes that DIVERSE spreads over
    conditions: tuple[Condition, ...] = ()
    seen_within_ms: int = DAY_MS
    duration_ms: int = HOUR_MS
    extension_ms: int = 30 * MINUTE_MS
    max_extensions: int = 1
    grace_ms: int = MINUTE_MS  # for checks still running at the deadline
    retry_ms: int = MINUTE_MS  # pause after a failed round
    every_ms: int = 0  # cadence; 0: the next round opens at once
    close: Close = Close.ALL_OR_DEADLINE
    norm_factor: int = 10  # × the median norm of the round; 0: a clip bounds every update
    metrics: tuple[Metric, ...] = ()
    judged_by: str = ""  # the metric of gate and patience; empty: no evaluation
    evaluation_quorum: int = 0
    evaluation_ms: int = 10 * MINUTE_MS
    is_gated: bool = True
    gate_base_ppm: int = 950_000
    gate_best_ppm: int = 900_000
    gate_window: int = 5
    stop_below: float | None = None  # stop when the metric named `loss` is below
    patience: int = 0  # 0: never stop for lack of improvement
    min_delta: float = 0.0
    is_screened: bool = False  # updates that stand out among the others are not summed

    @property
    def has_evaluation(self) -> bool:
        return bool(self.judged_by)

    def are_sound(self) -> bool:
        """Whether the core can work with these terms: what they name is there."""
        names = {metric.name for metric in self.metrics}
        wanted = {self.judged_by} if self.judged_by else set()
        if self.stop_below is not None:
            wanted.add(LOSS)
        return wanted <= names and 0 < self.quorum <= self.wait_for and self.gate_window > 0

    def metric_index(self, name: str) -> int:
        """Where `name` stands in the tuples of sums that members report."""
        return [metric.name for metric in self.metrics].index(name)
