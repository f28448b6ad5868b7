"""Terms: the part of a plan that the rules of the core need, and nothing else.

`Plan.terms()` compiles to this value; `PlanAdopted` records it, so that an auditor can
redo every selection and every closing from the log alone. Ratios are integers in parts
per million: exact, and the same on every machine. Times are milliseconds.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import IntEnum

from consortium.core.account_facts import Costs
from consortium.core.ids import is_plain_id

PPM = 1_000_000
SECOND_MS = 1_000
MINUTE_MS = 60 * SECOND_MS
HOUR_MS = 60 * MINUTE_MS
DAY_MS = 24 * HOUR_MS

# Of two sites, each could take its own away from the sum and read the other's.
LEAST_MASKED = 3

# The metric that `stop_below` speaks of; always better when lower.
LOSS = "loss"

ReportValue = bool | int | float | str

# On a field of a record: it came later, and a fact of its own tells it. The fields of a kind
# of fact never change, so the record itself is written without it.
TOLD_APART = "told apart"
_APART = {TOLD_APART: True}


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


@dataclass(frozen=True, slots=True)
class Budget:
    """What every round of a plan spends, and from which account."""

    account: str
    unit: str
    costs: Costs
    # Whether sites make noise of their own: then it is spent once they are invited, whatever
    # becomes of the round. Else the coordinator does, and it is spent once the round closes.
    is_spent_at_sites: bool


@dataclass(frozen=True, slots=True)
class Masking:
    """How a secret sum is made."""

    phase_ms: int  # how long keys, shares, signatures and answers are waited for, each


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
    # `BufferingAdopted` tells these three.
    buffer: int = field(default=0, metadata=_APART)  # updates a round sums; 0: synchronous
    max_staleness: int = field(default=0, metadata=_APART)  # versions
    discount_ppm: int = field(default=0, metadata=_APART)  # a in (1 + staleness)^-a
    # `BudgetAdopted` tells this one. None: rounds cost nothing, and promise nothing.
    budget: Budget | None = field(default=None, metadata=_APART)
    # `MaskingAdopted` tells this one. None: every update is seen.
    masking: Masking | None = field(default=None, metadata=_APART)
    # `ScoringAdopted` tells this one: scores come inside the sums, of the model that a round
    # begins from. Else members are asked for those of the candidate, and of that model.
    has_scored_sums: bool = field(default=False, metadata=_APART)

    @property
    def has_evaluation(self) -> bool:
        """Whether members are asked for scores of a candidate."""
        return bool(self.judged_by) and not self.has_scored_sums

    @property
    def is_masked(self) -> bool:
        return self.masking is not None

    @property
    def is_buffered(self) -> bool:
        """Whether there is no barrier: an invitation outlives its round."""
        return self.buffer > 0

    def buffered(self, buffer: int, max_staleness: int, discount_ppm: int) -> Terms:
        """These terms with what `BufferingAdopted` tells."""
        return replace(self, buffer=buffer, max_staleness=max_staleness, discount_ppm=discount_ppm)

    def as_adopted(self) -> Terms:
        """The part of the terms that `PlanAdopted` tells."""
        return replace(self.buffered(0, 0, 0), budget=None, masking=None, has_scored_sums=False)

    def are_sound(self) -> bool:
        """Whether the core can work with these terms: what they name is there."""
        names = {metric.name for metric in self.metrics}
        wanted = {self.judged_by} if self.judged_by else set()
        if self.stop_below is not None:
            wanted.add(LOSS)
        is_possible = 0 < self.quorum <= self.wait_for and self.gate_window > 0
        rules = self._can_buffer, self._can_pay, self._can_mask, self._can_score
        is_whole = all(rule() for rule in rules)
        return wanted <= names and is_possible and is_whole

    def _can_mask(self) -> bool:
        """Under masks nobody's update is looked at or taken out again, nobody waits for less than
        all, and no site tells its scores by themselves."""
        if self.masking is None:
            return True
        is_blind = self.norm_factor == 0 and not self.is_screened and not self.has_evaluation
        is_patient = self.close is Close.ALL_OR_DEADLINE and not self.is_buffered
        return is_blind and is_patient and self.quorum >= LEAST_MASKED and self.masking.phase_ms > 0

    def _can_score(self) -> bool:
        """Scores of a sum are by some metric, and too late for a gate: what they are of was
        published before. Without a barrier a sum has updates of several models."""
        is_late = not self.is_gated and not self.is_buffered
        return not self.has_scored_sums or (bool(self.judged_by) and is_late)

    def _can_pay(self) -> bool:
        """An account by a plain name, and costs that are numbers."""
        budget = self.budget
        if budget is None:
            return True
        are_plain = is_plain_id(budget.account) and is_plain_id(budget.unit)
        return are_plain and bool(budget.costs) and all(one.is_sound() for one in budget.costs)

    def _can_buffer(self) -> bool:
        """A buffer fills from those who train at a time, holds a quorum, and alone says when a
        round closes; its updates are of several models, so none stands out among the others."""
        if not self.is_buffered:
            return not (self.max_staleness or self.discount_ppm)
        most = self.target or self.buffer
        is_alone = self.close is Close.ALL_OR_DEADLINE and self.overselect_ppm == PPM
        return self.quorum <= self.buffer <= most and is_alone and not self.is_screened

    def metric_index(self, name: str) -> int:
        """Where `name` stands in the tuples of sums that members report."""
        return [metric.name for metric in self.metrics].index(name)
